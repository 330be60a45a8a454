# SPDX-License-Identifier: Apache-2.0
"""The ops that bench_dispatch.py calls: one op for each configuration, each with a fixed list.

So all configurations can be timed against each other in one process.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from extension import load_extension
from torch import Tensor

import vllm_ir as ir
from vllm_ir import rules

ENTRIES = "vllm_ir_bench::"
CHOSEN = "chosen"  # the provider that a row is about; it is the last of its list

HALF_RULE = rules.dtype("x", torch.float16, torch.bfloat16)
RESULT = torch.zeros(1, 16)


def norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """The meaning of the ops."""
    return F.rms_norm(x, (x.shape[-1],), weight, epsilon)


def fused_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The meaning of the op with a residual."""
    total = x + x_residual
    return F.rms_norm(total, (x.shape[-1],), weight, epsilon), total


def trivial(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """A Python impl without work; returning an argument would mean a copy."""
    return RESULT


def is_half(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    """A Python callable that rejects float32."""
    return x.dtype in (torch.float16, torch.bfloat16)


def load_counterparts() -> ModuleType:
    """Build dispatch_bench.cpp and make its entries known to the package."""
    roots = [Path(root) / "include" for root in ir.__path__]  # an editable install has two
    module = load_extension("dispatch_bench", [root for root in roots if root.is_dir()])
    ir.load_entries(str(module.__file__))
    return module


def make_op(name: str, body: str | Callable[..., Any], rejecting: int = 0, **how: Any) -> ir.IrOp:
    """Register an op whose last impl is `body`, behind others that reject float32.

    Args:
        name: of the op.
        body: an entry of dispatch_bench.cpp, or a Python function.
        rejecting: number of impls in front of it.
        how: how they reject: `supports_args=..., memoise=...`.
    """
    op: ir.IrOp = ir.register_op(name=name)(norm)
    providers = [f"no_{index}" for index in range(rejecting)] + [CHOSEN]
    for provider in providers[:-1]:
        op.register_impl(provider, **how)(trivial)
    if isinstance(body, str):
        op.register_impl(CHOSEN, entry=ENTRIES + body)(norm)
    else:
        op.register_impl(CHOSEN)(body)
    op.set_default(providers)
    return op


def make_fused_op(name: str) -> ir.IrOp:
    """Register an op over the in-place kernel."""
    op: ir.IrOp = ir.register_op(name=name, allow_inplace=True)(fused_norm)
    op.register_impl(CHOSEN, entry=ENTRIES + "fused_add_", inplace=True)(fused_norm)
    op.set_default([CHOSEN])
    return op
