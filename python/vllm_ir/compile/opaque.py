# SPDX-License-Identifier: Apache-2.0
"""Implementations that must run as they are: as one operator that no compiler looks into.

Generated code chooses loops and threads by the shape, so the order of a reduction depends on the
batch: Inductor's C++ code splits a single row between threads and leaves many rows whole. Where
batch invariance is asked for, what would be generated runs as eager operators instead.
"""

import functools
import threading
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from vllm_ir.compile.graph import torchs_operator
from vllm_ir.impl import IrOpImpl
from vllm_ir.op import IrOp
from vllm_ir.selection import Selection

_NAMESPACE = "vllm_ir_eager"
_MOVES = {f"aten::{n}" for n in ("clone", "empty", "empty_like", "empty_strided", "new_empty")}
_Library: Any = torch.library.Library  # torch gives it no types
_library = _Library(_NAMESPACE, "FRAGMENT")
_lock = threading.RLock()


def is_generated(traced: fx.GraphModule) -> bool:
    """Whether a compiler would write code for something that the traced function computes."""
    return any(
        operator is not None and not operator.is_view and operator._schema.name not in _MOVES
        for operator in map(torchs_operator, traced.graph.nodes)
    )


def eager_operator(impl: IrOpImpl) -> OpOverload[..., Any]:
    """Return an operator that runs an implementation's function, out of place."""
    with _lock:
        return _define(impl)


def define_eager_operators(selection: Selection) -> None:
    """Define the operators of all implementations that may run, for code that comes from a cache.

    It calls them by name, and where it was lowered is another process.
    """
    for op in list(IrOp.registry.values()):
        for provider in {*selection.providers(op), "native"}:
            eager_operator(op.impls[provider])


@functools.cache
def _define(impl: IrOpImpl) -> OpOverload[..., Any]:
    name = f"{impl.op.name}_BY_{impl.provider}"  # no name of ours has a capital letter
    _library.define(name + impl.op._schema.text)
    _library.impl(name, functools.partial(_run, impl), "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"{_NAMESPACE}::{name}", lambda *args, **kw: impl.op._fake(*args, **kw), lib=_library
    )
    found: OpOverload[..., Any] = getattr(torch.ops.vllm_ir_eager, name).default
    return found


def _run(impl: IrOpImpl, *args: Any, **kwargs: Any) -> Any:
    given = impl.op.bind(*args, **kwargs)
    mine = list(given)
    if impl.inplace:
        for i, name in enumerate(impl.op.signature.parameters):
            if name in impl.op.activations and isinstance(mine[i], Tensor):
                mine[i] = mine[i].clone()
    result = impl.impl_fn(*mine)
    if isinstance(result, Tensor):
        return _own(result, given)
    return tuple(_own(r, given) for r in result)


def _own(result: Tensor, given: tuple[Any, ...]) -> Tensor:
    """Return the result, or a copy where it is the memory of an argument."""
    storage = result.untyped_storage()._cdata
    theirs = (a.untyped_storage()._cdata for a in given if isinstance(a, Tensor))
    return result.clone() if storage in theirs else result
