# SPDX-License-Identifier: Apache-2.0
"""What exact arithmetic gives for an op of the package, and how far a right result may be from it.

Native is the meaning, roundings included, but it rounds too: agreement with it alone would not show
an error that both share.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vllm_ir.errors import UnknownNameError, unknown_name


@dataclass(frozen=True)
class Truth:
    """One result in float64.

    Attributes:
        value: What exact arithmetic gives.
        bound: How far a right result may be from it, value by value.
    """

    value: Tensor
    bound: Tensor

    def inside(self, dtype: torch.dtype) -> Tensor:
        """Return where the value stays inside of a dtype, NaN and infinities left out."""
        return (self.value.abs() + self.bound) < torch.finfo(dtype).max

    def distance(self, got: Tensor) -> float:
        """Return the largest error in units of the bound: above 1 the result is wrong.

        Only values inside of the dtype of the result count; a NaN in place of one is infinitely
        wrong.

        Example:
            >>> import torch
            >>> from vllm_ir.testing import truth_of
            >>> args = (torch.tensor([[3.0, 4.0]]), None, 0.0)
            >>> truth_of("rms_norm", args)[0].distance(torch.tensor([[0.8485281, 1.1313708]])) < 1
            True
        """
        off = ((got.double() - self.value).abs() / self.bound)[self.inside(got.dtype)]
        return float(off.nan_to_num(nan=math.inf, posinf=math.inf).max()) if off.numel() else 0.0


def truth_of(op_name: str, args: tuple[Any, ...]) -> tuple[Truth, ...]:
    """Compute the results of an op of the package in float64 from its definition.

    Args:
        op_name: One of `rms_norm`, `fused_add_rms_norm`, `silu_and_mul`, `gelu_and_mul`.
        args: The op's arguments, by position; defaults may be left out.

    Raises:
        UnknownNameError: Another op.
    """
    if op_name == "rms_norm":
        x, *more = args
        return (_norm(x, x.float().double(), *more),)
    if op_name == "fused_add_rms_norm":
        x, residual, *more = args
        total = x.float().double() + residual.float().double()
        u = _roundoff(torch.float32) + _roundoff(x.dtype)
        bound = 1.02 * u * total.abs() + 2 * _smallest(x.dtype)
        return _norm(x, total, *more), Truth(total, bound)
    if op_name in _ACTIVATIONS:
        return (_gated(op_name, *args),)
    known = ("rms_norm", "fused_add_rms_norm", *_ACTIVATIONS)
    raise UnknownNameError(unknown_name("vllm_ir.testing.truth_of", "op", op_name, known))


def _norm(
    x: Tensor, s: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Truth:
    """Normalise `s`, which is x or the sum, with a bound on the rounding errors.

    The bound adds up what the docstrings of the ops say: u is the unit roundoff of a dtype, half
    the distance from 1 to the next value.
    - A sum of n squares in float32: at most n u, and in practice sqrt(n) u times a small constant
      (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019, where 8
      makes a failure as rare as 1e-13). The root halves it. Adding epsilon, the division by n, the
      root and the multiplication by x are one u each, two for a fast root.
    - For the fused op the sum of both activations is one more u of float32.
    - Rounding to weight's dtype, the multiplication in it and rounding to x's dtype: one u each.
    - What underflows is off by one smallest value of the dtype it is rounded to, times the weight.
    """
    n = x.shape[-1] if variance_size is None else variance_size
    y = s / (s[..., :n].square().mean(-1, keepdim=True) + epsilon).sqrt()
    u32, ux = _roundoff(torch.float32), _roundoff(x.dtype)
    relative = min(n, 8 * n**0.5) * u32 / 2 + 8 * u32 + ux
    underflow = torch.full_like(y, 2 * (_smallest(torch.float32) + _smallest(x.dtype)))
    if weight is not None:
        wide = weight.double()
        relative += 2 * _roundoff(weight.dtype)
        underflow = underflow + _smallest(weight.dtype) * (wide.abs() + 1)
        y = y * wide
    return Truth(y, 1.02 * relative * y.abs() + underflow)


def _silu(g: Tensor) -> Tensor:
    return g / (1 + (-g).exp())


def _gelu(g: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return g / (1 + (-math.sqrt(8 / math.pi) * (g + 0.044715 * g**3)).exp())
    return 0.5 * g * torch.erfc(-g / math.sqrt(2))


_ACTIVATIONS = {"silu_and_mul": _silu, "gelu_and_mul": _gelu}


def _gated(op_name: str, x: Tensor, *more: str) -> Truth:
    """Gate: two roundings to the dtype, and those of float32 before, in a relative bound.

    It holds far below 0 too: the arguments of exp and erfc grow to 60 there, and so does the effect
    of their roundings.
    """
    gate, up = x.double().chunk(2, dim=-1)
    value = _ACTIVATIONS[op_name](gate, *more) * up
    relative = 1.1 * (torch.finfo(x.dtype).eps + 160 * torch.finfo(torch.float32).eps)
    inner = torch.float32 if x.dtype is torch.float64 else x.dtype
    return Truth(value, relative * value.abs() + torch.finfo(inner).tiny)


def _roundoff(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def _smallest(dtype: torch.dtype) -> float:
    finfo = torch.finfo(dtype)
    return finfo.tiny * finfo.eps  # the smallest subnormal
