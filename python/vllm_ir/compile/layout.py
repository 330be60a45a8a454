# SPDX-License-Identifier: Apache-2.0
"""Nodes that bring the layout of a value in line with another one's.

A value that takes the place of another one must look like it: what reads it was traced so.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from vllm_ir.compile.graph import copy_provenance, value_of
from vllm_ir.compile.likeness import same_strides
from vllm_ir.compile.trace import fake_world, nodes_in

aten = torch.ops.aten
CLONE = aten.clone.default


_ABSOLUTE = {
    *(aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default),
    aten.as_strided_.default,
}


def same_place(want: Tensor, got: Tensor, graph: fx.Graph) -> bool:
    """Whether a value may lie at another offset of its memory than it was traced with.

    It may, except where the graph addresses memory absolutely: by `as_strided` of a computed value.
    """
    if statically_known_true(want.storage_offset() == got.storage_offset()):
        return True
    return not any(
        node.target in _ABSOLUTE and node.all_input_nodes[0].op != "placeholder"
        for node in graph.nodes
    )


def restride(
    graph: fx.Graph, before: fx.Node, new: fx.Node, want: Tensor, like: fx.Node | None = None
) -> fx.Node:
    """Return a node with the value of `new` and the strides of `want`, in memory of its own.

    Plain operators say so. Inductor's `inductor_force_stride_order` would look at the order of the
    strides only, and let a value with gaps, or a view of an argument, pass as it is.

    Args:
        graph: Gets the nodes, in front of `before`.
        before: Where to put them.
        new: The value.
        want: Has the strides.
        like: What the node stands for, `before` by default.
    """

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return insert_call(graph, before, target, args, like, kwargs)

    repeated = [d for d, n in enumerate(want.stride()) if statically_known_true(n == 0)]
    for d in repeated:
        new = call(aten.slice.Tensor, new, d, 0, 1)
    dims = list(range(want.dim()))
    order = sorted(dims, key=lambda d: -_hint(want.stride(d)))
    made = new if order == dims else call(aten.permute.default, new, order)
    made = call(CLONE, made, memory_format=torch.contiguous_format)
    if order != dims:
        made = call(aten.permute.default, made, [order.index(d) for d in dims])
    if repeated:
        made = call(aten.expand.default, made, list(want.shape))
    return made if same_strides(want, value_of(made)) else _with_gaps(call, made, want)


def _with_gaps(call: Callable[..., fx.Node], value: fx.Node, want: Tensor) -> fx.Node:
    """Return a view with these strides of a larger memory, filled with the value."""
    size, stride = list(want.shape), list(want.stride())
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    memory = call(aten.empty.memory_format, [extent], dtype=want.dtype, device=want.device)
    filled = call(aten.as_strided_scatter.default, memory, value, size, stride, 0)
    return call(aten.as_strided.default, filled, size, stride, 0)


def _hint(n: Any) -> int:
    """Return a number to sort a stride by, without a guard on it."""
    known = n if isinstance(n, int) else n.node.hint
    return int(known) if known is not None else 0


def copy_of(graph: fx.Graph, before: fx.Node, new: fx.Node, like: fx.Node | None = None) -> fx.Node:
    """Return a node with the value of `new` in memory of its own; arguments as of `restride`."""
    return insert_call(graph, before, CLONE, (new,), like)


def insert_call(
    graph: fx.Graph,
    before: fx.Node,
    target: Any,
    args: tuple[Any, ...],
    like: fx.Node | None = None,
    kwargs: dict[str, Any] | None = None,
) -> fx.Node:
    """Return a new call with its fake value; the other arguments as of `restride`."""
    values = [value_of(n) for n in [before, *nodes_in(args)]]
    with graph.inserting_before(before), fake_world(values):
        made = graph.call_function(target, args, kwargs)
        made.meta["val"] = target(*fx.map_arg(args, value_of), **(kwargs or {}))
    copy_provenance(like or before, made)
    return made
