# SPDX-License-Identifier: Apache-2.0
"""Results of the bodies of higher-order operators keep the place in memory that they had.

The branches of `torch.cond` must give results of one layout, storage offset included, and torch
has planned with it. An implementation may return a piece of a larger buffer, and an in-place one
that works on a slice returns the slice: the offset is then another one.

Before: a graph whose bodies, which are graphs of their own, are lowered.
After: each result of a body lies where it lay before lowering, by a copy where need be.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from vllm_ir.compile.graph import is_higher_order, value_of
from vllm_ir.compile.layout import copy_of, insert_call, restride
from vllm_ir.compile.likeness import same_strides

_RESULTS = "vllm_ir_results"


def note_results(graph: fx.Graph) -> None:
    """Take down where the results of a graph lie, before anything changes: it may be a body."""
    output = graph.output_node()
    output.meta[_RESULTS] = [value_of(n) for n in output.all_input_nodes]


def mend_bodies(graph: fx.Graph) -> None:
    """Put the results of every body of a graph back to where they lay."""
    for body in _bodies(graph):
        output = body.output_node()
        noted = output.meta.pop(_RESULTS, None)
        if noted is None:
            continue  # it calls no op
        results = output.all_input_nodes
        moved = {n: _put_back(body, n, w) for n, w in zip(results, noted, strict=True)}
        output.args = fx.map_arg(output.args, moved.__getitem__)


def _bodies(graph: fx.Graph) -> Iterator[fx.Graph]:
    for node in graph.nodes:
        if not is_higher_order(node):
            continue
        for argument in node.all_input_nodes:
            if argument.op == "get_attr":
                body = getattr(graph.owning_module, str(argument.target), None)
                if isinstance(body, fx.GraphModule):
                    yield body.graph


def _put_back(body: fx.Graph, node: fx.Node, want: Any) -> fx.Node:
    got = value_of(node)
    if not isinstance(want, Tensor) or not isinstance(got, Tensor):
        return node
    if statically_known_true(got.storage_offset() == want.storage_offset()):
        return node
    if not _is_static(want) and not statically_known_true(want.storage_offset() == 0):
        return node  # torch says that the branches differ
    output = body.output_node()
    copy = copy_of(body, output, node, like=node)
    if not same_strides(want, value_of(copy)):
        copy = restride(body, output, copy, want, like=node)
    if statically_known_true(want.storage_offset() == 0):
        return copy
    # A view of what an op made: it gets its place in a larger memory.
    place = (list(want.shape), list(want.stride()), want.storage_offset())
    size = want.storage_offset() + _extent(want)
    options = {"dtype": want.dtype, "device": want.device}
    memory = _call(body, torch.ops.aten.empty.memory_format, ([size],), options)
    filled = _call(body, torch.ops.aten.as_strided_scatter.default, (memory, copy, *place))
    return _call(body, torch.ops.aten.as_strided.default, (filled, *place))


def _is_static(t: Tensor) -> bool:
    return all(isinstance(n, int) for n in (*t.shape, *t.stride(), t.storage_offset()))


def _extent(t: Tensor) -> Any:
    return 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))


def _call(
    body: fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> fx.Node:
    return insert_call(body, body.output_node(), target, args, kwargs=kwargs)
