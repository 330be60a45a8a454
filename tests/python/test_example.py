# SPDX-License-Identifier: Apache-2.0
"""The examples: SmolLM2 as a tiny random model, eager and compiled; the real one (slow)."""

import json
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch

import vllm_ir as ir

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import smollm2
from llama.compare import OPS, Run, first_difference, run_rounds
from llama.generate import Generation, generate
from llama.lowering import Lowering, OpLowering
from llama.model import KVCache, Llama, LlamaConfig, causal_mask
from llama.packages import DemoError, need
from llama.weights import (
    find_model_file,
    in_model_order,
    load_model,
    open_model_file,
    parameter_name,
)

EXAMPLES = Path(smollm2.__file__).parent
compiles = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
TINY = LlamaConfig(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_positions=64,
    rope_base=10000.0,
    epsilon=1e-5,
)
PROMPT = [3, 14, 15, 92, 65]


def tiny_model(dtype: torch.dtype = torch.float32) -> Llama:
    torch.manual_seed(0)
    model = Llama(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model.to(dtype).eval()


class TinyTokenizer:
    """As much of `ChatTokenizer` as the demo uses; a token is a character."""

    stop_token = -1

    def render(self, prompt: str) -> str:
        return prompt

    def encode(self, text: str) -> list[int]:
        return [ord(character) % TINY.vocab_size for character in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(32 + token) for token in tokens)


def load_tiny(dtype: torch.dtype) -> smollm2.Demo:
    return smollm2.Demo("tiny", tiny_model(dtype), TinyTokenizer())  # type: ignore[arg-type]


def runs() -> list[Run]:
    return smollm2.planned_runs(ir.IrOpPriorityConfig())


@pytest.mark.parametrize("chunks", [(12,), (5, 7), (5, 3, 1, 1, 1, 1)])
def test_a_cache_changes_nothing(chunks: tuple[int, ...]) -> None:
    model, tokens = tiny_model(), torch.arange(24).reshape(2, 12) * 4
    with torch.inference_mode():
        expected = model(tokens)
        cache = KVCache(TINY, 12, torch.float32, batch=2)
        parts = [
            model(part, cache.advance(part.shape[1]), cache) for part in tokens.split(chunks, dim=1)
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)
    assert cache.length == 12


def test_a_full_cache_says_so() -> None:
    cache = KVCache(TINY, 4, torch.float32)
    assert cache.advance(3).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"^KVCache holds 4 positions, got 5\. Make it larger\.$"):
        cache.advance(2)
    assert cache.advance(1).tolist() == [3]


def test_a_token_sees_itself_and_the_past() -> None:
    mask = causal_mask(torch.tensor([2, 3]), 5)
    assert mask.tolist() == [[True, True, True, False, False], [True, True, True, True, False]]


