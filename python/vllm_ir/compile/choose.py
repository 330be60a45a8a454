# SPDX-License-Identifier: Apache-2.0
"""Choose the implementation of each op node, by the same rule as an eager call.

Before: a functional graph; each op node is `default` and canonical.
After: the same graph, and a `Choice` for each node, with a decision for every implementation. No
shape guard was added: a predicate that wants one has rejected.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._guards import detect_fake_mode
from torch.fx.experimental import symbolic_shapes

from vllm_ir.compile.collect import is_donating
from vllm_ir.compile.graph import ir_nodes, module_path, source_line
from vllm_ir.compile.report import NodeReport
from vllm_ir.compile.trace import fake_values, fake_world
from vllm_ir.errors import IrRuntimeError
from vllm_ir.explanation import Explanation
from vllm_ir.impl import IrOpImpl
from vllm_ir.log import logger
from vllm_ir.op import IrOp
from vllm_ir.selection import Selection


@dataclass
class Choice:
    """An op node and the implementation that it will be lowered to."""

    node: fx.Node
    op: IrOp
    impl: IrOpImpl
    report: NodeReport
    parents: tuple[IrOpImpl, ...] = ()  # the implementations that this call is inside of

    @property
    def label(self) -> str:
        """What the nodes of the lowered graph carry as `meta["vllm_ir"]`."""
        return f"{self.op.name}:{self.impl.provider}:{self.report.node}"


class Chooser:
    """Chooses by one selection; keeps a report for each node."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.reports: list[NodeReport] = []

    def choose_all(self, graph: fx.Graph) -> list[Choice]:
        """Return a choice for each op node, in order."""
        return [self.choose(node, op) for node, op, _ in ir_nodes(graph)]

    def choose(self, node: fx.Node, op: IrOp, parents: tuple[IrOpImpl, ...] = ()) -> Choice:
        """Choose for one canonical node.

        Raises:
            IrRuntimeError: Strict mode, and the demanded provider would not run; or an
                implementation that calls itself.
        """
        values: tuple[Any, ...] = fake_values(node.args)
        with no_new_guards(values), fake_world(values):
            explanation = self._selection.select(op, values)
        impl = op.impls[explanation.selected]
        if impl in parents:
            chain = " -> ".join(f"{p.op.name}.{p.provider}" for p in (*parents, impl))
            raise IrRuntimeError(
                f"vllm_ir.{op.name}.{impl.provider}: the implementation calls itself: {chain}. "
                "Call the function that does the work, or put another provider first for it."
            )
        report = node_report(node, explanation)
        report.donated = is_donating(node)
        if parents:
            report.inside = f"{parents[-1].op.name}.{parents[-1].provider}"
        self.reports.append(report)
        logger.debug("%s at %s: %s", node.name, report.module or report.source, explanation)
        return Choice(node, op, impl, report, parents)


def node_report(node: fx.Node, explanation: Explanation) -> NodeReport:
    """Put an explanation of a node's call into a report."""
    return NodeReport(
        node=node.name,
        op=explanation.op,
        module=module_path(node),
        source=source_line(node),
        selected=explanation.selected,
        priority=list(explanation.priority),
        decisions=list(explanation.decisions),
    )


def is_guard_error(error: Exception) -> bool:
    """Whether torch has refused a shape guard."""
    refused = getattr(symbolic_shapes, "_ShapeEnvGuardError", None)
    return refused is not None and isinstance(error, refused)


def refused_guard(error: Exception) -> str:
    """Return the guard that torch has refused by such an error, "s0 > 4 == True" say."""
    return str(error).rpartition(": ")[2]


@contextlib.contextmanager
def no_new_guards(values: Any) -> Iterator[None]:
    """Let a predicate that would specialise a symbolic size fail, and so reject."""
    mode = detect_fake_mode(values)
    env = getattr(mode, "shape_env", None)
    if env is None:
        yield
    elif hasattr(env, "error_on_new_guards"):
        with env.error_on_new_guards():
            yield
    else:  # torch 2.11: nothing to refuse with; the guard is only reported
        before = len(env.guards)
        yield
        if len(env.guards) > before:
            logger.warning("a supports_args callable added a shape guard: %s", env.guards[-1].expr)
