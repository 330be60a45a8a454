# SPDX-License-Identifier: Apache-2.0
"""What the passes did to a graph, as values: decisions, clones, fusions. They print and pickle."""

from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_ir.explanation import Decision


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
    """One place that a fusion or transformation pass looked at."""

    name: str  # of the pass
    node: str
    module: str
    matched: bool
    reason: str  # of a near-miss; for a match, what was made


@dataclass
class GraphReport:
    """One graph: a forward or backward graph, or the body of a higher-order operator."""

    kind: str  # "forward", "backward"
    nodes: list[NodeReport] = field(default_factory=list)
    fusions: list[FusionReport] = field(default_factory=list)
    hoisted: int = 0

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
        return cls(data["kind"], nodes, fusions, data["hoisted"])
