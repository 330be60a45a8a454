# SPDX-License-Identifier: Apache-2.0
"""Where the replacement of several nodes can stand.

It needs its arguments, and whoever reads what it replaces needs it. When an argument is computed
from what is replaced, there is no such place: fusing would close a circle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from vllm_ir.compile.graph import ir_call, written_args
from vllm_ir.compile.hoist import may_move


@dataclass(frozen=True)
class Place:
    """A place for new nodes.

    Attributes:
        before: They go in front of this node.
        delayed: Nodes to be moved behind them, in order: they read what is replaced.
    """

    before: fx.Node
    delayed: tuple[fx.Node, ...]


def find_place(matched: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> Place | str:
    """Return where the replacement of the matched nodes can stand, or why it can't.

    Args:
        matched: All nodes that are replaced.
        inputs: What the replacement reads.
    """
    last = max(matched)
    replaced = set(matched)
    reached = set(matched)  # computed from what is replaced
    delayed: list[fx.Node] = []
    node = min(matched)
    while True:
        if node not in replaced:
            if written_args(node):
                return f"'{node.name}' writes memory in between"
            if any(a in reached for a in node.all_input_nodes):
                reached.add(node)
                delayed.append(node)
        if node is last:
            break
        node = node.next
    for argument in inputs:
        if argument in replaced:
            return f"'{argument.name}' is an argument of what would replace it"
        if argument in reached:
            return f"its argument '{argument.name}' is computed from what would be replaced"
    if not delayed:
        return Place(last, ())
    if all(argument < delayed[0] for argument in inputs):
        return Place(delayed[0], ())
    for node in delayed:
        if ir_call(node) is None and not may_move(node):
            return f"'{node.name}' stands in between and can't be moved"
    return Place(last, tuple(delayed))
