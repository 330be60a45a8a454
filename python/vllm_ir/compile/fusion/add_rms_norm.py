# SPDX-License-Identifier: Apache-2.0
"""The pass `add_rms_norm`: a residual addition and the norm of the sum become one op.

Before: `s = x + r; y = rms_norm(s, weight, epsilon, variance_size)`
After:  `y, s = fused_add_rms_norm(x, r, weight, epsilon, variance_size)`

The sum may be read by anything else: it is the second result. Where Inductor has put the addition
into the matrix product in front of it (`addmm`), the two are taken apart again, as they were
written.

In float32 native gives the same bits either way. In float16 and bfloat16 the addition rounds the
sum before the norm reads it, and the fused op doesn't. Inductor leaves out that rounding too when
it fuses the two itself, so the pass runs; with `strict_numerics` it leaves them apart, and says so.
A sum in another dtype stays: the fused op adds in float32. Where a kernel comes first for
`rms_norm` and another one for the fused op, the two are left apart: no choice is passed over.
"""

from typing import Any

import torch
from torch import Tensor

from vllm_ir.compile.fusion.patterns import (
    CallFunction,
    KeywordArg,
    Match,
    MultiOutputPattern,
    call,
    register_fusion,
)
from vllm_ir.compile.graph import value_of
from vllm_ir.compile.likeness import same_numbers
from vllm_ir.dtypes import dtype_name
from vllm_ir.op import IrOp
from vllm_ir.selection import Selection

_EXACT = {torch.float32}
_ROUNDED = {torch.float16, torch.bfloat16}

_total = call(torch.ops.aten.add.Tensor, KeywordArg("x"), KeywordArg("x_residual"))
_product = call(
    torch.ops.aten.addmm.default, KeywordArg("x_residual"), KeywordArg("mat1"), KeywordArg("mat2")
)


def _norm(total: CallFunction) -> MultiOutputPattern:
    """Return the pattern of a sum and its norm."""
    captured = map(KeywordArg, ("weight", "epsilon", "variance_size"))
    return MultiOutputPattern([call(IrOp.registry["rms_norm"], total, *captured), total])


def _why_not(match: Match) -> str:
    residual = match.values["x_residual"]
    x = match.values["x"] if "x" in match.values else value_of(match.nodes[0])
    if not isinstance(x, Tensor) or not isinstance(residual, Tensor):
        return "a number is added, not a residual"
    if x.dtype is not residual.dtype:
        return f"the addends are {dtype_name(x.dtype)} and {dtype_name(residual.dtype)}"
    if not same_numbers(x.shape, residual.shape):
        return f"the addition broadcasts {list(x.shape)} and {list(residual.shape)}"
    if x.dtype in _ROUNDED and match.config.strict_numerics:
        return (
            f"strict_numerics: the addition rounds the sum to {dtype_name(x.dtype)} before the "
            "norm reads it, the fused op doesn't"
        )
    if x.dtype not in _EXACT | _ROUNDED:
        return f"the sum is {dtype_name(x.dtype)}, and the fused op adds in float32"
    return _other_provider(match.selection)


def _other_provider(selection: Selection) -> str:
    """Why fusing would pass over a kernel that comes first for the norm, or ""."""
    norm, fused = IrOp.registry["rms_norm"], IrOp.registry["fused_add_rms_norm"]
    first, other = selection.providers(norm)[0], selection.providers(fused)[0]
    if first in ("native", other):
        return ""
    return f"'{first}' comes first for rms_norm, and '{other}' for fused_add_rms_norm"


@register_fusion("add_rms_norm", _norm(_total), _norm(_product), check=_why_not)
def add_rms_norm(
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: Any,
    x: Tensor | None = None,
    mat1: Tensor | None = None,
    mat2: Tensor | None = None,
) -> Any:
    """Return the norm and the sum."""
    if mat1 is not None and mat2 is not None:
        x = torch.mm(mat1, mat2)
    return IrOp.registry["fused_add_rms_norm"](x, x_residual, weight, epsilon, variance_size)
