# SPDX-License-Identifier: Apache-2.0
"""Move readers of an old value in front of the op that may overwrite it.

Inductor sorts a graph for locality and may put a reader of `x` behind an op that takes `x`
although nothing says so; lowered to an in-place implementation, that op then needs a copy of `x`.

Before: a functional graph; each op node has a chosen implementation.
After: the same nodes and edges in another topological order, in which as few readers as possible
stand behind an in-place op. Only pure, deterministic operators move, never an op, a collective, a
higher-order operator or a write.
"""

import torch
from torch import fx
from torch._ops import OpOverload

from vllm_ir.compile.alias import AliasClasses
from vllm_ir.compile.graph import activation_args, ir_call
from vllm_ir.op import IrOp

_FIXED_NAMESPACES = {"vllm_ir", "c10d", "_c10d_functional", "c10d_functional"}


def hoist_readers(graph: fx.Graph, inplace_calls: list[tuple[fx.Node, IrOp]]) -> int:
    """Move readers of activations in front of the calls that may overwrite them.

    Args:
        graph: Reordered in place.
        inplace_calls: The nodes that will be lowered to an in-place implementation.

    Returns:
        How many nodes moved.
    """
    moved = 0
    classes = AliasClasses(graph, []) if inplace_calls else None
    for call, op in inplace_calls:
        assert classes is not None
        todo = _movable_readers(graph, call, op, classes)
        for node in todo:
            call.prepend(node)
        if todo:  # positions have changed
            classes = AliasClasses(graph, [])
        moved += len(todo)
    return moved


def _movable_readers(
    graph: fx.Graph, call: fx.Node, op: IrOp, classes: AliasClasses
) -> list[fx.Node]:
    position = classes.order[call]
    readers = {
        reader
        for _, _, arg in activation_args(call, op)
        for reader in classes.readers_after(arg, position)
    }
    if not readers:
        return []
    dependent = _dependents(graph, call, position, classes)
    chosen: set[fx.Node] = set()
    for reader in sorted(readers, key=classes.order.__getitem__):
        needed = _needed(reader, position, classes)
        if all(may_move(n) and n not in dependent for n in needed):
            chosen |= needed
    return sorted(chosen, key=classes.order.__getitem__)


def _dependents(
    graph: fx.Graph, call: fx.Node, position: int, classes: AliasClasses
) -> set[fx.Node]:
    found = {call}
    for node in graph.nodes:
        if classes.order[node] > position and any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found


def _needed(reader: fx.Node, position: int, classes: AliasClasses) -> set[fx.Node]:
    """Return the reader and what it needs of the nodes behind the call."""
    found: set[fx.Node] = set()
    stack = [reader]
    while stack:
        node = stack.pop()
        if node in found or classes.order[node] <= position:
            continue
        found.add(node)
        stack += node.all_input_nodes
    return found


def may_move(node: fx.Node) -> bool:
    """Whether a node gives the same value elsewhere in a graph; of an op, say no."""
    if node.op != "call_function" or ir_call(node) is not None:
        return False
    if not isinstance(node.target, OpOverload):
        return getattr(node.target, "__name__", "") == "getitem"
    if node.target.namespace in _FIXED_NAMESPACES or node.is_impure():
        return False
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not random and not node.target._schema.is_mutable
