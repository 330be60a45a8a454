# SPDX-License-Identifier: Apache-2.0
"""What passes ask of symbolic sizes, as texts that outlive the process.

A fusion that was asked for may guard a size ("the number of rows is even"). The caches then hold
several results for one graph, each with its guards, and each has a report of its own.
"""

from collections.abc import Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch import SymInt, fx
from torch.utils._sympy import functions

from vllm_ir.compile.graph import tensors_of, value_of


def guards_of(graph: fx.Graph) -> list[str]:
    """Return everything that has been asked so far of the symbolic sizes in a graph."""
    for node in graph.nodes:
        for n in _sizes(node):
            if isinstance(n, SymInt):
                return [str(guard.expr) for guard in n.node.shape_env.guards]
    return []


def sizes_of(graph: fx.Graph) -> dict[str, int]:
    """Return the symbolic sizes of a graph's inputs by name, as they are in this call."""
    found: dict[str, int] = {}
    for node in graph.find_nodes(op="placeholder"):
        for n in _sizes(node):
            if isinstance(n, SymInt) and n.node.expr.is_Symbol and n.node.hint is not None:
                found[str(n.node.expr)] = int(n.node.hint)
    return found


def hold(guards: list[str], sizes: Mapping[str, int]) -> bool:
    """Whether sizes are known to meet all guards."""
    names: dict[str, Any] = {**vars(functions), **{n: sympy.Integer(v) for n, v in sizes.items()}}
    return all(sympy.sympify(guard, locals=names) == sympy.true for guard in guards)


def _sizes(node: fx.Node) -> list[Any]:
    value = value_of(node)
    if isinstance(value, SymInt):
        return [value]
    return [n for t in tensors_of(node) for n in (*t.shape, *t.stride(), t.storage_offset())]
