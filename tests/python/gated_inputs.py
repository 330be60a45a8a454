# SPDX-License-Identifier: Apache-2.0
"""The gated activations as cases, and their arguments."""

from dataclasses import dataclass

import torch
from norm_inputs import values_of
from torch import Tensor

import vllm_ir as ir
from vllm_ir import testing
from vllm_ir.testing import Truth


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


def truth_of(gated: Gated, x: Tensor) -> Truth:
    """Compute in float64 from the definition."""
    return testing.truth_of(gated.op.name, (x, *gated.more))[0]
