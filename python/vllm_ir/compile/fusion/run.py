# SPDX-License-Identifier: Apache-2.0
"""Run the passes that a configuration asks for over a graph.

Before: op calls are `default` and canonical.
After: the same, of other ops perhaps. Each pass has a row of the report at least, if only that
nothing matched. Every new node has a fake value.
"""

import operator

from torch import fx

from vllm_ir.compile.config import CompileConfig
from vllm_ir.compile.fusion import registry
from vllm_ir.compile.fusion.rewriter import Rewriter
from vllm_ir.compile.graph import copy_provenance, ir_nodes, make_canonical, overload, value_of
from vllm_ir.compile.report import FusionReport
from vllm_ir.errors import IrRuntimeError
from vllm_ir.identity import identify
from vllm_ir.selection import Selection


def apply(
    graph: fx.Graph, config: CompileConfig, selection: Selection | None = None
) -> list[FusionReport]:
    """Run the passes that the configuration asks for.

    Args:
        graph: Changed in place.
        config: `fusions` chooses the passes.
        selection: The priorities that ops will be lowered by. None: those in force.

    Returns:
        What each pass did, what it left alone and why.

    Raises:
        IrTypeError: A replacement has another dtype, shape or device than what it replaces.
        IrRuntimeError: A pass raised, or left nodes that nothing is known about.
        UnknownNameError: The configuration names a pass that doesn't exist.
    """
    rewriter = Rewriter(graph, config, selection or Selection.in_force())
    for fusion in registry.chosen(config.fusions):
        rewriter.pass_name = fusion.name
        _split_results(graph)
        known = set(graph.nodes)
        rows = len(rewriter.rows)
        _run(fusion, rewriter)
        _check_new_nodes(rewriter, known)
        if len(rewriter.rows) == rows:
            rewriter.rows.append(FusionReport(fusion.name, "", "", False, "no match"))
    _drop_unused_results(graph)
    return rewriter.rows


def fingerprint(config: CompileConfig) -> str | None:
    """Return what identifies the passes of a configuration, None when it can't be known.

    It covers their order, their patterns, and the files of their functions.

    Raises:
        UnknownNameError: The configuration names a pass that doesn't exist.
    """
    identities = [p.identity() for p in registry.chosen(config.fusions)]
    known = [i for i in identities if i is not None]
    return "\0".join(known) if len(known) == len(identities) else None


def ops_made(config: CompileConfig) -> set[str]:
    """Return the names of the ops that the passes of a configuration may put into a graph.

    Those that passes of this package make aren't among them.

    Raises:
        UnknownIdentity: `fingerprint` doesn't know either.
    """
    chosen = registry.chosen(config.fusions)
    return set().union(*(identify(*p.functions).ops for p in chosen))


def _run(fusion: registry.FusionPass, rewriter: Rewriter) -> None:
    try:
        fusion.run(rewriter)
        rewriter.graph.lint()
    except Exception as error:
        if str(error).startswith(f"{rewriter.where}:"):
            raise
        raise IrRuntimeError(
            f"{rewriter.where}: the pass failed, got {type(error).__name__}: {error}. Mend it "
            f"({fusion.source}), or leave it out of CompileConfig(fusions=...)."
        ) from error


def _check_new_nodes(rewriter: Rewriter, known: set[fx.Node]) -> None:
    for node, op, name in ir_nodes(rewriter.graph):
        if node not in known or name != "default":
            make_canonical(node, op, overload(op, "default"))
    for node in rewriter.graph.nodes:
        if node not in known and node.op == "call_function" and "val" not in node.meta:
            raise IrRuntimeError(
                f"{rewriter.where}: a new node must have a fake value as meta['val'], got none "
                f"for '{node.name}'. Make nodes with rewriter.insert(...)."
            )


def _split_results(graph: fx.Graph) -> None:
    """Give each result of an op one `getitem`: patterns can then name results that nobody reads."""
    for node, _, _ in ir_nodes(graph):
        value = value_of(node)
        if not isinstance(value, (tuple, list)):
            continue
        found: dict[object, fx.Node] = {}
        for user in list(node.users):
            if user.target is operator.getitem:
                first = found.setdefault(user.args[1], user)
                if first is not user:
                    _merge(graph, first, user)
        for index, one in enumerate(value):
            if index not in found:
                with graph.inserting_after(node):
                    made = graph.call_function(operator.getitem, (node, index))
                made.meta["val"] = one
                copy_provenance(node, made)


def _merge(graph: fx.Graph, first: fx.Node, second: fx.Node) -> None:
    if second < first:
        first, second = second, first
    second.replace_all_uses_with(first)
    graph.erase_node(second)


def _drop_unused_results(graph: fx.Graph) -> None:
    for node, _, _ in ir_nodes(graph):
        for user in list(node.users):
            if user.target is operator.getitem and not user.users:
                graph.erase_node(user)
