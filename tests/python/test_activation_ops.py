# SPDX-License-Identifier: Apache-2.0
"""The torch ops `vllm_ir_C::silu_and_mul` and `gelu_and_mul`: layouts, texts, torch's checks."""

import re

import pytest
import torch
from gated_inputs import GATED, x_of
from norm_inputs import DTYPES
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.library import opcheck

C = torch.ops.vllm_ir_C


def op_of(gated):
    return getattr(C, gated.op.name).default


@pytest.fixture(params=GATED, ids=str)
def gated(request):
    return request.param


def layouts(dtype: torch.dtype) -> list[Tensor]:
    x = x_of(32, dtype, rows=8)
    return [
        x,
        x[0],
        x.view(2, 4, 64),
        x[:, :62],
        x[::2],
        x[:1].expand(4, 64),
        x.view(2, 1, 4, 64)[..., :32],
        x[:, :2],
        x[:0],
        x[:, :0],
        x.flatten()[1:385].view(6, 64),
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_layout_are_natives(gated, dtype):
    for x in layouts(dtype):
        got, want = op_of(gated)(x, *gated.more), gated.native(x)
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
        torch.testing.assert_close(got, want)


def test_opcheck(gated):
    for x in layouts(torch.bfloat16):
        opcheck(op_of(gated), (x, *gated.more))


def symbolic(mode, real, *dynamic):
    sizes = [DimDynamic.DYNAMIC if d in dynamic else DimDynamic.STATIC for d in range(real.dim())]
    return mode.from_tensor(real, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


@pytest.mark.parametrize("x", [torch.randn(6, 8), torch.randn(3, 4, 20)[..., :10]])
def test_a_symbolic_batch_gets_no_guard(gated, x):
    for op in (op_of(gated), gated.op.torch_op):
        env = ShapeEnv()
        with FakeTensorMode(shape_env=env) as mode:
            fake = symbolic(mode, x, 0)
            got = op(fake, *gated.more)
            assert isinstance(got.shape[0], torch.SymInt)
            assert got.shape == (*fake.shape[:-1], x.shape[-1] // 2)
        batch = fake.shape[0].node.expr
        assert not any(batch in guard.expr.free_symbols for guard in env.guards)


@pytest.mark.parametrize("x", [torch.randn(6, 8), torch.randn(3, 4, 20)[..., :10]])
def test_a_symbolic_width_is_halved(gated, x):
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        got = op_of(gated)(symbolic(mode, x, *range(x.dim())), *gated.more)
        assert isinstance(got.shape[-1], torch.SymInt)
        assert got.shape[-1] == x.shape[-1] // 2


X = torch.randn(4, 32)


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (
            torch.tensor(1.0),
            ValueError,
            "x must have at least one dimension, got a scalar tensor of shape ().",
        ),
        (
            X.double(),
            TypeError,
            "x.dtype must be float32, float16 or bfloat16, got float64. Use the native provider.",
        ),
        (X.int(), TypeError, "x.dtype must be float32, float16 or bfloat16, got int32. "),
        (
            X[:, :7],
            ValueError,
            "the last dimension of x must be even (gate, then up), got 7.",
        ),
        (
            X.t(),
            ValueError,
            "x must be contiguous in its last dimension and have one distance between all rows, "
            "got shape (32, 4) with strides (1, 32). Call .contiguous() on it.",
        ),
        (
            torch.randn(3, 4, 8).transpose(0, 1),
            ValueError,
            "x must be contiguous in its last dimension and have one distance between all rows, "
            "got shape (4, 3, 8) with strides (8, 32, 1). Call .contiguous() on it.",
        ),
    ],
)
def test_wrong_arguments(gated, x, error, text):
    with pytest.raises(error, match="^" + re.escape(f"vllm_ir.{gated.op.name}: {text}")):
        op_of(gated)(x, *gated.more)


def test_an_unknown_approximation():
    text = "vllm_ir.gelu_and_mul: approximate must be 'none' or 'tanh', got 'erf'."
    for x in (X, X.to("meta")):
        with pytest.raises(ValueError, match="^" + re.escape(text)):
            C.gelu_and_mul(x, "erf")


def test_an_odd_last_dimension_is_refused_without_memory_too(gated):
    with pytest.raises(ValueError, match="must be even"):
        op_of(gated)(torch.empty(2, 7, device="meta"), *gated.more)
