# SPDX-License-Identifier: Apache-2.0
"""What was chosen and why, as values that print: `Explanation` for one call, `Report` for all."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decision:
    """The verdict on one implementation.

    `status` is one of "selected", "rejected", "unsupported", "not in the priority list",
    "unreachable" (behind one that accepts everything) and "not reached".
    """

    provider: str
    status: str
    reason: str
    source: str  # where it was registered, "file:line"

    def __str__(self) -> str:
        if self.status == "unreachable":
            return self.reason
        return f"{self.status}: {self.reason}" if self.reason else self.status

    def to_dict(self) -> dict[str, str]:
        """Return the fields as a plain dictionary."""
        return dict(vars(self))


@dataclass(frozen=True)
class Explanation:
    """Which implementation runs for one set of arguments, and a decision for every other one."""

    op: str
    selected: str
    priority: tuple[str, ...]
    decisions: tuple[Decision, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and lists, ready for JSON."""
        return {
            "op": self.op,
            "selected": self.selected,
            "priority": list(self.priority),
            "impls": [d.to_dict() for d in self.decisions],
        }

    def __str__(self) -> str:
        width = max(len(d.provider) for d in self.decisions)
        head = f"vllm_ir.{self.op}: {self.selected} runs (priority: {', '.join(self.priority)})"
        return "\n".join([head, *(f"  {d.provider:<{width}}  {d}" for d in self.decisions)])


@dataclass(frozen=True)
class ImplCounts:
    """How often one implementation ran, and how often it said no, by reason."""

    provider: str
    selected: int
    rejections: dict[str, int]


@dataclass(frozen=True)
class OpReport:
    """The calls of one op since the process started or the counters were reset."""

    op: str
    impls: tuple[ImplCounts, ...]
    gradient_calls: int  # native ran because a gradient was needed

    @property
    def calls(self) -> int:
        """All calls together."""
        return sum(i.selected for i in self.impls)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries, ready for JSON."""
        return {
            "calls": self.calls,
            "gradient_calls": self.gradient_calls,
            "impls": {
                i.provider: {"selected": i.selected, "rejections": dict(i.rejections)}
                for i in self.impls
            },
        }

    def __str__(self) -> str:
        ran = [i for i in self.impls if i.selected]
        # Native last: the reasons behind it are why the others did not run.
        ran.sort(key=lambda i: (i.provider == "native", -i.selected))
        # A call may end among the callables, after some rejections.
        parts = [f"{i.provider} {i.selected}" for i in ran] or ["none ran"]
        reasons = self._reasons()
        if reasons:
            parts[-1] += f" ({'; '.join(reasons)})"
        return f"{self.op}: {self.calls} calls; {', '.join(parts)}"

    def _reasons(self) -> list[str]:
        refusing = [i for i in self.impls if i.rejections]
        reasons = []
        for impl in refusing:
            prefix = f"{impl.provider}: " if len(refusing) > 1 else ""
            reasons += [f"{prefix}{reason}: {n}" for reason, n in impl.rejections.items()]
        if self.gradient_calls:
            reasons.append(f"a gradient was needed: {self.gradient_calls}")
        return reasons


@dataclass(frozen=True)
class Report:
    """The roll-up of all ops that were called: `print(vllm_ir.report())`."""

    ops: tuple[OpReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts by op, ready for JSON."""
        return {o.op: o.to_dict() for o in self.ops}

    def __str__(self) -> str:
        return "\n".join(str(o) for o in self.ops) or "no vllm_ir op was called"
