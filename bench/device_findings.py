# SPDX-License-Identifier: Apache-2.0
"""What a run of device_check.py has found so far, and how much of its time is left.

Findings are plain data from the first moment, and are written after each part: a run that is killed
leaves what it had.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
NO_TIME = "no time was left"
CUDA_ONLY = "CUDA only"


class Budget:
    """Seconds that may be spent, from now on."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._begin = clock()

    @property
    def spent(self) -> float:
        """Seconds since the budget was made."""
        return self._clock() - self._begin

    @property
    def left(self) -> float:
        """Seconds that may still be spent; below zero when it was overdrawn."""
        return self.seconds - self.spent

    def part(self, share: float) -> "Budget":
        """Return a budget that begins now, a share of what is left."""
        return Budget(max(0.0, self.left) * share, self._clock)


@dataclass(frozen=True)
class Note:
    """Something that failed, or was left out, and why."""

    part: str  # "conformance", "graphs", "overhead" or "timings"
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.part}: {self.what}: {self.why}"


@dataclass
class Findings:
    """Everything that a run tells; the fields are the keys of the JSON document.

    The rows of a part are data of its module: `Conformed`, `Replayed`, overheads, `Timed`.
    """

    machine: dict[str, str]
    settings: dict[str, Any]
    conformance: list[Any] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)
    overhead: list[Any] = field(default_factory=list)
    timings: list[Any] = field(default_factory=list)
    goals: list[Any] = field(default_factory=list)
    skipped: list[Note] = field(default_factory=list)
    failures: list[Note] = field(default_factory=list)
    finished: bool = False
    seconds: float = 0.0
    json_file: Path | None = None

    def skip(self, part: str, what: str, why: str) -> None:
        """Note what was left out."""
        self.skipped.append(Note(part, what, why))

    def fail(self, part: str, what: str, why: str) -> None:
        """Note a failure: the run's exit code will be 1."""
        self.failures.append(Note(part, what, why))

    @property
    def verdict(self) -> dict[str, Any]:
        """Whether all checks passed, and how many ran; a run that did not finish has not passed.

        Native against itself shows little beyond its distance from the truth, so that its cases
        are counted apart.
        """
        native = sum(row.cases for row in self.conformance if row.provider == "native")
        return {
            "passed": self.finished and not self.failures,
            "finished": self.finished,
            "against_native": sum(row.cases for row in self.conformance) - native,
            "native_itself": native,
            "graph_checks": sum(row.status != CUDA_ONLY for row in self.graphs),
            "timings": len(self.timings),
            "failures": len(self.failures),
            "skipped": len(self.skipped),
            "seconds": round(self.seconds, 1),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        data = asdict(self)
        for key in ("finished", "seconds", "json_file"):
            del data[key]
        document: dict[str, Any] = finite({"schema": SCHEMA, **data, "verdict": self.verdict})
        return document

    def write(self) -> None:
        """Write the JSON document, when a file was asked for."""
        if self.json_file is not None:
            text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
            self.json_file.write_text(text + "\n")


def why_unwritable(file: Path | None) -> str:
    """Return the sentence that says why a file can't be written, "" when it can or there is none.

    The file exists afterwards, and keeps what it had.
    """
    if file is None:
        return ""
    if not file.parent.is_dir():
        return (
            f"device_check: --json {file} needs the folder {file.parent}, and there is none. "
            "Make it, or name another file."
        )
    try:
        file.open("a").close()
    except OSError as error:
        return f"device_check: --json {file} can't be written: {error.strerror}. Name another file."
    return ""


def finite(value: Any) -> Any:
    """Return data with "inf" and "nan" as texts: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Progress:
    """Prints a line when something begins, with the seconds since the start."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def __call__(self, text: str) -> None:
        print(f"[{self._budget.spent:5.0f} s of {self._budget.seconds:.0f}] {text}", flush=True)
