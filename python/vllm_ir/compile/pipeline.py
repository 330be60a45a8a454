# SPDX-License-Identifier: Apache-2.0
"""The passes behind AOTAutograd, in their order.

collect -> fuse -> choose -> hoist -> lower -> clean up -> realize -> keep strides -> verify. Each
is a room of its own, with its invariants; nothing here knows how they work.

They run as Inductor's *last* custom pass (`post_grad_custom_post_pass`). Earlier, Inductor would
still delete clones that it takes for no-ops, among them those that protect a caller's tensors.
"""

import json
import logging
import uuid
import weakref
from typing import Any

from torch import fx
from torch._guards import TracingContext
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._logging._internal import trace_structured

from vllm_ir.compile import fingerprint, fusion, sink
from vllm_ir.compile.bodies import mend_bodies, note_results
from vllm_ir.compile.choose import Chooser
from vllm_ir.compile.clone_cleanup import remove_clones
from vllm_ir.compile.collect import collect
from vllm_ir.compile.config import CompileConfig
from vllm_ir.compile.graph import ir_nodes
from vllm_ir.compile.hoist import hoist_readers
from vllm_ir.compile.keep_strides import keep_strides
from vllm_ir.compile.lowering import lower
from vllm_ir.compile.opaque import define_eager_operators
from vllm_ir.compile.realize import realize_readers
from vllm_ir.compile.report import CompileReport, GraphReport
from vllm_ir.compile.size_guards import guards_of
from vllm_ir.compile.trace import Tracer
from vllm_ir.compile.verify import verify
from vllm_ir.log import logger
from vllm_ir.selection import Selection

# A forward graph and its backward graph, which may be compiled much later, are kept in caches as
# one: both go by what was in force when Inductor first asked about them.
_selections: "weakref.WeakKeyDictionary[TracingContext, Selection]" = weakref.WeakKeyDictionary()


class PostGradPass(CustomGraphPass):
    """Everything that happens to ops behind AOTAutograd, as one pass of Inductor's.

    An engine that owns its pipeline puts it at the end of `post_grad_custom_post_pass`; the backend
    `vllm_ir` does so itself. It pickles and copies; reports are kept outside (`sink`). On a hit of
    Inductor's caches no pass runs: the backend then finds the report in a file that it named by the
    graph, which an engine can do too (`side_file`).

    Args:
        config: The choices.
        selection: The priorities to lower by. None: those in force when Inductor first asks.
        key: Where reports go; equal for copies of one pass.
        side_file: The file that keeps the reports for cache hits, "" for none.
        ops: Names of the ops that graphs may call, as `fingerprint.ops_called` finds them; None:
            any. An op that isn't among them doesn't count for Inductor's caches.
        sizes: The symbolic sizes at hand, as `size_guards.sizes_of` finds them: on a cache hit they
            tell which of the kept reports is meant.

    Example:
        >>> import torch, vllm_ir as ir
        >>> lowering = ir.compile.PostGradPass()
        >>> def layer(x):
        ...     return ir.ops.rms_norm(x, None, 1e-6) * 2
        >>> options = {"post_grad_custom_post_pass": lowering}
        >>> compiled = torch.compile(layer, options=options)
        >>> with torch.no_grad():
        ...     y = compiled(torch.ones(2, 8))  # doctest: +SKIP
        >>> lowering.selected_impls  # doctest: +SKIP
        {'rms_norm': {'rms_norm': 'native'}}
    """

    def __init__(
        self,
        config: CompileConfig | None = None,
        selection: Selection | None = None,
        key: str = "",
        side_file: str = "",
        ops: frozenset[str] | None = None,
        sizes: dict[str, int] | None = None,
    ) -> None:
        self.config = config or CompileConfig()
        self.selection = selection
        self.key = key or uuid.uuid4().hex
        self.side_file = side_file
        self.ops = ops
        sink.open_entry(self.key, side_file, sizes)

    def __call__(self, graph: fx.Graph) -> None:
        """Lower one graph in place.

        Raises:
            IrTypeError: An implementation's result has another dtype or shape than the op's.
            IrRuntimeError: An implementation misbehaves, or an op was left over.
        """
        report = run_passes(graph, self.config, self._selection(), for_code=True)
        if report is not None:
            self._keep(report)

    def uuid(self) -> Any:
        """Return what identifies the result for Inductor's caches, None to bypass them."""
        selection = self._selection()
        if selection.batch_invariant:
            define_eager_operators(selection)  # where a cache has the code, no pass runs
        return fingerprint.of(self.config, selection, self.ops)

    @property
    def reports(self) -> list[GraphReport]:
        """What was done to each graph so far."""
        return sink.graphs(self.key)

    @property
    def selected_impls(self) -> dict[str, dict[str, str]]:
        """Providers by op and node, of all graphs so far; named as in a `CompileReport`."""
        return CompileReport(tuple(self.reports), {}).selected_impls

    def _selection(self) -> Selection:
        if self.selection is not None:
            return self.selection
        context = TracingContext.try_get()
        if context is None:
            return Selection.in_force()
        return _selections.setdefault(context, Selection.in_force())

    def _keep(self, report: GraphReport) -> None:
        sink.add(self.key, report, self.side_file)
        trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": "vllm_ir_lowering", "encoding": "json"},
            payload_fn=lambda: json.dumps(report.to_dict()),
            expect_trace_id=False,
        )
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("lowered a graph:\n%s", CompileReport((report,), {}))


def run_passes(
    graph: fx.Graph,
    config: CompileConfig,
    selection: Selection,
    tracer: Tracer | None = None,
    for_code: bool = False,
) -> GraphReport | None:
    """Run every pass on a functional graph.

    Args:
        graph: Changed in place.
        config: The choices.
        selection: The priorities to lower by.
        tracer: As for `lower`.
        for_code: Inductor makes code of the graph, in an order of its own.

    Returns:
        What was done; None: the graph calls no op.

    Raises:
        IrTypeError, IrRuntimeError: As for `PostGradPass`.
    """
    report = GraphReport(_kind(graph))
    mend_bodies(graph)
    collect(graph)
    if not ir_nodes(graph):
        return None
    note_results(graph)
    known = len(guards_of(graph))
    chooser = Chooser(selection)
    report.fusions = fusion.apply(graph, config, selection)
    choices = chooser.choose_all(graph)
    writing = [(c.node, c.op) for c in choices if c.impl.inplace]
    report.hoisted = hoist_readers(graph, writing)
    lowered = lower(graph, choices, chooser, tracer)
    remove_clones(graph, lowered)
    if for_code:
        realize_readers(graph, lowered.replaced)
        keep_strides(graph)
    verify(graph)
    report.nodes = chooser.reports
    report.guards = guards_of(graph)[known:]
    return report


def _kind(graph: fx.Graph) -> str:
    tangents = any(n.op == "placeholder" and n.name.startswith("tangents") for n in graph.nodes)
    return "backward" if tangents else "forward"
