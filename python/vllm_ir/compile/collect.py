# SPDX-License-Identifier: Apache-2.0
"""Bring every op call of a functional graph into one form.

Before: ops appear as `default`, `donated` or, where no functionalisation pass ran in front of
AOTAutograd, as `maybe_inplace` inside `auto_functionalized_v2`; arguments in any form.
After: ops appear as `default` alone, with every argument by position and defaults filled, so that
one pattern fits all. A call that donated its activations says so in its metadata (`is_donating`).
"""

from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import fx

from vllm_ir.compile.graph import (
    activation_args,
    ir_call,
    ir_nodes,
    make_canonical,
    overload,
    value_of,
)
from vllm_ir.compile.marks import FRESH
from vllm_ir.compile.trace import nodes_in, splice

_DONATED = "vllm_ir_donated"
_KEPT = "vllm_ir_kept"
_WRAPPERS = ("auto_functionalized", "auto_functionalized_v2")


def collect(graph: fx.Graph) -> None:
    """Make every op call canonical and mark those that donated their activations."""
    for node in list(graph.nodes):
        if _is_functionalized(node):
            _expand(graph, node)
    for node, op, name in ir_nodes(graph):
        make_canonical(node, op, overload(op, "default"))
        if name == "donated":
            fresh = {n for n, _, arg in activation_args(node, op) if arg.target is FRESH}
            mark_donating(node, fresh)
    for mark in graph.find_nodes(op="call_function", target=FRESH):
        mark.replace_all_uses_with(mark.args[0])
        graph.erase_node(mark)


def mark_donating(node: fx.Node, kept: AbstractSet[str] = frozenset()) -> None:
    """Say that the call that a node stands for gave its activations away, but for those `kept`."""
    node.meta[_DONATED] = True
    node.meta[_KEPT] = frozenset(kept)


def is_donating(node: fx.Node) -> bool:
    """Whether the call that a node stands for gave activations away."""
    return bool(node.meta.get(_DONATED))


def kept_activations(node: fx.Node) -> frozenset[str]:
    """Return the activations that a donating call did not give away: new values, not inputs."""
    kept: frozenset[str] = node.meta.get(_KEPT, frozenset())
    return kept


def _is_functionalized(node: fx.Node) -> bool:
    if node.op != "call_function" or not node.args or str(node.target) not in _WRAPPERS:
        return False
    called = node.args[0]
    return isinstance(called, torch._ops.OpOverload) and called.namespace == "vllm_ir"


def _expand(graph: fx.Graph, node: fx.Node) -> None:
    """Replace a functionalised `maybe_inplace` by `default`, which writes nothing.

    The wrapper's results are the op's, then the new content of what it may have written: what went
    in, since the call runs out of place.
    """
    from torch._higher_order_ops import auto_functionalize as wrappers
    from torch.fx.experimental.proxy_tensor import make_fx

    unwrap = getattr(wrappers, f"{node.target}_dense")
    names, values = list(node.kwargs), tuple(node.kwargs.values())
    nodes = nodes_in(values)

    def unwrapped(*fakes: Any) -> Any:
        by_node = dict(zip(nodes, fakes, strict=True))
        filled = fx.map_arg(values, by_node.__getitem__)
        return unwrap(node.args[0], (), **dict(zip(names, filled, strict=True)))

    traced = make_fx(unwrapped)(*[value_of(n) for n in nodes])
    result, made = splice(graph, node, traced, nodes)
    for new in made:
        call = ir_call(new)
        if call is not None:
            make_canonical(new, call[0], overload(call[0], "default"))
    for user in list(node.users):
        index = user.args[1]
        assert isinstance(index, int)
        user.replace_all_uses_with(result[index])
        graph.erase_node(user)
    graph.erase_node(node)
    for copy in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if copy.args[0] is copy.args[1] and not copy.users:
            graph.erase_node(copy)
