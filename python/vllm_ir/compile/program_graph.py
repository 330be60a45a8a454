# SPDX-License-Identifier: Apache-2.0
"""What makes a lowered graph a valid exported program again.

An exported program names its inputs and outputs by node, holds tensors as inputs only, and is run
by torch operator by operator, in processes that may not have Inductor.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument

from vllm_ir.compile.graph import source_line, value_of
from vllm_ir.compile.trace import fake_world
from vllm_ir.errors import IrRuntimeError


@contextlib.contextmanager
def follow_names(program: ExportedProgram) -> Iterator[None]:
    """Keep the names in a program's signatures right while nodes are replaced."""
    signature = program.graph_signature

    def rename(old: fx.Node, new: str, user: fx.Node) -> None:
        signature.replace_all_uses(old.name, new)
        for entry in program.module_call_graph:
            if entry.signature is None:
                continue
            for argument in (*entry.signature.inputs, *entry.signature.outputs):
                if argument.name == old.name:
                    argument.name = new

    with program.graph_module._set_replace_hook(rename):
        yield


def drop_idle_writes(program: ExportedProgram) -> None:
    """Drop each write that gives an input the value that it has.

    They are left of a `maybe_inplace` that torch took for one that writes. Inductor, told so, would
    overwrite the input, and write back what it finds there.
    """
    signature, output = program.graph_signature, program.graph.output_node()
    inputs = {s.arg.name: s for s in signature.input_specs if isinstance(s.arg, TensorArgument)}
    values, specs = [], []
    for value, spec in zip(output.args[0], signature.output_specs, strict=True):
        source = inputs.get(value.name) if isinstance(value, fx.Node) else None
        writes = spec.kind in (OutputKind.USER_INPUT_MUTATION, OutputKind.BUFFER_MUTATION)
        if source is not None and writes and spec.target in (source.target, source.arg.name):
            continue
        values.append(value)
        specs.append(spec)
    output.args = (tuple(values),)
    signature.output_specs[:] = specs


def lift_constants(program: ExportedProgram) -> dict[str, Tensor]:
    """Make inputs of the tensors that implementations brought into a program's graph.

    Returns:
        The tensors by the names that the signature has for them.
    """
    graph, specs = program.graph, program.graph_signature.input_specs
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    first = next((i for i, s in enumerate(specs) if s.kind is InputKind.USER_INPUT), len(specs))
    behind = [*inputs, *(n for n in graph.nodes if n.op != "placeholder")][first]
    found: dict[str, tuple[Tensor, fx.Node]] = {}
    for node in list(graph.find_nodes(op="get_attr")):
        name = str(node.target)
        value = getattr(program.graph_module, name, None)
        if not isinstance(value, Tensor):
            continue
        if name not in found:
            made = _constant_input(behind, node, value)
            spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=made.name), name)
            specs.insert(first + len(found), spec)
            found[name] = value, made
        node.replace_all_uses_with(found[name][1])
        graph.erase_node(node)
    return {name: value for name, (value, _) in found.items()}


def _constant_input(before: fx.Node, node: fx.Node, value: Tensor) -> fx.Node:
    mode = detect_fake_mode([value_of(n) for n in before.graph.nodes])
    with before.graph.inserting_before(before):
        made = before.graph.placeholder(f"c{node.target}")
    made.meta["val"] = value if mode is None else mode.from_tensor(value, static_shapes=True)
    return made


def without_gradients(program: ExportedProgram) -> dict[str, Any]:
    """Let nothing in a program require a gradient: user inputs are detached.

    A kernel without a formula for its gradient would otherwise drop it in silence.

    Returns:
        A state for the program, in which parameters don't require one. The memory is the same.
    """
    state = dict(program.state_dict)
    fixed: dict[int, torch.nn.Parameter] = {}  # tied ones stay one
    for name, value in program.state_dict.items():
        if isinstance(value, torch.nn.Parameter) and value.requires_grad:
            if id(value) not in fixed:
                fixed[id(value)] = torch.nn.Parameter(value.detach(), requires_grad=False)
            state[name] = fixed[id(value)]
    inputs = [n for n in program.graph.nodes if n.op == "placeholder"]
    behind = next(n for n in program.graph.nodes if n.op != "placeholder")
    for node, spec in zip(inputs, program.graph_signature.input_specs, strict=True):
        value = value_of(node)
        if spec.kind is not InputKind.USER_INPUT or not isinstance(value, Tensor):
            continue
        if value.is_floating_point() or value.is_complex():
            detached = _detach(node, behind)
            kept = {detached, program.graph.output_node()}  # an input may be returned as it is
            node.replace_all_uses_with(detached, lambda user, kept=kept: user not in kept)
    program.graph.eliminate_dead_code()
    return state


def _detach(node: fx.Node, before: fx.Node) -> fx.Node:
    with node.graph.inserting_before(before), fake_world(value_of(node)):
        made = node.graph.call_function(torch.ops.aten.detach.default, (node,))
        made.meta["val"] = value_of(node).detach()
    stacks = (n.meta.get("nn_module_stack") for n in node.graph.nodes)
    stack = next((s for s in stacks if s), None)
    if stack is not None:  # the program's own module does it
        made.meta["nn_module_stack"] = dict([next(iter(stack.items()))])
    return made


def check_arguments(graph: fx.Graph) -> None:
    """Raise IrRuntimeError when an argument is a symbolic number: a program has nodes for those."""
    for node in graph.nodes:
        values = pytree.tree_leaves((node.args, node.kwargs))
        for value in values:
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise IrRuntimeError(
                    "vllm_ir.compile: a result with gaps or repeated elements must have static "
                    f"sizes in an exported program, got {value} in '{node.name}'. Let native "
                    f"return a tensor of its own. Lowered for\n    {source_line(node)}"
                )
