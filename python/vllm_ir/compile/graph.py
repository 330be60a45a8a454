# SPDX-License-Identifier: Apache-2.0
"""How the passes read an FX graph: ops, arguments, fake values and where a node comes from."""

import re
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from vllm_ir.op import IrOp

# What a new node takes over from the one that it stands for. `val` and the like are its own.
PROVENANCE = ("stack_trace", "nn_module_stack", "source_fn_stack", "seq_nr", "from_node", "custom")


def ir_call(node: fx.Node) -> tuple[IrOp, str] | None:
    """Return the op and the overload ("default", "maybe_inplace", "donated") that a node calls."""
    target = node.target
    if node.op != "call_function":
        return None
    if isinstance(target, OpOverloadPacket):
        target = target.default  # what torch takes: it was defined first
    if not isinstance(target, OpOverload) or target.namespace != "vllm_ir":
        return None
    op = IrOp.registry.get(target._schema.name.partition("::")[2])
    return None if op is None else (op, target._overloadname)


def ir_nodes(graph: fx.Graph) -> list[tuple[fx.Node, IrOp, str]]:
    """Return the nodes that call an op, in order, with the op and the overload."""
    calls = ((node, ir_call(node)) for node in graph.nodes)
    return [(node, *call) for node, call in calls if call is not None]


def overload(op: IrOp, name: str) -> OpOverload[..., Any]:
    """Return an op's torch operator by overload name."""
    found: OpOverload[..., Any] = getattr(getattr(torch.ops.vllm_ir, op.name), name)
    return found


def make_canonical(node: fx.Node, op: IrOp, target: OpOverload[..., Any]) -> None:
    """Give the node `target`, every argument by position and defaults filled."""
    node.args, node.kwargs = op.bind(*node.args, **node.kwargs), {}
    node.target = target


def activation_args(node: fx.Node, op: IrOp) -> Iterator[tuple[str, int, fx.Node]]:
    """Yield name, position and node of each activation of a canonical call."""
    for position, name in enumerate(op.signature.parameters):
        value = node.args[position]
        if name in op.activations and isinstance(value, fx.Node):
            yield name, position, value


def value_of(node: fx.Node) -> Any:
    """Return the fake value of a node: of AOTAutograd's graphs or of Dynamo's, else None."""
    return node.meta.get("val", node.meta.get("example_value"))


def tensors_of(node: fx.Node) -> list[Tensor]:
    """Return the fake tensors of a node's value, one or several."""
    value = value_of(node)
    values = value if isinstance(value, (tuple, list)) else [value]
    return [v for v in values if isinstance(v, Tensor)]


def storage_of(tensor: Tensor) -> int:
    """Return the identity of the memory behind a fake tensor, alive as long as the tensor is."""
    return int(tensor.untyped_storage()._cdata)


def storages_of(node: fx.Node) -> set[int]:
    """Return the identities of the memory behind a node's tensors."""
    return {storage_of(t) for t in tensors_of(node) if t.layout is torch.strided}


def written_args(node: fx.Node) -> list[fx.Node]:
    """Return the arguments that the node's operator writes, by its schema."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return []
    written: list[fx.Node] = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        by_position = position < len(node.args)
        value = node.args[position] if by_position else node.kwargs.get(argument.name)
        values = value if isinstance(value, (tuple, list)) else [value]
        written += [v for v in values if isinstance(v, fx.Node)]
    return written


def is_higher_order(node: fx.Node) -> bool:
    """Whether a node calls a higher-order operator: its bodies are graphs of their own."""
    return isinstance(node.target, HigherOrderOperator)


def torchs_operator(node: fx.Node) -> OpOverload[..., Any] | None:
    """Return which of torch's own operators a node calls: compilers look into these, no others."""
    target = node.target
    own = isinstance(target, OpOverload) and target.namespace in ("aten", "prims")
    return cast("OpOverload[..., Any]", target) if own else None


def module_path(node: fx.Node) -> str:
    """Return the path of the module that made the call, "layers.0.norm" say, "" when unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    # "L['self'].layers.0": how the traced function calls its module, then the path in it.
    path = str(list(stack.values())[-1][0])
    return re.sub(r"^[LG]\['\w+'\]\.?", "", path)


def source_line(node: fx.Node) -> str:
    """Return the innermost line of user code behind a node: file, line and text."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    places = [i for i, line in enumerate(lines) if line.startswith('File "')]
    if not places:
        return "<unknown line>"
    last = places[-1]
    code = lines[last + 1] if last + 1 < len(lines) else ""
    return f"{lines[last]}: {code}" if code else lines[last]


def copy_provenance(source: fx.Node, target: fx.Node) -> None:
    """Let a new node say where it comes from."""
    for key in PROVENANCE:
        if key in source.meta:
            target.meta.setdefault(key, source.meta[key])
