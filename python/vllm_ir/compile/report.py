# SPDX-License-Identifier: Apache-2.0
"""What the passes did to a graph, as values: decisions, clones, fusions. They print and pickle."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_ir.explanation import Decision
from vllm_ir.text_table import render


@dataclass
class CloneReport:
    """A copy that protects an activation from an in-place implementation."""

    activation: str
    kept: bool
    reason: str  # why it was kept, or why it wasn't needed


@dataclass
class NodeReport:
    """One op call of a graph and what became of it."""

    node: str
    op: str
    module: str  # path of the calling module, "" when unknown
    source: str  # line of user code
    selected: str
    priority: list[str]
    decisions: list[Decision]
    donated: bool = False
    inside: str = ""  # "op.provider" of the implementation that made the call, "" for a model's own
    clones: list[CloneReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class FusionReport:
    """One place that a fusion or transformation pass looked at.

    `costs` has numbers to compare, "before" and "after" the change.
    """

    name: str  # of the pass
    node: str  # "" for the whole graph: nothing in it matched
    module: str
    matched: bool
    reason: str  # of a near-miss; for a match, what was made
    costs: dict[str, dict[str, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        place = f" at {self.node}" if self.node else ""
        verdict = "not fused: " if self.node and not self.matched else ""
        numbers = [
            f"{when}: " + ", ".join(f"{name} {n}" for name, n in of.items())
            for when, of in self.costs.items()
        ]
        return "; ".join([f"{self.name}{place}: {verdict}{self.reason}", *numbers])


@dataclass
class GraphReport:
    """One graph: a forward or backward graph, or the body of a higher-order operator."""

    kind: str  # "forward", "backward", or "autograd": what autograd takes apart
    nodes: list[NodeReport] = field(default_factory=list)
    fusions: list[FusionReport] = field(default_factory=list)
    hoisted: int = 0
    cached: bool = False  # the code came from a cache, the report from the file kept with it
    guards: list[str] = field(default_factory=list)  # what the passes asked of symbolic sizes

    @property
    def selected_impls(self) -> dict[str, dict[str, str]]:
        """Providers by op and node."""
        found: dict[str, dict[str, str]] = {}
        for node in self.nodes:
            found.setdefault(node.op, {})[node.node] = node.selected
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and lists, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "GraphReport":
        """Undo `to_dict`."""
        nodes = [
            NodeReport(
                **{
                    **n,
                    "decisions": [Decision(**d) for d in n["decisions"]],
                    "clones": [CloneReport(**c) for c in n["clones"]],
                }
            )
            for n in data["nodes"]
        ]
        fusions = [FusionReport(**f) for f in data["fusions"]]
        rest = (data["hoisted"], data["cached"], data["guards"])
        return cls(data["kind"], nodes, fusions, *rest)


@dataclass(frozen=True)
class CompileReport:
    """What was compiled, graph by graph; it prints as a table.

    Attributes:
        graphs: One for each graph of torch's, with a row for each op call.
        refused: Donations that were not taken, with the reason, by node of Dynamo's graph.
        unwrapped: Numbers of calls that have no row, by op: with wrap off no pass saw them.
    """

    graphs: tuple[GraphReport, ...]
    refused: dict[str, str]
    unwrapped: dict[str, int] = field(default_factory=dict)

    @property
    def nodes(self) -> list[NodeReport]:
        """All op calls."""
        return [n for g in self.graphs for n in g.nodes]

    @property
    def selected_impls(self) -> dict[str, dict[str, str]]:
        """Providers by op and node; nodes of later graphs that share a name are numbered."""
        found: dict[str, dict[str, str]] = {}
        for i, graph in enumerate(self.graphs):
            for op, nodes in graph.selected_impls.items():
                for node, provider in nodes.items():
                    mine = found.setdefault(op, {})
                    mine[node if node not in mine else f"{node}@{i}"] = provider
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and lists, ready for JSON."""
        return {
            "graphs": [g.to_dict() for g in self.graphs],
            "refused": dict(self.refused),
            "unwrapped": dict(self.unwrapped),
        }

    def __str__(self) -> str:
        lines = [self._summary()]
        for i, graph in enumerate(self.graphs):
            lines += ["", *_graph_lines(i, graph)]
        lines += [f"not donated: {node}: {reason}" for node, reason in self.refused.items()]
        if self.unwrapped:
            calls = ", ".join(f"{op} {n}" for op, n in self.unwrapped.items())
            lines.append(
                f"not listed: {calls}. With torch wrap off, these calls were compiled as what the "
                "selected implementations do, and no pass saw them."
            )
        return "\n".join(lines)

    def _summary(self) -> str:
        ran = Counter(n.selected for n in self.nodes)
        clones = [c for n in self.nodes for c in n.clones]
        kept = sum(c.kept for c in clones)
        providers = ", ".join(f"{name} {n}" for name, n in ran.most_common()) or "none"
        return (
            f"{len(self.graphs)} graphs, {len(self.nodes)} op calls: {providers}; "
            f"clones: {len(clones) - kept} removed, {kept} kept"
        )


def _graph_lines(index: int, graph: GraphReport) -> list[str]:
    head = f"graph {index} ({graph.kind})"
    if graph.hoisted:
        head += f", {graph.hoisted} readers moved in front"
    if graph.cached:
        head += ", code from a cache"
    columns = ("node", "module", "op", "runs", "others", "clones")
    table = [f"  {line}" for line in render(columns, [_row(n) for n in graph.nodes])]
    notes = [f"  {n.node}: {note}" for n in graph.nodes for note in n.notes]
    fusions = [f"  {f}" for f in graph.fusions]
    guards = [f"  holds where {guard}" for guard in graph.guards]
    return [head, *table, *notes, *fusions, *guards]


def _row(node: NodeReport) -> tuple[str, ...]:
    others = [f"{d.provider}: {d}" for d in node.decisions if d.status != "selected"]
    clones = [f"{c.activation} {'kept' if c.kept else 'removed'} ({c.reason})" for c in node.clones]
    module = node.module or "-"
    if node.inside:
        module += f" (in {node.inside})"
    return node.node, module, node.op, node.selected, "; ".join(others), "; ".join(clones) or "-"
