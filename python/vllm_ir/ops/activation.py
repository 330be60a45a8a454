# SPDX-License-Identifier: Apache-2.0
"""Gated activations. The functions are the meaning of their ops, roundings included."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vllm_ir.declare import register_op
from vllm_ir.dtypes import dtype_name
from vllm_ir.errors import IrTypeError, IrValueError

_SQRT_HALF = math.sqrt(0.5)
_TWICE_SQRT_2_OVER_PI = 2 * math.sqrt(2 / math.pi)


def _check(op: str, x: Tensor) -> None:
    if x.dim() == 0:
        raise IrValueError(
            f"vllm_ir.{op}: x must have at least one dimension, got a scalar tensor of shape ()."
        )
    if not x.is_floating_point():
        raise IrTypeError(
            f"vllm_ir.{op}: x must be a floating-point tensor, got {dtype_name(x.dtype)}."
        )
    if x.shape[-1] % 2 != 0:
        raise IrValueError(
            f"vllm_ir.{op}: the last dimension of x must be even (gate, then up), "
            f"got {x.shape[-1]}."
        )


def check_approximate(approximate: str) -> None:
    """Raise IrValueError unless gelu_and_mul knows this approximation."""
    if approximate not in ("none", "tanh"):
        raise IrValueError(
            f"vllm_ir.gelu_and_mul: approximate must be 'none' or 'tanh', got '{approximate}'."
        )


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    d = x.shape[-1] // 2
    return x[..., :d], x[..., d:]


def _times(activated: Tensor, up: Tensor) -> Tensor:
    """Round a float32 activation to up's dtype and multiply in that dtype.

    The product is written in float32, which holds it as exactly as a multiplication in a narrower
    dtype does before it rounds; so dtypes that have no multiplication work too.
    """
    wide = torch.float64 if up.dtype is torch.float64 else torch.float32
    product = activated.to(up.dtype).to(wide) * up.to(wide)
    if up.dtype.itemsize == 1:  # float8: what its cast does with larger values depends on torch
        limit = torch.finfo(up.dtype).max
        product = product.clamp(-limit, limit)
    return product.to(up.dtype)


@register_op
def silu_and_mul(x: Tensor) -> Tensor:
    """Gate with SiLU: `silu(x[..., :d]) * x[..., d:]`, where `silu(g) = g / (1 + exp(-g))`.

    The activation of SwiGLU feed-forward layers. Rounding points: silu is computed in float32 and
    rounded to x's dtype, then the product is rounded to x's dtype. For float32, float16 and
    bfloat16 that is `F.silu(gate) * up`, bit for bit. A float8 result is clamped to the finite
    values of its dtype. NaN stays NaN, silu(inf) is inf and silu(-inf) is NaN, as in torch.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020 (arXiv:2002.05202).

    Args:
        x: (..., 2 * d), any floating dtype, any strides: the gate, then what it is multiplied
            with. Not modified.

    Returns:
        (..., d), x's dtype and device. Never an alias of x.

    Raises:
        IrTypeError: x is not floating-point.
        IrValueError: x has no dimension, or its last one is odd.

    Example:
        >>> import torch, vllm_ir as ir
        >>> ir.ops.silu_and_mul(torch.tensor([[0.0, 1.0, 5.0, 2.0]]))
        tensor([[0.0000, 1.4621]])
    """
    _check("silu_and_mul", x)
    gate, up = _halves(x)
    return _times(F.silu(gate.to(torch.float32)), up)


@register_op
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gate with GELU: `gelu(x[..., :d]) * x[..., d:]`.

    The activation of GEGLU feed-forward layers. With `approximate="none"`,
    `gelu(g) = g * P(normal deviate < g) = 0.5 * g * erfc(-g / sqrt(2))`; with "tanh",
    `gelu(g) = 0.5 * g * (1 + tanh(u)) = g * sigmoid(2 * u)`, where
    `u = sqrt(2 / pi) * (g + 0.044715 * g**3)`.

    Rounding points: gelu is computed in float32 by the right-hand forms and rounded to x's dtype,
    then the product is rounded to x's dtype. These forms keep their digits where `1 + erf` and
    `1 + tanh` cancel, g far below zero: `F.gelu` is off by up to 2e-6 there, which is more than
    the value. A float8 result is clamped to the finite values of its dtype. NaN stays NaN,
    gelu(inf) is inf and gelu(-inf) is NaN.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020 (arXiv:2002.05202).

    Args:
        x: (..., 2 * d), any floating dtype, any strides: the gate, then what it is multiplied
            with. Not modified.
        approximate: "none" or "tanh".

    Returns:
        (..., d), x's dtype and device. Never an alias of x.

    Raises:
        IrTypeError: x is not floating-point.
        IrValueError: x has no dimension, its last one is odd, or approximate is another text.

    Example:
        >>> import torch, vllm_ir as ir
        >>> x = torch.tensor([[0.0, 1.0, 5.0, 2.0]])
        >>> ir.ops.gelu_and_mul(x), ir.ops.gelu_and_mul(x, "tanh")
        (tensor([[0.0000, 1.6827]]), tensor([[0.0000, 1.6824]]))
    """
    _check("gelu_and_mul", x)
    check_approximate(approximate)
    gate, up = _halves(x)
    g = gate.to(torch.float32)
    if approximate == "none":
        return _times(0.5 * g * torch.erfc(g * -_SQRT_HALF), up)
    twice_u = (g + 0.044715 * (g * g * g)) * _TWICE_SQRT_2_OVER_PI
    return _times(g * torch.sigmoid(twice_u), up)


def _inputs(
    num_tokens: int = 4,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[Tensor]:
    """`hidden_size` is the width of the result."""
    x = torch.randn(num_tokens, 2 * hidden_size, dtype=torch.float32, device=device)
    return (x.to(dtype),)


silu_and_mul.register_input_generator(_inputs)
gelu_and_mul.register_input_generator(_inputs)
