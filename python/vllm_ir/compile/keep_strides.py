# SPDX-License-Identifier: Apache-2.0
"""A kernel gets its arguments with the strides that its rule saw.

The strides in a graph are a plan. Inductor lays out what it computes as suits its loops, and may
put a value into memory with gaps; its own code minds neither. An operator that it can't look into
gets what the node has in `eager_input_vals`, copied where need be; without that it is taken for one
that minds nothing, since torch itself notes it for every operator that a model calls.

Before: a lowered graph, each value with the strides that implementations were chosen for.
After: the same; operators from outside of torch, and Triton kernels, say what strides they take.
"""

from typing import Any

from torch import fx
from torch._ops import OpOverload

from vllm_ir.compile.graph import is_higher_order, torchs_operator, value_of, written_args
from vllm_ir.compile.inductor_mends import copy_nothing_onto_itself

_KEY = "eager_input_vals"


def keep_strides(graph: fx.Graph) -> None:
    """Note the planned strides at every operator that no compiler looks into."""
    for node in graph.nodes:
        if node.op == "call_function" and _is_kernel(node) and _KEY not in node.meta:
            node.meta[_KEY] = (_values(node.args), _values(node.kwargs))
            if written_args(node):
                copy_nothing_onto_itself()


def _is_kernel(node: fx.Node) -> bool:
    if is_higher_order(node):
        return str(node.target).startswith("triton_kernel_wrapper")
    return isinstance(node.target, OpOverload) and torchs_operator(node) is None


def _values(arguments: Any) -> Any:
    return fx.map_arg(arguments, value_of)
