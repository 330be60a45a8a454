# SPDX-License-Identifier: Apache-2.0
"""The torch ops `vllm_ir_C::*` themselves: results, layouts, checks, and what torch asks of ops."""

import re

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import vllm_ir  # noqa: F401  registers the ops

C = torch.ops.vllm_ir_C
EPSILON = 1e-5
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# The parts of a result that one rounding may move: two roundings may add up in 16 bits.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def norm(f: Tensor, dtype: torch.dtype, weight: Tensor | None, size: int | None) -> Tensor:
    y = f * torch.rsqrt(f[..., :size].pow(2).mean(-1, keepdim=True) + EPSILON)
    return y.to(dtype) if weight is None else (y.to(weight.dtype) * weight).to(dtype)


def weights(cols: int, dtype: torch.dtype) -> list[Tensor | None]:
    w = torch.randn(cols, generator=torch.Generator().manual_seed(1))
    return [None, w.to(dtype), w]


def layouts() -> list[Tensor]:
    return [
        torch.randn(4, 32),
        torch.randn(64),
        torch.randn(3, 4, 32),
        torch.randn(4, 64)[:, :32],
        torch.randn(8, 32)[::2],
        torch.randn(1, 32).expand(4, 32),
        torch.randn(3, 1, 64)[..., :32],
        torch.randn(5, 1),
        torch.randn(0, 32),
        torch.randn(3, 0),
        torch.randn(130)[1:129].view(4, 32),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_has_the_values_and_the_layout_of_native(dtype: torch.dtype) -> None:
    for x in (t.to(dtype) for t in layouts()):
        for weight in weights(x.shape[-1], dtype):
            for size in (None, 1, x.shape[-1] // 2):
                if size is not None and not 1 <= size <= x.shape[-1]:
                    continue
                want = norm(x.float(), dtype, weight, size)
                got = C.rms_norm(x, weight, EPSILON, size)
                assert (got.dtype, got.shape) == (dtype, want.shape)
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_add_rms_norm_overwrites_both_activations(dtype: torch.dtype) -> None:
    for x in (t.to(dtype) for t in layouts()):
        for weight in weights(x.shape[-1], dtype):
            x, residual = x.clone(), torch.randn(x.shape).to(dtype)
            total = x.float() + residual.float()
            want = norm(total, dtype, weight, None)
            versions = x._version, residual._version
            assert C.fused_add_rms_norm_(x, residual, weight, EPSILON) is None
            assert (x._version, residual._version) == (versions[0] + 1, versions[1] + 1)
            torch.testing.assert_close(x, want, rtol=TOLERANCE[dtype], atol=1e-6)
            assert torch.equal(residual, total.to(dtype))


def test_activations_may_be_columns_of_one_matrix() -> None:
    both = torch.randn(4, 64)
    x, residual = both[:, :32], both[:, 32:]
    want, total = norm(x + residual, x.dtype, None, None), x + residual
    C.fused_add_rms_norm_(x, residual, None, EPSILON)
    torch.testing.assert_close(x, want)
    assert torch.equal(residual, total)


def test_a_weight_with_gaps_is_read_right() -> None:
    x, weight = torch.randn(4, 32), torch.randn(64)[::2]
    assert torch.equal(C.rms_norm(x, weight, EPSILON), C.rms_norm(x, weight.contiguous(), EPSILON))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_batch_or_the_threads(dtype: torch.dtype) -> None:
    x, weight = torch.randn(100, 4096).to(dtype), torch.randn(4096).to(dtype)
    alone = torch.cat([C.rms_norm(row, weight, EPSILON) for row in x.split(1)])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert torch.equal(C.rms_norm(x, weight, EPSILON), alone)
            y, residual = x.clone(), torch.zeros_like(x)
            C.fused_add_rms_norm_(y, residual, weight, EPSILON)
            assert torch.equal(y, alone)
    finally:
        torch.set_num_threads(threads)


def test_opcheck() -> None:
    x, weight = torch.randn(3, 4, 32).bfloat16(), torch.randn(32)
    for view in (x, x[..., :16], x[:1, :1].expand(3, 4, 32)):
        for w in (None, weight[: view.shape[-1]]):
            for size in (None, 7):
                opcheck(C.rms_norm.default, (view, w, EPSILON, size))
                args = (view.clone(), torch.randn(view.shape).bfloat16(), w, EPSILON, size)
                opcheck(C.fused_add_rms_norm_.default, args)


def test_an_inference_tensor_is_not_changed_outside_of_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(2, 8)
        assert C.rms_norm(x, None, EPSILON).is_inference()
    kept = x.clone()
    with pytest.raises(RuntimeError, match="inference tensor outside InferenceMode"):
        C.fused_add_rms_norm_(x, torch.randn(2, 8), None, EPSILON)
    assert torch.equal(x, kept)


X = torch.randn(4, 32)
W = torch.randn(32)


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (
            (X, W[None]),
            ValueError,
            "weight must have shape (hidden_size,) = (32,), got (1, 32).",
        ),
        ((X, W[:31]), ValueError, "weight must have shape (hidden_size,) = (32,), got (31,)."),
        (
            (X.double(), W),
            TypeError,
            "x.dtype must be float32, float16 or bfloat16, got float64. Use the native provider.",
        ),
        (
            (X.bfloat16(), W.half()),
            TypeError,
            "weight.dtype must be bfloat16 (x.dtype) or float32, got float16. "
            "Cast the weight, or use the native provider.",
        ),
        (
            (X, W.half()),
            TypeError,
            "weight.dtype must be float32, got float16. "
            "Cast the weight, or use the native provider.",
        ),
        ((X, W.to("meta")), ValueError, "weight must be on x's device cpu, got meta."),
        (
            (torch.tensor(1.0), None),
            ValueError,
            "x must have at least one dimension, got a scalar tensor of shape ().",
        ),
        (
            (X.t(), None),
            ValueError,
            "x must be contiguous in its last dimension and have one distance between all rows, "
            "got shape (32, 4) with strides (1, 32). Call .contiguous() on it.",
        ),
        (
            (torch.randn(3, 4, 8).transpose(0, 1), None),
            ValueError,
            "x must be contiguous in its last dimension and have one distance between all rows, "
            "got shape (4, 3, 8) with strides (8, 32, 1). Call .contiguous() on it.",
        ),
    ],
)
def test_wrong_arguments(
    args: tuple[Tensor, Tensor | None], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match="^" + re.escape("vllm_ir.rms_norm: " + text)):
        C.rms_norm(*args, EPSILON)
    with pytest.raises(error, match="^" + re.escape("vllm_ir.fused_add_rms_norm: " + text)):
        C.fused_add_rms_norm_(args[0], args[0].clone(), args[1], EPSILON)


