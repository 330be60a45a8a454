# SPDX-License-Identifier: Apache-2.0
"""D10, compiled: a row's result never depends on the other rows, where that is asked for."""

import pytest
import torch
from toys import new_pair

import vllm_ir as ir

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

NORM, FUSED = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
ROWS = 1024


@pytest.fixture(autouse=True)
def two_threads_and_no_gradients():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # with one thread no reduction is split
    ir.set_batch_invariant(True)
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()
    ir.set_batch_invariant(False)
    torch.set_num_threads(threads)


def in_pieces(f, x, size):
    torch._dynamo.reset()
    compiled = ir.compile(f, fullgraph=True)
    pieces = [compiled(piece) for piece in x.split(size)]
    return [torch.cat(parts) for parts in zip(*pieces, strict=True)], ir.explain(compiled)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_d10_a_row_does_not_depend_on_its_batch_when_compiled(provider, dtype):
    for op in (NORM, FUSED):
        op.set_default([provider])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 4096, generator=generator).to(dtype)
    w = torch.randn(4096, generator=generator).to(dtype)

    def f(x):
        return NORM(x, w, 1e-6), *FUSED(x, x, w, 1e-6)

    whole, report = in_pieces(f, x, ROWS)
    chunks, _ = in_pieces(f, x, 255)
    rows, _ = in_pieces(f, x[:32], 1)
    for a, b, c in zip(whole, chunks, rows, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a[:32], c)
    # The fused op is called with one tensor twice, which the in-place kernel refuses.
    norm = next(n for n in report.nodes if n.op == "rms_norm")
    assert norm.selected == provider


def test_generated_code_is_not_used_and_the_report_says_so():
    NORM.set_default(["native"])
    compiled = ir.compile(lambda x: NORM(x, None, 1e-6), fullgraph=True)
    x = torch.randn(4, 16)
    assert torch.equal(compiled(x), NORM(x, None, 1e-6))
    assert ir.explain(compiled).nodes[0].notes == [
        "runs as eager operators: generated code isn't batch-invariant"
    ]


def test_an_in_place_implementation_in_python_stays_out_of_place():
    op = new_pair()

    @op.register_impl("writes", inplace=True, batch_invariant=True)
    def writes(
        x: torch.Tensor, x_other: torch.Tensor, scale: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x_other.add_(x)
        x.copy_(x_other * scale)
        return x, x_other

    op.set_default(["writes"])
    x, other = torch.randn(4, 16), torch.randn(4, 16)
    mine, theirs = x.clone(), other.clone()
    compiled = ir.compile(lambda a, b: op(a, b, 3.0), fullgraph=True)
    torch.testing.assert_close(compiled(mine, theirs), op(x, other, 3.0))
    assert torch.equal(mine, x)
    assert torch.equal(theirs, other)


def test_d10_what_is_not_declared_invariant_is_skipped():
    op = new_pair("writes")
    compiled = ir.compile(lambda a, b: op(a, b, 3.0), fullgraph=True)
    x = torch.randn(4, 16)
    compiled(x, x * 2)
    (node,) = ir.explain(compiled).nodes
    assert node.selected == "native"
    decisions = {d.provider: str(d) for d in node.decisions}
    assert decisions["writes"] == ("unsupported: not batch-invariant (VLLM_BATCH_INVARIANT is on)")
