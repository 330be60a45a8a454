# SPDX-License-Identifier: Apache-2.0
"""The ops, by name: `vllm_ir.ops.rms_norm`. Ops declared elsewhere appear here too."""

from typing import TYPE_CHECKING

from vllm_ir.errors import nearest
from vllm_ir.op import IrOp
from vllm_ir.ops.activation import gelu_and_mul, silu_and_mul
from vllm_ir.ops.layernorm import fused_add_rms_norm, rms_norm

__all__ = ["fused_add_rms_norm", "gelu_and_mul", "rms_norm", "silu_and_mul"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> IrOp:
        op = IrOp.registry.get(name)
        if op is None:
            known = ", ".join(sorted(IrOp.registry))
            raise AttributeError(
                f"vllm_ir.ops: unknown op '{name}'. Known: {known}.{nearest(name, IrOp.registry)}"
            )
        return op

    def __dir__() -> list[str]:
        return sorted(IrOp.registry)
