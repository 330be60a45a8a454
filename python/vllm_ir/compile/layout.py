# SPDX-License-Identifier: Apache-2.0
"""Sizes and strides of fake tensors, compared without a guard, and nodes that bring them in line.

A value that takes the place of another one must look like it: what reads it was traced so.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from vllm_ir.compile.graph import copy_provenance, value_of
from vllm_ir.compile.trace import fake_world, nodes_in
from vllm_ir.dtypes import dtype_name

CLONE = torch.ops.aten.clone.default


def same_numbers(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two lists of sizes are known to be equal."""
    return len(a) == len(b) and all(
        statically_known_true(x == y) for x, y in zip(a, b, strict=True)
    )


def same_kind(want: Tensor, got: Tensor) -> bool:
    """Whether dtype, device and shape are known to be equal."""
    alike = got.dtype is want.dtype and got.device == want.device
    return alike and same_numbers(got.shape, want.shape)


def same_strides(want: Tensor, got: Tensor) -> bool:
    """Whether tensors of one shape are known to lie alike; strides that never count don't."""
    if any(statically_known_true(n == 0) for n in want.shape):
        return True
    return all(
        statically_known_true(n == 1) or statically_known_true(a == b)
        for n, a, b in zip(want.shape, want.stride(), got.stride(), strict=True)
    )


def shown(t: Tensor) -> str:
    """Return dtype, shape and device for messages."""
    return f"{dtype_name(t.dtype)}{list(t.shape)} on {t.device}"


def restride(
    graph: fx.Graph, before: fx.Node, new: fx.Node, want: Tensor, like: fx.Node | None = None
) -> fx.Node:
    """Return a node with the value of `new` and the strides of `want`.

    Args:
        graph: Gets the node, in front of `before`.
        before: Where to put it.
        new: The value.
        want: Has the strides.
        like: What the node stands for, `before` by default.
    """
    target = torch.ops.prims.inductor_force_stride_order.default
    return _call(graph, before, target, (new, list(want.stride())), like)


def copy_of(
    graph: fx.Graph, before: fx.Node, new: fx.Node, like: fx.Node | None = None
) -> fx.Node:
    """Return a node with the value of `new` in memory of its own; arguments as of `restride`."""
    return _call(graph, before, CLONE, (new,), like)


def _call(
    graph: fx.Graph, before: fx.Node, target: Any, args: tuple[Any, ...], like: fx.Node | None
) -> fx.Node:
    with graph.inserting_before(before), fake_world([value_of(n) for n in nodes_in(args)]):
        made = graph.call_function(target, args)
        made.meta["val"] = target(*fx.map_arg(args, value_of))
    copy_provenance(like or before, made)
    return made