def test_generation_is_greedy_and_stops() -> None:
    model = tiny_model()
    text = generate(model, PROMPT, 6).tokens
    with torch.inference_mode():
        for count in range(6):
            logits = model(torch.tensor([PROMPT + text[:count]]))
            assert text[count] == int(logits[0, -1].argmax())
    assert generate(model, PROMPT, 6, stop_token=text[0]).tokens == text[:1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_run_uses_its_provider_and_the_text_is_the_same(dtype: torch.dtype) -> None:
    native, vllm_c = planned = runs()
    run_rounds(tiny_model(dtype), planned, PROMPT, 8, rounds=2)
    assert native.selected == {
        "rms_norm": {"native": 2 * 8},
        "fused_add_rms_norm": {"native": 2 * 8 * 2 * TINY.layers},
    }
    assert vllm_c.selected == {
        "rms_norm": {"vllm_c": 2 * 8},
        "fused_add_rms_norm": {"vllm_c": 2 * 8 * 2 * TINY.layers},
    }
    if dtype == torch.float32:
        assert first_difference(native.tokens, vllm_c.tokens) is None


def test_first_difference_counts_a_missing_tail() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2


def test_query_rows_come_back_from_llama_cpp_order() -> None:
    heads, half = TINY.heads, TINY.head_dim // 2
    rows = torch.arange(heads * 2 * half).reshape(-1, 1)
    stored = (
        rows.reshape(heads, 2, half, 1).transpose(1, 2).reshape(-1, 1)
    )  # as llama.cpp writes it
    assert in_model_order("blk.0.attn_q.weight", stored, TINY).equal(rows)
    assert in_model_order("blk.0.attn_v.weight", stored, TINY) is stored


def test_names_of_the_file_are_names_of_the_model() -> None:
    assert parameter_name("blk.2.attn_q.weight") in dict(tiny_model().named_parameters())
    assert parameter_name("token_embd.weight") == "embedding.weight"
    assert parameter_name("blk.0.unknown.weight") == "layers.0.unknown.weight"


def test_demo_prints_text_speed_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        smollm2.main(
            ["--prompt", "hello", "--max-new-tokens", "4", "--rounds", "1", "--no-compile"],
            load_tiny,
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "prompt  hello" in text
    assert "vllm_c and native give the same 4 tokens." in text
    assert "rms_norm: vllm_c 4" in text
    assert "vllm_c  not in the priority list" in text


def test_demo_runs_the_users_lists_and_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--json",
        "--no-compile",
        "--max-new-tokens",
        "4",
        "--rounds",
        "1",
        "--ir-op-priority.rms_norm=native",
    ]
    assert smollm2.main(arguments, load_tiny) == 0
    result = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in result["runs"]] == ["native", "vllm_c", "yours"]
    assert result["runs"][2]["selected"]["rms_norm"] == {"native": 4}
    reasons = {why["op"]: why["selected"] for why in result["runs"][2]["explain"]}
    assert reasons == {"rms_norm": "native", "fused_add_rms_norm": "vllm_c"}
    assert result["problems"] == []


def test_demo_fails_when_the_text_differs_in_float32_only() -> None:
    planned = runs()
    for run, tokens in zip(planned, ([1, 2], [1, 3]), strict=True):
        run.generations.append(Generation(tokens, 1.0, 1.0))
        run.selected = {op: {run.name: 1} for op in OPS}
    assert smollm2.complaints(planned, "float32") == [
        "'vllm_c' and 'native' give different text in float32, from token 1 on."
    ]
    assert smollm2.complaints(planned, "bfloat16") == []


@compiles
def test_one_compiled_step_serves_all_tokens_and_the_text_is_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch._dynamo.reset()
    arguments = ["--prompt", "hello", "--max-new-tokens", "12", "--rounds", "2"]
    assert smollm2.main([*arguments, "--json"], load_tiny) == 0
    result = json.loads(capsys.readouterr().out)
    eager, _, native, vllm_c = result["runs"]
    assert [native["name"], vllm_c["name"]] == ["native, compiled", "vllm_c, compiled"]
    calls = {"rms_norm": 1, "fused_add_rms_norm": 2 * TINY.layers}
    for run, provider, removed in ((native, "native", 0), (vllm_c, "vllm_c", 4 * TINY.layers)):
        assert len(run["tokens"]) == 12
        assert run["tokens"] == eager["tokens"]
        assert run["compile_seconds"] > 0
        assert run["lowering"]["graphs"] == 1
        ops = run["lowering"]["ops"]
        assert {op: what["selected"] for op, what in ops.items()} == {
            op: {provider: count} for op, count in calls.items()
        }
        assert [what["copies_kept"] for what in ops.values()] == [0, 0]
        assert ops["fused_add_rms_norm"]["copies_removed"] == removed
    assert result["problems"] == []


def test_a_rolled_up_report_is_a_table() -> None:
    ops = {"rms_norm": OpLowering(Counter(native=2, vllm_c=1), 1, 3, Counter())}
    ops["fused_add_rms_norm"] = OpLowering(Counter(vllm_c=4), 0, 8, Counter(native=4))
    assert str(Lowering(1, False, ops)).splitlines() == [
        "op                   runs         copies removed  kept   others",
        "rms_norm             native 2, vllm_c 1              3     1   -",
        "fused_add_rms_norm   vllm_c 4                  8     0   native",
    ]


