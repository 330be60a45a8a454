# SPDX-License-Identifier: Apache-2.0
"""What reads memory that a kernel overwrites later is computed in front of that kernel.

Inductor computes an elementwise value where it is first needed. It knows that this must be in front
of a kernel that writes what the value is computed from, but takes down the kernel first, so that
the value is computed from what was written.

Before: a lowered graph that is right when its nodes run in order.
After: the same, where each value that was computed from such memory, and is used behind the
kernel, goes through `realized`: an operator that does nothing, whose lowering has its argument
computed at once.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from vllm_ir.compile.alias import AliasClasses
from vllm_ir.compile.graph import (
    is_higher_order,
    storages_of,
    torchs_operator,
    value_of,
    written_args,
)
from vllm_ir.compile.inductor_mends import keep_new_names
from vllm_ir.compile.layout import insert_call
from vllm_ir.compile.marks import REALIZED

# Results of these are computed by a call of a library at once.
_CALLS = {
    *("mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_mm", "_int_mm"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
}


def realize_readers(graph: fx.Graph, replaced: list[tuple[Tensor, Tensor]]) -> int:
    """Put `realized` behind each value that must be computed in front of a kernel.

    Args:
        graph: Changed in place.
        replaced: Old and new value of each result that was lowered, for alias analysis.

    Returns:
        How many values were marked.
    """
    kernels = [n for n in graph.nodes if _overwritten(n)]
    if not kernels:
        return 0
    keep_new_names()
    classes = AliasClasses(graph, replaced)
    late = {r: None for kernel in kernels for r in _late_readers(graph, kernel, classes)}
    if late:
        _register_lowering()
    for node in late:
        _mark(graph, node)
    return len(late)


def _overwritten(node: fx.Node) -> list[fx.Node]:
    """Return what a kernel writes, or may write once Inductor puts it in place."""
    if is_higher_order(node):
        return node.all_input_nodes if str(node.target).startswith("auto_functionalized") else []
    # Torch's own operators become code, in their order.
    return [] if torchs_operator(node) else written_args(node)


def _late_readers(graph: fx.Graph, kernel: fx.Node, classes: AliasClasses) -> Iterator[fx.Node]:
    """Yield values computed from what the kernel writes, in front of it, and used behind it."""
    position = classes.order[kernel]
    memory = {m for written in _overwritten(kernel) for m in classes.members(written)}
    readers: set[fx.Node] = set()
    for node in graph.nodes:
        if node is kernel:
            return
        if node in memory or not _waits(node):
            continue
        if any(a in memory or a in readers for a in node.all_input_nodes):
            readers.add(node)
            if any(classes.order[user] > position for user in node.users):
                yield from _behind(node, readers)


def _waits(node: fx.Node) -> bool:
    """Whether Inductor may compute the node's value later than it stands."""
    if node.op != "call_function" or is_higher_order(node):
        return False
    if not isinstance(node.target, OpOverload):
        return True  # getitem
    operator = torchs_operator(node)
    return operator is not None and operator._schema.name.partition("::")[2] not in _CALLS


def _behind(node: fx.Node, readers: set[fx.Node]) -> Iterator[fx.Node]:
    """Yield the value that a view is a view of, else the value itself."""
    sources = [a for a in node.all_input_nodes if a in readers and storages_of(a)]
    shared = [a for a in sources if storages_of(a) & storages_of(node)]
    if shared:
        for source in shared:
            yield from _behind(source, readers)
    elif isinstance(value_of(node), Tensor):
        yield node


def _mark(graph: fx.Graph, node: fx.Node) -> None:
    marked = insert_call(graph, node.next, REALIZED, (node,), like=node)
    node.replace_all_uses_with(marked, delete_user_cb=lambda user: user is not marked)


@functools.cache
def _register_lowering() -> None:
    from torch._inductor.lowering import register_lowering

    def realized(x: Any) -> Any:
        x.realize()
        return x

    register_lowering(torch.ops.vllm_ir_marks.realized, type_promotion_kind=None)(realized)
