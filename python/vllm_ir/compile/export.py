# SPDX-License-Identifier: Apache-2.0
"""Exported programs: `torch.export` keeps op calls; here they are lowered, afterwards.

A program that still calls ops chooses when it runs, by the priorities of the process that runs it,
and that process must have imported what declares the ops, `vllm_ir` first of all. A lowered program
has chosen: with `native` it needs torch alone, with `vllm_c` the kernels that `import vllm_ir`
loads.
"""

import copy
import weakref
from collections.abc import Callable
from typing import Any

from torch import fx
from torch._export.verifier import TrainingIRVerifier
from torch._ops import OpOverload
from torch.export import ExportedProgram

from vllm_ir.compile.config import CompileConfig
from vllm_ir.compile.graph import ir_nodes, make_canonical, overload, source_line
from vllm_ir.compile.guard_free import without_guards
from vllm_ir.compile.pipeline import run_passes
from vllm_ir.compile.program_graph import (
    check_arguments,
    drop_idle_writes,
    follow_names,
    lift_constants,
    without_gradients,
)
from vllm_ir.compile.report import CompileReport, GraphReport
from vllm_ir.compile.trace import Tracer
from vllm_ir.errors import IrRuntimeError, IrTypeError, IrValueError
from vllm_ir.op import IrOp
from vllm_ir.selection import Selection

_reports: "weakref.WeakKeyDictionary[ExportedProgram, CompileReport]" = weakref.WeakKeyDictionary()


def lower_program(program: ExportedProgram, config: CompileConfig | None = None) -> ExportedProgram:
    """Return a program in which each op call has become what its chosen implementation does.

    The choice is made once, here, by the priorities for compiling that are in force, scopes
    included; where nobody has set any, that is the platform's default. Fusions run. An in-place
    implementation works on a copy unless nobody can see its argument: inputs of a program are its
    caller's and stay as they are. `vllm_ir.explain(lowered)` tells what became of each call.

    A program in which only `native` was chosen has gradients. Any other one is for inference: its
    results require no gradient, since kernels have none.

    Save the result with `torch.export.save`. The process that loads it needs what the chosen
    implementations call: torch alone for `native`, and `import vllm_ir` first for `vllm_c`.

    Args:
        program: What `torch.export.export` or `torch.export.load` returned. It stays as it is, and
            shares the memory of parameters, buffers and constants with the result.
        config: The choices; of these, `fusions` counts here.

    Returns:
        A new program with the same signature, shapes and example inputs.

    Raises:
        IrTypeError: Not an exported program, or not a configuration; or an implementation's result
            has another dtype or shape than the op's.
        IrRuntimeError: An op isn't declared in this process, or an implementation misbehaves: it
            branches on a symbolic size, say, since a program can't hold guards.

    Example:
        >>> import torch, vllm_ir as ir
        >>> class Layer(torch.nn.Module):
        ...     def forward(self, x):
        ...         return ir.ops.rms_norm(x, None, 1e-6)
        >>> program = torch.export.export(Layer(), (torch.ones(2, 8),))
        >>> with ir.ops.rms_norm.set_priority(["vllm_c"]):
        ...     lowered = ir.compile.lower_program(program)
        >>> [str(n.target) for n in lowered.graph.nodes if n.op == "call_function"]
        ['aten.detach.default', 'vllm_ir_C.rms_norm.default']
        >>> ir.explain(lowered).selected_impls
        {'rms_norm': {'rms_norm': 'vllm_c'}}
    """
    where = "vllm_ir.compile.lower_program"
    check_program(program, where)
    check_config(config, where)
    check_declared(program)
    functional = program.run_decompositions({})  # a copy, without writes to what may be shared
    report = _lower(functional, config or CompileConfig())
    state = functional.state_dict
    if any(node.selected != "native" for node in report.nodes):
        state = without_gradients(functional)
    lowered = _rebuilt(functional, state)
    _reports[lowered] = report
    return lowered


