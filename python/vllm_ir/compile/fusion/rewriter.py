# SPDX-License-Identifier: Apache-2.0
"""What a pass is given: the graph, the configuration, tools that keep the graph right, a report.

Whoever changes a graph through `insert` and `replace` leaves it sound: each new node has a fake
value and says where it comes from, op calls are canonical, a value that takes another one's place
has its dtype, shape and strides, and views of the old value are views of the new one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from vllm_ir.compile.config import CompileConfig
from vllm_ir.compile.graph import (
    copy_provenance,
    ir_call,
    is_higher_order,
    make_canonical,
    module_path,
    overload,
    source_line,
    storages_of,
    value_of,
    written_args,
)
from vllm_ir.compile.layout import copy_of, restride
from vllm_ir.compile.likeness import same_kind, same_strides, shown
from vllm_ir.compile.report import FusionReport
from vllm_ir.compile.trace import Tracer, fake_values, fake_world, nodes_in, splice, written_inputs
from vllm_ir.errors import IrRuntimeError, IrTypeError
from vllm_ir.log import logger
from vllm_ir.selection import Selection


class Rewriter:
    """One graph while the passes run over it.

    Attributes:
        graph: Op calls in it are `default`, with every argument by position. A result of an op with
            several results is always read through a `getitem`, and each result has one.
        config: The choices of the compilation.
        selection: The priorities that ops will be lowered by.
        pass_name: The pass that is running.
        rows: The report so far.
    """

    def __init__(self, graph: fx.Graph, config: CompileConfig, selection: Selection) -> None:
        self.graph = graph
        self.config = config
        self.selection = selection
        self.pass_name = ""
        self.rows: list[FusionReport] = []
        self._tracer = Tracer()

    def matched(
        self, node: fx.Node, made: str, costs: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        """Report a place that was rewritten.

        Args:
            node: Stands for the place; call this while it is in the graph.
            made: What was done, for people.
            costs: Numbers to compare, "before" and "after".
        """
        self._report(node, True, made, costs or {})

    def near_miss(self, node: fx.Node, reason: str) -> None:
        """Report a place that looked right and was left alone."""
        self._report(node, False, reason, {})

    def insert(
        self, fn: Callable[..., Any], args: tuple[Any, ...], before: fx.Node, like: fx.Node
    ) -> tuple[Any, list[fx.Node]]:
        """Put what a function does into the graph.

        Args:
            fn: Calls ops and torch functions. It is traced on fake tensors, once for equal
                arguments: it must depend on nothing else.
            args: Its arguments; a node stands for its value. They may be nested.
            before: The new nodes go in front of it.
            like: The node whose stack trace and module the new ones take over.

        Returns:
            What `fn` returned, nodes in the place of tensors, and the new nodes.

        Raises:
            IrRuntimeError: The function writes an argument.
        """
        inputs = nodes_in(args)
        traced = self._tracer.trace(fn, fn, args)
        result, made = splice(self.graph, before, traced, inputs)
        for new in made:
            copy_provenance(like, new)
            called = ir_call(new)
            if called is not None:
                make_canonical(new, called[0], overload(called[0], "default"))
        theirs = {s for n in inputs for s in storages_of(n)}
        written = [w for new in made for w in written_args(new)]
        written += [inputs[i] for i in written_inputs(traced)]
        if any(storages_of(w) & theirs for w in written):
            raise IrRuntimeError(
                f"{self.where}: what takes the place of '{like.name}' modifies an argument in "
                f"place. Work on a copy. Written at\n    {source_line(like)}"
            )
        return result, made

    def replace(
        self, old: fx.Node, new: fx.Node, inputs: Sequence[fx.Node] = (), what: str = "the result"
    ) -> fx.Node:
        """Let a value take another one's place everywhere. The old node stays, without users.

        Args:
            old: A node with one tensor.
            new: The node to use; it stands in front of every user of `old`.
            inputs: What `new` was computed from, in whose memory it must not lie.
            what: A name for `new` in messages.

        Returns:
            `new`, or a copy of it in the memory layout of `old`.

        Raises:
            IrTypeError: Dtype, device or shape differ.
        """
        want, got = value_of(old), value_of(new) if isinstance(new, fx.Node) else new
        if not isinstance(got, Tensor) or not same_kind(want, got):
            given = shown(got) if isinstance(got, Tensor) else type(got).__name__
            raise IrTypeError(
                f"{self.where}: {what} must be {shown(want)} as '{old.name}' is, got {given}. "
                f"Mend the replacement. Written at\n    {source_line(old)}"
            )
        theirs = {s for n in inputs for s in storages_of(n)}
        if not same_strides(want, got):
            new = restride(self.graph, new.next, new, want, old)
        elif storages_of(new) & theirs and not storages_of(old) & theirs:
            new = copy_of(self.graph, new.next, new, old)
        stale = storages_of(old)
        old.replace_all_uses_with(new)
        _renew_views(new, stale)
        return new

    def erase(self, nodes: Sequence[fx.Node]) -> None:
        """Take out those of the nodes that nothing uses, last ones first."""
        for node in sorted(set(nodes), reverse=True):
            if not node._erased and not node.users:
                self.graph.erase_node(node)

    @property
    def where(self) -> str:
        """The beginning of a message about the running pass."""
        return f"vllm_ir.fusion.{self.pass_name}"

    def _report(
        self, node: fx.Node, matched: bool, reason: str, costs: Mapping[str, Mapping[str, int]]
    ) -> None:
        numbers = {when: dict(of) for when, of in costs.items()}
        row = FusionReport(self.pass_name, node.name, module_path(node), matched, reason, numbers)
        self.rows.append(row)
        logger.debug("%s at %s: %s", row.name, row.module or source_line(node), row.reason)


def _renew_views(source: fx.Node, stale: set[int]) -> None:
    """Compute again what was seen as memory of the value that `source` has taken the place of."""
    for user in list(source.users):
        if user.op != "call_function" or is_higher_order(user) or written_args(user):
            continue
        if storages_of(user) & stale:
            args, kwargs = fake_values(user.args), fake_values(user.kwargs)
            assert callable(user.target)
            with fake_world(args):
                user.meta["val"] = user.target(*args, **kwargs)
            _renew_views(user, stale)
