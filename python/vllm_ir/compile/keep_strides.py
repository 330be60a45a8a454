# SPDX-License-Identifier: Apache-2.0
"""A kernel gets its arguments with the strides that its rule saw.

Inductor runs some functional operators in place behind our passes: `index_put`, say. The new value
then has the strides of the one that it is put into, which may have gaps; the graph says that it has
none. An implementation that was chosen for a value without gaps can't take it.

Before: a lowered graph that is right when its nodes run in order, each with the strides it was
traced with.
After: the same; where an operator that no compiler looks into reads a value whose strides may turn
out to be others, it reads a copy, which has the strides that the value was traced with.
"""

import operator
from collections.abc import Iterable

from torch import Tensor, fx
from torch._ops import OpOverload

from vllm_ir.compile.alias import may_be_reinplaced, view_sources
from vllm_ir.compile.graph import is_higher_order, tensors_of, value_of, written_args
from vllm_ir.compile.layout import restride
from vllm_ir.compile.likeness import same_numbers, same_strides


def keep_strides(graph: fx.Graph) -> int:
    """Copy what kernels read where its strides may turn out to be others.

    Args:
        graph: Changed in place.

    Returns:
        How many values were copied.
    """
    loose: set[fx.Node] = set()
    reads: list[tuple[fx.Node, fx.Node]] = []
    for node in graph.nodes:
        if _may_change(node) or any(source in loose for source in _sources(node)):
            loose.add(node)
        elif _is_kernel(node):
            reads += [(node, a) for a in node.all_input_nodes if a in loose]
    copies: dict[fx.Node, fx.Node] = {}
    for kernel, argument in reads:
        if argument in kernel.all_input_nodes and isinstance(value_of(argument), Tensor):
            if argument not in copies:
                copies[argument] = _copy_of(graph, kernel, argument)
            _give(graph, kernel, argument, copies[argument])
    return len(copies)


def _sources(node: fx.Node) -> list[fx.Node]:
    return node.all_input_nodes if node.target is operator.getitem else view_sources(node)


def _may_change(node: fx.Node) -> bool:
    """Whether the node's value may be put into an argument that has other strides."""
    if not may_be_reinplaced(node):
        return False
    given = [t for a in node.all_input_nodes for t in tensors_of(a)]
    return any(not _fits(t, given) for t in tensors_of(node))


def _fits(result: Tensor, given: Iterable[Tensor]) -> bool:
    alike = (t for t in given if same_numbers(t.shape, result.shape))
    return all(same_strides(t, result) for t in alike)


def _is_kernel(node: fx.Node) -> bool:
    """Whether no compiler looks into what the node calls."""
    if is_higher_order(node):
        return str(node.target).startswith(("auto_functionalized", "triton_kernel_wrapper"))
    target = node.target
    return isinstance(target, OpOverload) and target.namespace not in ("aten", "prims")


def _copy_of(graph: fx.Graph, kernel: fx.Node, argument: fx.Node) -> fx.Node:
    return restride(graph, kernel, argument, value_of(argument), like=argument)


def _give(graph: fx.Graph, kernel: fx.Node, argument: fx.Node, copy: fx.Node) -> None:
    """Let a kernel have the copy; what it may write there is read from there."""
    written = is_higher_order(kernel) or argument in written_args(kernel)
    kernel.replace_input_with(argument, copy)
    if written:
        nodes = list(graph.nodes)
        behind = set(nodes[nodes.index(kernel) :])
        argument.replace_all_uses_with(copy, delete_user_cb=behind.__contains__)
