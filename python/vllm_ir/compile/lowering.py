# SPDX-License-Identifier: Apache-2.0
"""From ops to what their chosen implementations do.

Before: a functional graph; each op node is `default`, canonical, and has a `Choice`.
After: no op node is left. In the place of each stands what the chosen implementation does,
decomposed as Inductor wants it, with the node's metadata. Each activation that an in-place
implementation may write is a fresh clone, so that the graph still means what it meant; the clones
are listed for clean-up. A result has the dtype, shape and strides of the op's own, and is never
the memory of an argument, except of a clone.
"""

import operator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from vllm_ir import _C
from vllm_ir.compile.choose import Choice, Chooser, is_guard_error, refused_guard
from vllm_ir.compile.collect import kept_activations
from vllm_ir.compile.graph import (
    activation_args,
    copy_provenance,
    ir_call,
    make_canonical,
    overload,
    source_line,
    storages_of,
    tensors_of,
    value_of,
    written_args,
)
from vllm_ir.compile.layout import copy_of, restride, same_place
from vllm_ir.compile.likeness import same_kind, same_strides, shown
from vllm_ir.compile.opaque import eager_operator, is_generated
from vllm_ir.compile.report import CloneReport, NodeReport
from vllm_ir.compile.trace import Tracer, nodes_in, splice, written_inputs
from vllm_ir.errors import IrRuntimeError, IrTypeError
from vllm_ir.impl import IrOpImpl
from vllm_ir.notices import impl_failed


@dataclass
class ProtectiveClone:
    """A copy of an activation in front of an in-place implementation."""

    node: fx.Node
    activation: str
    donated: bool  # the caller gave the activation away at this very call
    report: NodeReport


@dataclass
class Lowered:
    """What lowering leaves for the passes behind it.

    Attributes:
        clones: Every protective clone.
        replaced: Old and new value of each result, for alias analysis.
    """

    clones: list[ProtectiveClone] = field(default_factory=list)
    replaced: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def lower(
    graph: fx.Graph, choices: list[Choice], chooser: Chooser, tracer: Tracer | None = None
) -> Lowered:
    """Replace every op node by its implementation; nodes that an implementation calls too.

    Args:
        graph: Changed in place.
        choices: For the graph's op nodes, in order.
        chooser: Chooses for the ops that implementations call.
        tracer: Says what becomes of torch's operators; None: what Inductor wants.

    Raises:
        IrTypeError: An implementation's result has another dtype or shape than the op's.
        IrRuntimeError: An implementation writes what it was not given to write, or calls itself.
    """
    lowered, tracer = Lowered(), tracer or Tracer()
    for choice in choices:
        _lower_call(graph, choice, chooser, tracer, lowered)
    return lowered


def _lower_call(
    graph: fx.Graph, choice: Choice, chooser: Chooser, tracer: Tracer, lowered: Lowered
) -> None:
    node, impl = choice.node, choice.impl
    opaque = _must_be_opaque(tracer, choice)
    first_clone = len(lowered.clones)
    args = _protect(graph, choice, lowered) if impl.inplace and not opaque else node.args
    inputs = nodes_in(args)
    before = _count_guards(inputs)
    traced = _trace_impl(tracer, impl, args, choice, opaque)
    if _count_guards(inputs) > before:
        choice.report.notes.append("the implementation branches on a symbolic size: a guard")
    clones = [c.node for c in lowered.clones[first_clone:]]
    result, made = splice(graph, node, traced, inputs)
    written = [n for new in made for n in written_args(new)]
    _check_writes(impl, written + [inputs[i] for i in written_inputs(traced)], clones, choice)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    results = _check_results(graph, choice, results, clones)
    for new in made:
        copy_provenance(node, new)
        new.meta["vllm_ir"] = choice.label
    _replace(graph, node, results, lowered)
    _drop_unwritten(graph, made, results, lowered, first_clone)
    for new in made:
        called = ir_call(new)
        if called is not None:
            make_canonical(new, called[0], overload(called[0], "default"))
            inner = chooser.choose(new, called[0], parents=(*choice.parents, impl))
            _lower_call(graph, inner, chooser, tracer, lowered)


def _protect(graph: fx.Graph, choice: Choice, lowered: Lowered) -> tuple[Any, ...]:
    args = list(choice.node.args)
    for name, position, arg in activation_args(choice.node, choice.op):
        clone = copy_of(graph, choice.node, arg)
        clone.meta["vllm_ir"] = choice.label
        args[position] = clone
        donated = choice.report.donated and name not in kept_activations(choice.node)
        lowered.clones.append(ProtectiveClone(clone, name, donated, choice.report))
    return tuple(args)


