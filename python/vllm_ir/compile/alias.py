# SPDX-License-Identifier: Apache-2.0
"""Which values of a functional graph may share memory: a union-find over their storages.

The fake tensors of a graph know it, except where a pass has replaced a node: what was computed
from the old value still carries the old storage. So operators' schemas are asked too, and passes
say which old value a new one stands for (`replaced`). Too large a class costs a copy; too small
a one would be wrong.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from vllm_ir.compile.graph import is_higher_order, storage_of, storages_of, tensors_of

# Results of these are their first argument's memory once code is generated, schema or not.
VIEWS_BY_NATURE = {
    *("aten::_unsafe_view", "aten::lift_fresh", "aten::_reshape_alias"),
    "_c10d_functional::wait_tensor",
}

# Functional operators that Inductor runs in place behind our passes, on its own analysis.
_REINPLACED = {
    *("aten::index_put", "aten::_unsafe_index_put"),
    *("aten::slice_scatter", "aten::select_scatter"),
    *("aten::as_strided_scatter", "aten::diagonal_scatter"),
    *("_c10d_functional::all_reduce", "_c10d_functional::all_reduce_coalesced"),
}


class AliasClasses:
    """Classes of values that may share memory; holds for the graph as it is when made.

    Attributes:
        order: Position of each node.
    """

    def __init__(self, graph: fx.Graph, replaced: list[tuple[Tensor, Tensor]]) -> None:
        self._parent: dict[int, int] = {}
        self._kept = replaced  # a storage's identity means something only while it lives
        for old, new in replaced:
            self._union(storage_of(old), storage_of(new))
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self._members: dict[int, list[fx.Node]] = {}
        overwritten = _overwritten_inputs(graph)
        for node in graph.nodes:
            self._join_views(node)
            if overwritten and _may_be_reinplaced(node):
                self._join_inputs(node, overwritten)
        for node in graph.nodes:
            for root in self._roots(node):
                self._members.setdefault(root, []).append(node)

    def members(self, node: fx.Node) -> list[fx.Node]:
        """Return every node whose value may lie in the memory of this one's, itself included."""
        found = {m: None for root in self._roots(node) for m in self._members.get(root, [])}
        return list(found) or [node]

    def merge(self, node: fx.Node, other: fx.Node) -> None:
        """Say that two values are one memory from now on."""
        for a in list(self._roots(node)):
            for b in list(self._roots(other)):
                self._merge_roots(a, b)

    def forget(self, node: fx.Node) -> None:
        """Take out a node that is about to be erased."""
        for root in self._roots(node):
            self._members[root].remove(node)

    def readers_after(self, node: fx.Node, position: int) -> Iterator[fx.Node]:
        """Yield the users, behind a position, of any value that may share the node's memory."""
        for member in self.members(node):
            for user in member.users:
                if self.order[user] > position:
                    yield user

    def _roots(self, node: fx.Node) -> set[int]:
        return {self._find(s) for s in storages_of(node)}

    def _find(self, storage: int) -> int:
        parent = self._parent
        while (up := parent.get(storage, storage)) != storage:
            parent[storage] = storage = parent.get(up, up)
        return storage

    def _union(self, a: int, b: int) -> None:
        a, b = self._find(a), self._find(b)
        if a != b:
            self._parent[a] = b

    def _merge_roots(self, a: int, b: int) -> None:
        a, b = self._find(a), self._find(b)
        if a == b:
            return
        self._parent[a] = b
        inside = self._members.setdefault(b, [])
        inside += [m for m in self._members.pop(a, []) if m not in inside]

    def _join_views(self, node: fx.Node) -> None:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            return
        schema = node.target._schema
        aliased = [r.alias_info is not None for r in schema.returns]
        if schema.name in VIEWS_BY_NATURE:
            sources = [a for a in node.args[:1] if isinstance(a, fx.Node)]
        elif any(aliased):
            positional = zip(schema.arguments, node.args, strict=False)  # defaults are left out
            sources = [
                source
                for argument, value in positional
                if argument.alias_info is not None
                for source in (value if isinstance(value, (tuple, list)) else [value])
                if isinstance(source, fx.Node)
            ]
        else:
            return
        for source in sources:
            for theirs in storages_of(source):
                for mine in storages_of(node):
                    self._union(theirs, mine)

    def _join_inputs(self, node: fx.Node, overwritten: list[fx.Node]) -> None:
        """Take the node's value for the memory of each of these inputs that it may be put into."""
        written = {root for source in overwritten for root in self._roots(source)}
        for given in node.all_input_nodes:
            for root in self._roots(given) & written:
                for mine in storages_of(node):
                    self._union(root, mine)


def _overwritten_inputs(graph: fx.Graph) -> list[fx.Node]:
    """Return the graph inputs that are written at the end: Inductor may write them earlier too."""
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    targets = [n.args[0] for n in copies]
    return [t for t in targets if isinstance(t, fx.Node) and t.op == "placeholder"]


def _may_be_reinplaced(node: fx.Node) -> bool:
    if is_higher_order(node):
        name = str(node.target)
        return name.startswith("auto_functionalized") or name == "triton_kernel_wrapper_functional"
    if not isinstance(node.target, OpOverload):
        return False
    name = node.target._schema.name
    return name in _REINPLACED or name.startswith("aten::_foreach_")


def is_unknown(node: fx.Node) -> bool:
    """Whether nothing is known about the memory of a node's value."""
    has_value = "val" in node.meta or "example_value" in node.meta
    strided = all(t.layout is torch.strided for t in tensors_of(node))
    return node.op != "output" and not (has_value and strided)