def decompositions() -> dict[OpOverload[..., Any], Callable[..., Any]]:
    """Return a table that turns every declared op into its native function.

    For `program.run_decompositions(table)`, and for whatever else takes such a table. To have Core
    ATen as well, add it to `torch.export.default_decompositions()`.

    Returns:
        A new dictionary: `torch.ops.vllm_ir.<op>.default` to a function. An op that is declared
        later isn't in it.

    Example:
        >>> import torch, vllm_ir as ir
        >>> class Layer(torch.nn.Module):
        ...     def forward(self, x):
        ...         return ir.ops.rms_norm(x, None, 1e-6)
        >>> program = torch.export.export(Layer(), (torch.ones(2, 8),))
        >>> plain = program.run_decompositions(ir.compile.decompositions())
        >>> [str(n.target) for n in plain.graph.nodes if n.op == "call_function"][:2]
        ['aten.pow.Tensor_Scalar', 'aten.mean.dim']
    """
    return {overload(op, "default"): op.impls["native"].impl_fn for op in IrOp.registry.values()}


def explain_program(program: ExportedProgram) -> CompileReport:
    """Return what `lower_program` did.

    Raises:
        IrValueError: The program was not lowered, or not in this process.
    """
    found = _reports.get(program)
    if found is None:
        raise IrValueError(
            "vllm_ir.explain: an exported program must come from lower_program in this process, "
            "got another one. Lower it, or ask an op: op.explain(...)."
        )
    return found


def check_program(program: object, where: str) -> None:
    """Raise IrTypeError unless this is an exported program."""
    if not isinstance(program, ExportedProgram):
        raise IrTypeError(
            f"{where}: program must be a torch.export.ExportedProgram, got "
            f"{type(program).__name__}. Make one with torch.export.export(model, args)."
        )


def check_config(config: object, where: str) -> None:
    """Raise IrTypeError unless this is a configuration or None."""
    if config is not None and not isinstance(config, CompileConfig):
        raise IrTypeError(
            f"{where}: config must be a vllm_ir.compile.CompileConfig, got {type(config).__name__}."
        )


def check_declared(program: ExportedProgram) -> None:
    """Raise IrRuntimeError when the program calls an op that this process doesn't know."""
    for module in _graph_modules(program.graph_module):
        for node in module.graph.nodes:
            target = node.target
            if not isinstance(target, OpOverload) or target.namespace != "vllm_ir":
                continue
            name = target._schema.name.partition("::")[2]
            if name not in IrOp.registry:
                raise IrRuntimeError(
                    f"vllm_ir.{name}: '{node.name}' calls an op that no module in this process has "
                    f"declared; written at\n    {source_line(node)}\nImport the module that calls "
                    "vllm_ir.register_op for it first."
                )


def forget_donations(graph: fx.Graph) -> None:
    """Turn every donating call of a functional graph into one that keeps its arguments."""
    for node, op, name in ir_nodes(graph):
        if name == "donated":
            make_canonical(node, op, overload(op, "default"))


def _lower(program: ExportedProgram, config: CompileConfig) -> CompileReport:
    """Lower all graphs of a functional program in place."""
    selection, tracer = Selection.in_force(), Tracer({})
    modules = _graph_modules(program.graph_module)
    reports: list[GraphReport] = []
    for module in modules:
        # Torch has renamed nodes, and a graph knows only the names that it gave itself.
        module.graph = copy.deepcopy(module.graph)
    with follow_names(program), without_guards(program.graph):
        for module in reversed(modules):  # bodies first, as Inductor does
            forget_donations(module.graph)
            report = run_passes(module.graph, config, selection, tracer)
            reports[:0] = [report] if report is not None else []
        for module in modules:
            check_arguments(module.graph)
            module.graph.eliminate_dead_code()
    return CompileReport(tuple(reports), {})


def _graph_modules(gm: fx.GraphModule) -> list[fx.GraphModule]:
    """Return a module, then the bodies of its higher-order operators."""
    return [module for module in gm.modules() if isinstance(module, fx.GraphModule)]


def _rebuilt(program: ExportedProgram, state: dict[str, Any]) -> ExportedProgram:
    """Return the program with its changed graphs, checked anew by torch."""
    drop_idle_writes(program)
    constants = {**program.constants, **lift_constants(program)}
    for module in _graph_modules(program.graph_module):
        module.recompile()
    return ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=program.graph_signature,
        state_dict=state,
        range_constraints=copy.copy(program.range_constraints),
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=constants,
        verifiers=[TrainingIRVerifier] if _writes(program) else program.verifiers,
    )


def _writes(program: ExportedProgram) -> bool:
    """Whether an operator writes an argument: torch's strictest dialect has no such programs."""
    return any(
        isinstance(node.target, OpOverload) and node.target._schema.is_mutable
        for module in _graph_modules(program.graph_module)
        for node in module.graph.nodes
    )
