# SPDX-License-Identifier: Apache-2.0
"""The gated activations as cases, their arguments, and their truth."""

import math
from dataclasses import dataclass

import torch
from norm_inputs import values_of
from torch import Tensor

import vllm_ir as ir


@dataclass(frozen=True)
class Gated:
    """One activation: an op with the arguments after x."""

    op: ir.IrOp
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join((self.op.name, *self.more))

    def native(self, x: Tensor) -> Tensor:
        """Return what the op means."""
        return self.op.impls["native"].impl_fn(x, *self.more)


GATED = (
    Gated(ir.ops.silu_and_mul),
    Gated(ir.ops.gelu_and_mul),
    Gated(ir.ops.gelu_and_mul, ("none",)),
    Gated(ir.ops.gelu_and_mul, ("tanh",)),
)
EVERYWHERE = [(gated, provider) for gated in GATED for provider in gated.op.supported_providers()]


def x_of(
    d: int, dtype: torch.dtype = torch.bfloat16, rows: int = 3, kind: str = "normal"
) -> Tensor:
    """Return an x whose halves are `d` wide."""
    return values_of(kind, (rows, 2 * d), dtype, seed=d)


def truth_of(gated: Gated, x: Tensor) -> Tensor:
    """Compute in float64 from the definition."""
    g, up = x.double().chunk(2, dim=-1)
    if gated.op.name == "silu_and_mul":
        return g / (1 + (-g).exp()) * up
    if gated.more == ("tanh",):
        return g / (1 + (-math.sqrt(8 / math.pi) * (g + 0.044715 * g**3)).exp()) * up
    return 0.5 * g * torch.erfc(-g / math.sqrt(2)) * up