def _drop_unwritten(
    graph: fx.Graph,
    made: list[fx.Node],
    results: list[fx.Node],
    lowered: Lowered,
    first_clone: int,
) -> None:
    """Forget the clones that nothing writes: what was in place has become new values."""
    written = {s for new in made for n in written_args(new) for s in storages_of(n)}
    returned = {s for n in results for s in storages_of(n)}
    for protective in lowered.clones[first_clone:]:
        clone, source = protective.node, protective.node.args[0]
        mine = storages_of(clone)
        if mine & written:
            continue
        lowered.clones.remove(protective)
        assert isinstance(source, fx.Node)
        why = ""
        if mine & returned:
            why = "returned as it is"
        elif not same_strides(value_of(source), value_of(clone)):
            why = f"'{source.name}' has gaps or another layout than its copy"
        else:
            clone.replace_all_uses_with(source)
            graph.erase_node(clone)
        outcome = why or "not written: torch's own operators give new values"
        protective.report.clones.append(CloneReport(protective.activation, bool(why), outcome))


def _must_be_opaque(tracer: Tracer, choice: Choice) -> bool:
    """Whether the implementation would become generated code, and batch invariance is asked for."""
    if not _C.is_batch_invariant():
        return False
    traced = _trace_impl(tracer, choice.impl, choice.node.args, choice, opaque=False)
    if not is_generated(traced):
        return False
    choice.report.notes.append("runs as eager operators: generated code isn't batch-invariant")
    return True


def _trace_impl(
    tracer: Tracer, impl: IrOpImpl, args: tuple[Any, ...], choice: Choice, opaque: bool
) -> fx.GraphModule:
    body = eager_operator(impl) if opaque else impl.impl_fn
    try:
        return tracer.trace((impl.op.name, impl.provider, opaque), body, args)
    except Exception as error:
        if is_guard_error(error):
            raise IrRuntimeError(
                f"vllm_ir.{impl.op.name}.{impl.provider}: the implementation must not branch on a "
                f"symbolic size in an exported program, got the guard {refused_guard(error)}. Make "
                "that size static, or put another provider first. Lowered for\n"
                f"    {source_line(choice.node)}"
            ) from error
        failed = impl_failed(impl.op.name, impl.provider, error)
        if failed is error:
            raise
        raise failed from error


def _count_guards(inputs: list[fx.Node]) -> int:
    for node in inputs:
        for t in tensors_of(node):
            env = getattr(getattr(t, "fake_mode", None), "shape_env", None)
            if env is not None:
                return len(env.guards)
    return 0


def _check_writes(
    impl: IrOpImpl, written: list[fx.Node], clones: list[fx.Node], choice: Choice
) -> None:
    callers = [n for n in choice.node.all_input_nodes if n not in clones]
    theirs = {s for n in callers for s in storages_of(n)}
    if any(storages_of(n) & theirs for n in written):
        raise IrRuntimeError(
            f"vllm_ir.{impl.op.name}.{impl.provider}: the implementation modified an "
            "argument in place. Work on a copy, or register it with inplace=True. Lowered "
            f"for\n    {source_line(choice.node)}"
        )


def _check_results(
    graph: fx.Graph, choice: Choice, results: list[Any], clones: list[fx.Node]
) -> list[fx.Node]:
    impl, node = choice.impl, choice.node
    expected = tensors_of(node)
    where = f"vllm_ir.{impl.op.name}.{impl.provider}"
    if len(results) != len(expected) or not all(isinstance(r, fx.Node) for r in results):
        raise IrTypeError(
            f"{where}: must return {len(expected)} Tensors as native does, "
            f"got {len(results)} results. Mend the implementation."
        )
    checked = []
    theirs = {s for n in node.all_input_nodes for s in storages_of(n)}
    for i, (want, new) in enumerate(zip(expected, results, strict=True)):
        got = value_of(new)
        if not same_kind(want, got):
            raise IrTypeError(
                f"{where}: result {i} must be {shown(want)} as native's, got {shown(got)}. "
                f"Mend the implementation. Lowered for\n    {source_line(node)}"
            )
        if not same_strides(want, got):
            choice.report.notes.append(f"result {i} was restrided to native's strides")
            new = restride(graph, node, new, want)
        elif new not in clones and storages_of(new) & theirs:
            choice.report.notes.append(f"result {i} was copied: it shared memory with an argument")
            new = copy_of(graph, node, new)
        elif not same_place(want, got, graph):
            choice.report.notes.append(f"result {i} was copied: the graph uses as_strided")
            new = copy_of(graph, node, new)
        new.meta.setdefault("vllm_ir", choice.label)
        checked.append(new)
    return checked


def _replace(graph: fx.Graph, node: fx.Node, results: list[fx.Node], lowered: Lowered) -> None:
    for old, new in zip(tensors_of(node), results, strict=True):
        lowered.replaced.append((old, value_of(new)))
    if isinstance(value_of(node), Tensor):
        node.replace_all_uses_with(results[0])
    else:
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise IrRuntimeError(
                    f"vllm_ir: internal error, please report: {node.name} is used as a whole by "
                    f"{user.name}."
                )
            index = user.args[1]
            assert isinstance(index, int)
            user.replace_all_uses_with(results[index])
            graph.erase_node(user)
    graph.erase_node(node)
