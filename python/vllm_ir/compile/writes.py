# SPDX-License-Identifier: Apache-2.0
"""What a call of a Dynamo graph writes.

Operators say it in their schemas. Python functions and methods say it by their names: `add_`,
`iadd`, `setitem`; by `out=`; or by a parameter `inplace`.
"""

import inspect
from collections.abc import Callable
from typing import Any

from torch import fx
from torch._ops import OpOverload

from vllm_ir.compile.graph import written_args
from vllm_ir.compile.trace import nodes_in

_WRITING = {
    *("setitem", "__setitem__", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"),
    *("iand", "ior", "ixor", "ilshift", "irshift", "imatmul"),
    *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"),
    *("__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
}


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """Return the arguments whose memory a node writes."""
    if node.op not in ("call_function", "call_method"):
        return []
    if isinstance(node.target, OpOverload):
        return written_args(node)
    out = nodes_in((node.kwargs.get("out"),))
    return out + (nodes_in(node.args[:1]) if _writes_first(node) else [])


def _writes_first(node: fx.Node) -> bool:
    target = node.target
    name = target if isinstance(target, str) else str(getattr(target, "__name__", ""))
    if name in _WRITING or (name.endswith("_") and not name.endswith("__")):
        return True
    return not isinstance(target, str) and _is_inplace(target, node)


def _is_inplace(target: Callable[..., Any], node: fx.Node) -> bool:
    """Whether a function like `torch.nn.functional.relu` was told to work in place."""
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return False  # of C: `relu_` is another function
    position = names.index("inplace") if "inplace" in names else len(node.args)
    return position < len(node.args) and bool(node.args[position])