@pytest.mark.parametrize("size", [0, -1, 33])
def test_variance_size_is_within_the_row(size: int) -> None:
    text = f"variance_size must be between 1 and hidden_size = 32, got {size}."
    with pytest.raises(ValueError, match=re.escape(text)):
        C.rms_norm(X, W, EPSILON, size)


@pytest.mark.parametrize(
    ("x", "residual", "error", "text"),
    [
        (X, X[:2], ValueError, "x_residual must have x's shape (4, 32), got (2, 32)."),
        (X, X.half(), TypeError, "x_residual must have x's dtype float32, got float16."),
        (X, X.to("meta"), ValueError, "x_residual must be on x's device cpu, got meta."),
        (X, X, ValueError, "x and x_residual are both overwritten, so they must not share memory"),
        (X[:3], X[1:], ValueError, "x and x_residual are both overwritten"),
        (X[:, :20], X[:, 12:], ValueError, "x and x_residual are both overwritten"),
        (
            X[:1].expand(4, 32),
            X.clone(),
            ValueError,
            "x is overwritten, so its rows must not share memory, got shape (4, 32) with "
            "strides (0, 1). Pass a clone.",
        ),
        (
            X.clone(),
            X[:1].expand(4, 32),
            ValueError,
            "x_residual is overwritten, so its rows must not share memory",
        ),
    ],
)
def test_wrong_residual(x: Tensor, residual: Tensor, error: type[Exception], text: str) -> None:
    kept = x.clone()
    with pytest.raises(error, match="^" + re.escape("vllm_ir.fused_add_rms_norm: " + text)):
        C.fused_add_rms_norm_(x, residual, None, EPSILON)
    assert torch.equal(x, kept)


def test_a_refused_call_leaves_the_version_counters_alone() -> None:
    x, residual = torch.zeros(2, 4), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="x_residual must have x's shape"):
        torch.ops.vllm_ir_C.fused_add_rms_norm_(x, residual, None, 1e-6)
    assert (x._version, residual._version) == (0, 0)
