# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square layer norms. The functions are the meaning of their ops, roundings included."""

import torch
from torch import Tensor

from vllm_ir.declare import register_op
from vllm_ir.dtypes import dtype_name
from vllm_ir.errors import IrTypeError, IrValueError


def _check(op: str, x: Tensor, weight: Tensor | None, variance_size: int | None) -> None:
    if x.dim() == 0:
        raise IrValueError(
            f"vllm_ir.{op}: x must have at least one dimension, got a scalar tensor of shape ()."
        )
    for name, t in (("x", x), ("weight", weight)):
        if t is not None and not t.is_floating_point():
            raise IrTypeError(
                f"vllm_ir.{op}: {name} must be a floating-point tensor, got {dtype_name(t.dtype)}."
            )
    hidden_size = x.shape[-1]
    if weight is not None and (weight.dim() != 1 or weight.shape[0] != hidden_size):
        raise IrValueError(
            f"vllm_ir.{op}: weight must have shape (hidden_size,) = ({hidden_size},), "
            f"got {tuple(weight.shape)}."
        )
    if variance_size is not None and not 1 <= variance_size <= hidden_size:
        raise IrValueError(
            f"vllm_ir.{op}: variance_size must be between 1 and hidden_size = {hidden_size}, "
            f"got {variance_size}."
        )


def _normalise(
    x: Tensor, dtype: torch.dtype, weight: Tensor | None, epsilon: float, variance_size: int | None
) -> Tensor:
    """Normalise float32 values and round the result to `dtype`."""
    measured = x if variance_size is None else x[..., :variance_size]
    variance = measured.pow(2).mean(dim=-1, keepdim=True)
    y = x * torch.rsqrt(variance + epsilon)
    if weight is not None:
        y = y.to(weight.dtype) * weight
    return y.to(dtype)


@register_op
def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """Weighted root-mean-square layer normalization over the last dimension.

    `y = x * rsqrt(mean(x**2) + epsilon) * weight`, computed in float32. Rounding points: `y` is
    rounded to weight's dtype before the multiplication, and to x's dtype after it; without a
    weight it is rounded once, to x's dtype. NaN and infinity go through as the formula says; a row
    of zeros with `epsilon=0` gives NaN.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (arXiv:1910.07467).

    Args:
        x: (..., hidden_size), any floating dtype, any strides. Not modified.
        weight: (hidden_size,), any floating dtype, or None for no scaling.
        epsilon: Added to the variance; >= 0, 1e-6 and 1e-5 are usual.
        variance_size: The mean is over the first `variance_size` values only,
            1 <= variance_size <= hidden_size. Default: all of them.

    Returns:
        (..., hidden_size), x's dtype and device, for every dtype of weight. Never an alias of x.

    Raises:
        IrTypeError: x or weight is not floating-point.
        IrValueError: x has no dimension, weight has another shape, variance_size is out of range.

    Example:
        >>> import torch, vllm_ir as ir
        >>> ir.ops.rms_norm(torch.tensor([[3.0, 4.0]]), None, 0.0)
        tensor([[0.8485, 1.1314]])
    """
    _check("rms_norm", x, weight, variance_size)
    return _normalise(x.to(torch.float32), x.dtype, weight, epsilon, variance_size)


@register_op(activations=["x", "x_residual"], allow_inplace=True)
def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Residual addition and `rms_norm` of the sum, in one op.

    `s = float32(x) + float32(x_residual)`. The unrounded `s` feeds the variance and the norm; the
    second result is `s` rounded to x's dtype. The weight rule is that of `rms_norm`.

    With `maybe_inplace` both activations are donated: they may be overwritten, and the results may
    be those very tensors. They must not be used afterwards.

    Args:
        x: (..., hidden_size), any floating dtype, any strides.
        x_residual: x's shape and device; any floating dtype.
        weight: (hidden_size,), any floating dtype, or None for no scaling.
        epsilon: Added to the variance; >= 0.
        variance_size: As in `rms_norm`.

    Returns:
        The norm and the sum, each (..., hidden_size) in x's dtype. The default overload returns
        new tensors.

    Raises:
        IrTypeError: x, x_residual or weight is not floating-point.
        IrValueError: As in `rms_norm`, or x_residual has another shape than x.

    Example:
        >>> import torch, vllm_ir as ir
        >>> x, r = torch.ones(1, 2), torch.ones(1, 2)
        >>> ir.ops.fused_add_rms_norm(x, r, None, 0.0)
        (tensor([[1., 1.]]), tensor([[2., 2.]]))
    """
    _check("fused_add_rms_norm", x, weight, variance_size)
    if not x_residual.is_floating_point():
        raise IrTypeError(
            "vllm_ir.fused_add_rms_norm: x_residual must be a floating-point tensor, "
            f"got {dtype_name(x_residual.dtype)}."
        )
    if x_residual.shape != x.shape:
        raise IrValueError(
            f"vllm_ir.fused_add_rms_norm: x_residual must have x's shape {tuple(x.shape)}, "
            f"got {tuple(x_residual.shape)}."
        )
    total = x.to(torch.float32) + x_residual.to(torch.float32)
    return _normalise(total, x.dtype, weight, epsilon, variance_size), total.to(x.dtype, copy=True)


# A sum of some thousand float16 products may differ by more than one place in another order.
rms_norm.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3)
fused_add_rms_norm.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3)


@rms_norm.register_input_generator
def _rms_norm_inputs(
    num_tokens: int = 4,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor, float, None]:
    x = torch.randn(num_tokens, hidden_size, dtype=torch.float32, device=device).to(dtype)
    weight = torch.randn(hidden_size, dtype=torch.float32, device=device).to(dtype)
    return x, weight, epsilon, None


@fused_add_rms_norm.register_input_generator
def _fused_add_rms_norm_inputs(
    num_tokens: int = 4,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor, float, None]:
    x, weight, _, _ = _rms_norm_inputs(num_tokens, hidden_size, dtype, device)
    return x, torch.randn_like(x, dtype=torch.float32).to(dtype), weight, epsilon, None