def test_demo_fails_when_code_was_made_twice_or_of_something_else() -> None:
    (run,) = planned = smollm2.compiled_runs(tiny_model())[1:]
    run.generations.append(Generation([1], 1.0, 1.0))
    run.selected = {op: {"vllm_c": 1} for op in OPS}
    run.lowering = Lowering(1, False, {op: OpLowering(Counter(vllm_c=1)) for op in OPS})
    assert smollm2.complaints(planned, "float32") == []
    run.lowering = Lowering(2, False, {op: OpLowering(Counter(native=1)) for op in OPS})
    assert smollm2.complaints(planned, "float32") == [
        "'vllm_c, compiled' must be compiled once, got 2 graphs.",
        "'vllm_c, compiled' was asked for, but it became: rms_norm: native 1; "
        "fused_add_rms_norm: native 1.",
    ]


def test_the_small_example_shows_what_each_call_became() -> None:
    command = [sys.executable, "-m", "vllm_ir", "explain", "--json"]
    ran = subprocess.run(
        [*command, "--compiled", str(EXAMPLES / "compiled.py")], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    (graph,) = json.loads(ran.stdout)["graphs"]
    nodes = graph["nodes"]
    assert [(n["module"], n["selected"]) for n in nodes] == [
        ("layers.0.input_norm", "native"),
        ("layers.0.mlp_norm", "vllm_c"),
        ("layers.1.input_norm", "vllm_c"),
        ("layers.1.mlp_norm", "vllm_c"),
        ("norm", "vllm_c"),
    ]
    assert [c["kept"] for n in nodes for c in n["clones"]] == [False] * 8
    assert "largest difference from eager:" in ran.stderr  # what the script prints


def test_demo_fails_when_another_implementation_ran() -> None:
    planned = runs()
    for run in planned:
        run.generations.append(Generation([1], 1.0, 1.0))
        run.selected = {op: {"native": 7} for op in OPS}
    assert smollm2.complaints(planned, "float32") == [
        "'vllm_c' was asked for, but this ran: rms_norm: native 7; fused_add_rms_norm: native 7."
    ]


def test_a_missing_package_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DemoError, match=r"needs the package 'no_such_thing': pip install that$"):
        need("no_such_thing.part", "that")

    def load_nothing(dtype: torch.dtype) -> smollm2.Demo:
        raise DemoError("This example needs the package 'gguf': pip install gguf")

    assert smollm2.main([], load_nothing) == 2
    assert capsys.readouterr().err == "This example needs the package 'gguf': pip install gguf\n"


@pytest.mark.slow
def test_real_model_agrees_with_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("gguf", "tokenizers", "accelerate"):
        pytest.importorskip(package)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that are not ours
        transformers = pytest.importorskip("transformers")
        file = model_file_or_skip()
        load = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        reference = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    demo = smollm2.load_smollm2(torch.float32)
    assert type(reference).__name__ == "LlamaForCausalLM"
    text = demo.tokenizer.render(
        "What is the capital of France? In 1789, naïve cafés cost €3.50.\n\tx = [1]"
    )
    tokens = demo.tokenizer.encode(text)
    assert tokens == tokenizer(text)["input_ids"]
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits
        for run in runs():
            with run.priorities.scoped():
                torch.testing.assert_close(
                    demo.model(torch.tensor([tokens])), expected, atol=1e-3, rtol=1e-4
                )


@pytest.mark.slow
@compiles
def test_real_model_knows_the_capital_of_france(capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("gguf", "tokenizers", "tqdm"):
        pytest.importorskip(package)
    model_file_or_skip()
    assert smollm2.main(["--json", "--rounds", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["runs"]) == 4
    for run in result["runs"]:
        provider = run["name"].partition(",")[0]
        assert "Paris" in run["answer"]
        assert set(run["selected"]["fused_add_rms_norm"]) == {provider}
        assert run["tokens"] == result["runs"][0]["tokens"]
    for run in result["runs"][2:]:
        fused = run["lowering"]["ops"]["fused_add_rms_norm"]
        assert fused["selected"] == {run["name"].partition(",")[0]: 60}
        assert fused["copies_kept"] == 0


@pytest.mark.slow
def test_real_model_loads_in_bfloat16() -> None:
    pytest.importorskip("gguf")
    model = load_model(open_model_file(model_file_or_skip()), torch.bfloat16, progress=False)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def model_file_or_skip() -> Path:
    try:
        return find_model_file()
    except DemoError as error:
        pytest.skip(str(error))
