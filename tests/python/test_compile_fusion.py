# SPDX-License-Identifier: Apache-2.0
"""Fusion inside `torch.compile`: what runs, what the report says, and the example."""

from pathlib import Path

import pytest
import torch
from fusion_graphs import passes_as_they_were  # noqa: F401
from processes import run_python

import vllm_ir as ir
from vllm_ir.compile import CompileConfig, fusion
from vllm_ir.compile.fusion import KeywordArg, call, register_fusion

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
FUSED, NORM = ir.ops.fused_add_rms_norm, ir.ops.rms_norm


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    for op in (FUSED, NORM):
        op.set_default(["vllm_c", "native"])
    with torch.no_grad():
        yield


def model(x, r, w, matrix):
    """Two layers: the second addition is one that Inductor puts into the matrix product."""
    r = x + r
    y = NORM(r, w, 1e-6)
    r = r + torch.relu(y) @ matrix
    return NORM(r, w, 1e-5), r


def sample(rows: int = 4, dtype: torch.dtype = torch.float32):
    torch.manual_seed(rows)
    shapes = ((rows, 16), (rows, 16), (16,), (16, 16))
    return tuple(torch.randn(s, dtype=torch.float32).to(dtype) for s in shapes)


def fusions(compiled) -> list[str]:
    return [str(row) for graph in ir.compile.explain(compiled).graphs for row in graph.fusions]


def chosen(compiled) -> dict[str, list[str]]:
    found = ir.compile.explain(compiled).selected_impls
    return {op: list(nodes.values()) for op, nodes in found.items()}


def test_compiled_layers_run_the_fused_op_on_every_batch():
    compiled = ir.compile(model, fullgraph=True)
    for rows in (4, 7, 9):
        args = sample(rows)
        for t in args[:2]:
            torch._dynamo.mark_dynamic(t, 0)
        kept = [t.clone() for t in args]
        got = compiled(*args)
        for a, b in zip(got, model(*args), strict=True):
            torch.testing.assert_close(a, b)
        assert all(torch.equal(a, b) for a, b in zip(args, kept, strict=True))
    assert chosen(compiled) == {"fused_add_rms_norm": ["vllm_c"] * 2}
    (graph,) = ir.compile.explain(compiled).graphs
    assert [(f.name, f.matched) for f in graph.fusions] == [("add_rms_norm", True)] * 2
    assert "'addmm" in graph.fusions[1].reason


def test_options_turn_fusions_off():
    compiled = torch.compile(
        model, backend=ir.compile.Backend(), options={"vllm_ir.fusions": ()}, fullgraph=True
    )
    args = sample()
    got = compiled(*args)
    assert chosen(compiled) == {"rms_norm": ["vllm_c"] * 2}
    for a, b in zip(got, model(*args), strict=True):
        torch.testing.assert_close(a, b)
    assert fusions(compiled) == []


def test_strict_numerics_rounds_the_sum_as_eager_does():
    def layer(x, r, w):
        r = x + r
        return NORM(r, w, 1e-6), r

    compiled = ir.compile(layer, strict_numerics=True, fullgraph=True)
    args = sample(8, torch.bfloat16)[:3]
    got = compiled(*args)
    assert chosen(compiled) == {"rms_norm": ["vllm_c"]}
    assert all(torch.equal(a, b) for a, b in zip(got, layer(*args), strict=True))
    assert fusions(compiled) == [
        "add_rms_norm at rms_norm: not fused: strict_numerics: the addition rounds the sum to "
        "bfloat16 before the norm reads it, the fused op doesn't"
    ]


def test_a_wrong_replacement_stops_the_compilation_with_its_name():
    @register_fusion(
        "halved",
        call(torch.ops.aten.relu.default, call(NORM, KeywordArg("x"), None, KeywordArg("epsilon"))),
    )
    def halved(x, epsilon):
        return NORM(x, None, epsilon)[:2]

    with pytest.raises(Exception, match=r"vllm_ir\.fusion\.halved: result 0") as raised:
        ir.compile(lambda x: torch.relu(NORM(x, None, 1e-6)))(torch.ones(4, 8))
    assert (
        "vllm_ir.fusion.halved: result 0 of the replacement must be float32[4, 8] on cpu as 'relu' "
        "is, got float32[2, 8] on cpu. Mend the replacement. Written at" in str(raised.value)
    )
    assert "torch.relu(NORM(x, None, 1e-6))" in str(raised.value)


def test_the_report_of_code_from_a_cache_has_the_fusions():
    from torch._inductor.utils import fresh_cache

    found = []
    with fresh_cache():
        for _ in range(2):
            torch._dynamo.reset()
            compiled = ir.compile(model, fullgraph=True)
            compiled(*sample())
            (graph,) = ir.compile.explain(compiled).graphs
            found.append((graph.cached, [str(f) for f in graph.fusions]))
    assert [cached for cached, _ in found] == [False, True]
    assert found[0][1] == found[1][1] != []


def test_the_configuration_names_the_passes():
    names = tuple(p.name for p in fusion.passes())
    assert CompileConfig(fusions=list(names)).fusions == names


@pytest.mark.slow
def test_the_example_fuses_what_it_says():
    script = Path(__file__).parents[2] / "examples" / "custom_fusion.py"
    done = run_python(str(script))
    assert done.returncode == 0, done.stderr
    assert "1 graphs, 3 op calls: example 2, native 1" in done.stdout
    for line in (
        "example_norm_scale at mul: 'rms_norm' and 'mul' became 'example_norm_scale'",
        "example_norm_scale at mul_2: not fused: the factor is no vector of x's dtype",
        "example_norm_scale at mul_1: 'rms_norm_1' and 'mul_1' became 'example_norm_scale_1'",
    ):
        assert line in done.stdout
