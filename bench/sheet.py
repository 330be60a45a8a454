# SPDX-License-Identifier: Apache-2.0
"""Collects timings and goals of one bench, prints them as a table and writes them as JSON."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import describe_machine
from stopwatch import Timing


@dataclass(frozen=True)
class Goal:
    """A number with its limit.

    Attributes:
        label: what is compared.
        value: the measured number; NaN when a part of it could not be measured.
        limit: the number to reach.
        at_least: True when larger is better.
        unit: printed behind the numbers.
        unknown: printed for a NaN: why there is no number.
    """

    label: str
    value: float
    limit: float
    at_least: bool = False
    unit: str = ""
    unknown: str = "not measured"

    @property
    def reached(self) -> bool:
        """Whether the value is on the right side of the limit; a NaN is not."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        mark = (
            "pass" if self.reached else "FALLS SHORT" if self.value == self.value else self.unknown
        )
        value, limit = f"{self.value:9.3f}{self.unit:3}", f"{self.limit:<6g}{self.unit:3}"
        return f"{self.label:<80} {value} {sign} {limit} {mark}"


class Sheet:
    """The result of one bench; everything printed is also in the JSON document."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.machine = describe_machine()
        self.timings: dict[str, dict[str, Timing]] = {}  # section → label → timing
        self.facts: dict[str, Any] = {}
        self.goals: list[Goal] = []
        print(title)
        for key, value in self.machine.items():
            print(f"  {key:10} {value}")

    def section(self, name: str, timings: Mapping[str, Timing]) -> None:
        """Add and print a table of call times."""
        self.timings[name] = dict(timings)
        print(f"\n{name:<80} {'min ns':>10} {'± ns':>8} {'median':>10}")
        for row in timings.values():
            print(f"{row.label:<80} {row.minimum:10.1f} {row.wobble:8.1f} {row.median:10.1f}")

    def fact(self, name: str, value: Any, text: str) -> None:
        """Add a measured thing that is not a call time, and print `text`."""
        self.facts[name] = value
        print(text)

    def goal(self, goal: Goal) -> None:
        """Add a goal; `print_goals` shows all of them at the end."""
        self.goals.append(goal)

    def ratio(self, label: str, part: Timing | None, whole: Timing | None, limit: float) -> None:
        """Add the goal `part ÷ whole ≤ limit`; None stands for a row that could not be measured."""
        value = part.minimum / whole.minimum if part and whole else float("nan")
        self.goal(Goal(label, value, limit))

    def print_goals(self) -> None:
        """Print each goal with its mark."""
        if self.goals:
            print("\ngoals")
        for goal in self.goals:
            print(goal)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole result as plain data."""
        return {
            "title": self.title,
            "machine": self.machine,
            "timings_ns": {
                name: {
                    label: {k: v for k, v in asdict(t).items() if k != "label"}
                    for label, t in rows.items()
                }
                for name, rows in self.timings.items()
            },
            "facts": self.facts,
            "goals": [asdict(goal) | {"reached": goal.reached} for goal in self.goals],
        }

    def finish(self, json_file: Path | None) -> None:
        """Print the goals, and write the JSON document when a file was asked for."""
        self.print_goals()
        if json_file is not None:
            json_file.write_text(json.dumps(self.to_dict(), indent=1) + "\n")


def bench_arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benches share."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to FILE")
    parser.add_argument("--only", metavar="TEXT", help="only the rows whose label contains TEXT")
    return parser
