# SPDX-License-Identifier: Apache-2.0
"""What `ir.explain(compiled)` says about a whole model, rolled up: a line for each op."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import vllm_ir as ir


@dataclass
class OpLowering:
    """What became of all calls of one op.

    Attributes:
        selected: provider → number of calls.
        copies_kept: copies that protect a donated or living value from being overwritten.
        copies_removed: such copies that turned out to protect nobody.
        others: why another implementation was not taken → number of calls.
    """

    selected: Counter[str] = field(default_factory=Counter)
    copies_kept: int = 0
    copies_removed: int = 0
    others: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Lowering:
    """What became of a compiled model.

    Attributes:
        graphs: how often it was compiled: once when nothing had to be compiled again.
        cached: whether the code came from torch's cache on disk.
        ops: op → what became of its calls.
    """

    graphs: int
    cached: bool
    ops: dict[str, OpLowering]

    @classmethod
    def of(cls, report: ir.compile.CompileReport) -> "Lowering":
        """Roll up what `ir.explain(compiled)` returned."""
        ops: dict[str, OpLowering] = {}
        for node in report.nodes:
            op = ops.setdefault(node.op, OpLowering())
            op.selected[node.selected] += 1
            op.copies_kept += sum(clone.kept for clone in node.clones)
            op.copies_removed += sum(not clone.kept for clone in node.clones)
            op.others.update(f"{d.provider} {d}" for d in node.decisions if d.status != "selected")
        return cls(len(report.graphs), any(graph.cached for graph in report.graphs), ops)

    def runs_only(self, provider: str, ops: Iterable[str]) -> bool:
        """Whether every call became `provider`, and there was one of each op."""
        return all(op in self.ops and set(self.ops[op].selected) == {provider} for op in ops)

    def selected(self) -> dict[str, dict[str, int]]:
        """Return op → provider → number of calls."""
        return {name: dict(op.selected) for name, op in self.ops.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        ops = {
            name: vars(op) | {"selected": dict(op.selected), "others": dict(op.others)}
            for name, op in self.ops.items()
        }
        return {"graphs": self.graphs, "cached": self.cached, "ops": ops}

    def __str__(self) -> str:
        head = f"{'op':20} {'runs':12} {'copies removed':>14} {'kept':>5}   others"
        return "\n".join([head, *(_line(name, op) for name, op in self.ops.items())])


def _line(name: str, op: OpLowering) -> str:
    runs = ", ".join(f"{provider} {count}" for provider, count in op.selected.most_common())
    others = ", ".join(op.others) or "-"
    return f"{name:20} {runs:12} {op.copies_removed:14} {op.copies_kept:5}   {others}"
