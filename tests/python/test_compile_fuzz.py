# SPDX-License-Identifier: Apache-2.0
"""Soundness of compiling: random programs mean compiled what their text means.

`compile_programs.py` runs more of them, from its command line, and says what a failing one is.
"""

import re
from collections import Counter

import pytest
import torch
from compile_programs import check, failures, script, shortest, unrefused
from ops_for_compiling import IR_OPS
from program_drawing import draw_program
from program_text import Program
from program_verdict import torch_is_wrong, verdict
from test_compile_mutations import SHARED, inputs_are_given, program

from vllm_ir.compile import sink

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    pytest.mark.usefixtures("one_thread"),
]
PARTS = 8


@pytest.fixture
def one_thread():
    """Small tensors: threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def assert_sound(seeds, depth="passes", rows=6):
    counts = Counter()
    for seed, wrong in failures(seeds, depth, counts, rows):
        small = shortest(draw_program(seed, depth, rows))
        pytest.fail(f"seed {seed}: {wrong}\n{script(small, check(small))}")
    assert counts["programs"] == len(seeds)
    assert counts["invalid"] + counts["wrong in torch itself"] < len(seeds) / 5 + 3


@pytest.mark.parametrize("part", range(PARTS))
def test_compiled_programs_mean_what_they_say(part):
    assert_sound(range(part, 400, PARTS))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_more_compiled_programs(part):
    assert_sound(range(400 + part, 1900, PARTS))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_programs_through_inductor(part):
    assert_sound(range(part, 40, 4), "inductor")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
def test_programs_on_one_row():
    """A batch of one, whose stride means nothing."""
    assert_sound(range(300), rows=1)
    assert_sound(range(16), "inductor", rows=1)


def test_programs_that_use_what_they_gave_away_are_refused():
    counts = Counter()
    assert list(unrefused(range(200), counts)) == []
    assert counts["programs"] > 100


def test_programs_use_everything():
    """A generator that draws nothing of a kind would find nothing wrong with it."""
    seen = Counter()
    for seed in range(1000):
        p = draw_program(seed)
        seen.update([p.route, p.mode, f"{len(p.inputs)} inputs", f"{len(p.rows)} rows"])
        seen.update(re.findall(r"\b\w+(?:\.maybe_inplace)?(?=\()", p.source()))
        for op, providers in p.priorities.items():
            seen[op, providers[0]] += f"{op}(" in p.source() or f"{op}.maybe" in p.source()
    for name, op in IR_OPS.items():
        assert seen[name] > 20
        assert not op.allow_inplace or seen[f"{name}.maybe_inplace"] > 20
        for provider in op.supported_providers():
            assert seen[name, provider] > 3, (name, provider)
    for what in ("direct", "aot", "dynamo", "no grad", "inference", "2 inputs"):
        assert seen[what] > 20, what
    rare = ("grad", "3 rows", "cond", "checkpoint", "graph_break", "as_strided", "split", "expand")
    for what in rare:
        assert seen[what] > 3, what


def test_programs_reach_every_end_of_a_clone():
    """Clones go, and stay for each of the reasons there are."""
    reasons = Counter()
    for seed in range(150):
        p = draw_program(seed)
        if p.route != "direct" or verdict(p):
            continue
        for graph in sink.graphs(f"direct {seed}"):
            for node in graph.nodes:
                for clone in node.clones:
                    reasons[re.sub(r"'\w+'", "_", clone.reason), clone.kept] += 1
    assert set(reasons) >= {
        ("donated", False),
        ("not used afterwards", False),
        ("_ is used afterwards by _", True),
        ("_ is returned", True),
        ("_ lies in graph input _, which was not donated", True),
        ("_ has gaps or another layout than its copy", True),
        ("_ lies in the constant _", True),
    }


def test_a_failing_program_is_cut_down_to_a_script(monkeypatch, capsys):
    inputs_are_given(monkeypatch)
    seed, wrong = next(failures(range(100), "passes", Counter()))
    whole = draw_program(seed)
    small = shortest(whole)
    assert len(small.lines) <= len(whole.lines)
    assert len(small.lines) <= 2
    text = script(small, wrong)
    assert "def program(" in text
    exec(compile(text, "<script>", "exec"), {})
    assert "overwritten" in capsys.readouterr().out.splitlines()[-1]


# ---- programs that were wrong once ---------------------------------------------------------------

PIECES = {"halves": ["one_buffer"], "crossed": ["one_buffer"], "scale": ["returns_input"]}
ONCE_WRONG = {
    "a result with gaps": program("v0, v1 = halves(a0, 0.5)", "v0, v1", priorities=PIECES),
    "as_strided of a result with gaps": program(
        "v0, v1 = halves(a0, 0.5)", "v2 = torch.as_strided(v0, (3, 4), (1, 3), 2)",
        "v3 = v2 * 2.0", "v3", priorities=PIECES,
    ),
    "a result that was a slice of an argument": program(
        "v0 = a0 @ a1.t()", "v1 = scale(v0[:, 2:6], 1.0)", "v2 = ramp(v1, -0.5)", "v0, v2",
        priorities=PIECES,
    ),
    "another offset in a branch": program(
        "def true_0(s, t):\n    p, q = crossed((s * 2.0)[1:], (t + 1.0)[1:], 0.5)\n"
        "    return p + 1.0, q\n"
        "def false_0(s, t):\n    return s[1:] + 2.0, t[1:] * 0.5\n"
        "v0, v1 = cond(a0.sum() > -1000.0, true_0, false_0, (a0, a1))", "v0, v1",
    ),
    "an offset of a branch's own": program(
        "def true_0(s, t):\n    p, q = crossed(s * 2.0, t + 1.0, 0.5)\n    return p[1:], q[1:]\n"
        "def false_0(s, t):\n    return (s + 2.0)[1:], (t * 0.5)[1:]\n"
        "v0, v1 = cond(a0.sum() > -1000.0, true_0, false_0, (a0, a1))", "v0, v1",
        priorities=PIECES,
    ),
    "a returned part of a donated input": program(
        "v0 = a0[:2]", "v1 = scale.maybe_inplace(a0[5:], 0.5)", "v2 = a1 + 1.0", "v0, v1, v2",
        shared=SHARED.replace("(8, 1), 4)", "(8, 1), 48)"),
    ),
    "donated columns of one input": program(
        "v0, v1 = crossed.maybe_inplace(a1, a0, factor=0.5)", "v0",
        inputs="b0 = data(1, rows, 24)\na0 = b0[:, :8]\na1 = b0[:, 8:16]",
    ),
    "torch's in-place operators on memory that was written before": program(
        "v0 = a0 + a1", "v0[[0, 2]] = 5.0", "v1, v2 = butterfly.maybe_inplace(v0, a1, 0.5)",
        "v1, v2", priorities={"butterfly": ["first_only"]},
    ),
    "torch's in-place operators and a kernel": program(
        "v0 = a0 + a1", "v1 = ramp(v0, 0.5)", "v2 = ramp(v1, 0.5)", "v0, v2",
        priorities={"ramp": ["half_written_out"]},
    ),
    "donated inputs that share memory": program(
        "v0 = ramp.maybe_inplace(a1, 0.5)", "v1 = a0 + 1.0", "v0, v1",
        inputs="b0 = data(1, rows, 24)\na0 = b0[:, :8]\na1 = b0[:, 8:16]",
        shared="b0 = data(1, 200)\na0 = b0.as_strided((6, 8), (24, 1), 0)\n"
        "a1 = b0.as_strided((6, 8), (24, 1), 28)",
    ),
    "what lies around a donated input": program(
        "v0 = torch.as_strided(a0, (2, 8), (8, 1), 8)",
        "v1, v2 = butterfly.maybe_inplace(v0, v0.flip(-1), factor=0.5)", "v3 = v1 + a1", "v3",
        priorities={"butterfly": ["inplace"]}, inputs="a0 = data(1, rows, 8)\na1 = data(2, 8)",
        shared="b0 = data(1, 1000)\na0 = b0.as_strided((6, 8), (8, 1), 300)\na1 = b0[304:312]",
    ),
    "a value that a kernel has made, and loops of other ranges": program(
        "v0, v1 = butterfly.maybe_inplace(a1 * 1.0, a0 + 1.0, 0.5)", "v2 = v1 + a1",
        "v3 = torch.full_like(a0, 3.0)", "v4, v5 = add_norm(v3, a1, None, 0.25)", "v2, v4",
        priorities={"add_norm": ["inplace"], "butterfly": ["kernel"], "norm": ["native"]},
    ),
    "a value that Inductor puts into an input": program(
        "a1[a1 > 2.0] = 1.0", "v2 = ramp(a1, factor=-0.5)", "torch.add(a1, a0, out=a1)", "v2",
        priorities={"ramp": ["through_view"]},
    ),
    "a value of memory that a kernel overwrites later": program(
        "v0 = a0 + a1", "v1 = ramp(v0, 0.5)", "v2 = v1 + a1", "v3, v4 = crossed(a0 + 1.0, v1, 0.5)",
        "v5 = v2[:-1]", "v3, v5", priorities={"ramp": ["kernel"], "crossed": ["swaps"]},
    ),
    "a value that Inductor lays out in another order": program(
        "v0 = torch.cat([a0, a0])", "v1, v2 = halves(v0, -0.5)", "v3, v4 = crossed(v1, v2, 0.5)",
        "v5, v6 = fused_norm(v1, v4, None, 0.25)", "v5",
        priorities={**PIECES, "crossed": ["written_out"], "fused_norm": ["vllm_c"]},
        inputs="b0 = data(1, 3, rows, 8)\na0 = b0.mT\na1 = b0[0]",
    ),
    "a value without gaps that Inductor puts into an input with gaps": program(
        "a2[[0, 2]] = 5.0", "v0 = rms_norm(a2, None, 0.25)", "v0",
        priorities={"rms_norm": ["vllm_c"]},
        inputs="b0 = data(1, 3, rows, 8)\na0 = b0[0]\na1 = b0[1]\na2 = b0[:, 1:]",
    ),
    "a copy to a tensor that lies elsewhere": program(
        "v0, v1 = add_norm(a0, a0.flip(-1), None, epsilon=0.25)",
        "v2 = torch.as_strided(v0, (3, 4), (1, 3), 2)", "v3 = v2 * 2.0", "v3",
        priorities={"add_norm": ["inplace", "traceable"]},
        inputs="a0 = data(1, rows, 8)\na1 = data(2, rows, 8)",
        shared="b0 = data(1, 1000)\na0 = b0.as_strided((6, 8), (8, 1), 8)\na1 = data(2, 6, 8)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "route", ["direct", "dynamo", pytest.param("inductor", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ONCE_WRONG)
def test_what_was_wrong_once(name, route):
    p = Program(**{**vars(ONCE_WRONG[name]), "route": route})
    if route == "direct" and "cond(" in p.source():
        pytest.skip("bodies need Dynamo")
    wrong = verdict(p)
    if route == "inductor" and "as_strided(a0" in p.source():
        # Generated code counts from the input's own offset, with native functions too.
        assert torch_is_wrong(p)
    else:
        assert wrong == ""
