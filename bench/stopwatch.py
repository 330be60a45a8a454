# SPDX-License-Identifier: Apache-2.0
"""Times many statements, of nanoseconds to milliseconds, against each other in one process.

How a number comes about, and why:

- A statement is compiled into a loop of its own, with its names as closure variables, so every row
  pays the same for look-ups. The time of an empty loop, measured in the same rounds, is subtracted.
- A *slice* runs the loop for about 0.4 ms. In a *round* each case gets one slice; the next round
  begins one case later. Slow moments of the machine thus meet all cases, and no case always follows
  the same neighbour.
- The *minimum* over the rounds is the number: everything else that happens on a machine only adds
  time. `wobble` beside it is the difference between the minima of the even and of the odd rounds:
  what a second measurement would change. `median` tells how noisy the machine was.
- The garbage collector is off while measuring.
"""

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

Loop = Callable[..., int]  # (iterations: iterator, clock) → nanoseconds


@dataclass(frozen=True)
class Case:
    """One statement to time.

    Attributes:
        label: names the row; unique in a measurement.
        statement: Python source of one call, for example `op(x, w, eps)`.
        names: the objects that the statement mentions.
        around: makes a context that is entered for each slice, for state that must not touch other
            rows.
        check: called once before timing with the value of the statement, then an expression; raises
            when it is wrong.
    """

    label: str
    statement: str
    names: Mapping[str, Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    check: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Timing:
    """Nanoseconds of one call: `minimum`, `wobble` (uncertainty of the minimum) and `median`."""

    label: str
    minimum: float
    wobble: float
    median: float


def measure(cases: Sequence[Case], rounds: int = 400, slice_ns: int = 400_000) -> dict[str, Timing]:
    """Verify and time `cases` against each other.

    Args:
        cases: the rows; labels are unique.
        rounds: slices per case, at least 2.
        slice_ns: length of a slice; a statement that takes longer runs once a slice.

    Returns:
        label → timing, in the order of `cases`.
    """
    if len({case.label for case in cases}) != len(cases):
        raise ValueError("Two cases share a label; labels are the keys of the result.")
    for case in cases:
        verify(case)
    empty = Case("", "pass", {})
    prepared = [_prepare(case, slice_ns) for case in (empty, *cases)]
    samples: list[list[float]] = [[] for _ in prepared]
    gc.collect()
    gc.disable()
    try:
        for first in range(rounds):
            for offset in range(len(prepared)):
                index = (first + offset) % len(prepared)
                samples[index].append(_slice(*prepared[index]))
    finally:
        gc.enable()
    nothing = min(samples[0])
    return {
        case.label: _timing(case.label, times, nothing)
        for case, times in zip(cases, samples[1:], strict=True)
    }


def verify(case: Case) -> None:
    """Run the statement once and hand its value to the check.

    Raises:
        RuntimeError: the statement or the check failed; a wrong result must not get a time.
    """
    try:
        with case.around():
            if case.check is None:
                exec(case.statement, dict(case.names))
            else:
                case.check(eval(case.statement, dict(case.names)))
    except Exception as error:
        raise RuntimeError(f"bench row '{case.label}' is wrong: {error}") from error


def repeat(case: Case, count: int) -> None:
    """Run the statement `count` times without a clock, for instruction counters."""
    loop = compile_loop(case)
    gc.disable()
    with case.around():
        loop(itertools.repeat(None, count), time.perf_counter_ns)
    gc.enable()


def compile_loop(case: Case) -> Loop:
    """Compile `for _ in iterations: <statement>` between two readings of the clock."""
    source = (
        f"def make({', '.join(case.names)}):\n"
        "    def loop(iterations, clock):\n"
        "        begin = clock()\n"
        "        for _ in iterations:\n"
        f"            {case.statement}\n"
        "        return clock() - begin\n"
        "    return loop\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(source, f"<bench row '{case.label}'>", "exec"), scope)
    loop: Loop = scope["make"](**case.names)
    return loop


def _prepare(case: Case, slice_ns: int) -> tuple[Case, Loop, int]:
    """Compile the loop, warm it up, and find the iterations of one slice."""
    loop, count = compile_loop(case), 1
    with case.around():
        loop(itertools.repeat(None, 3), time.perf_counter_ns)
        while (elapsed := _shortest(loop, count)) < slice_ns // 2:
            count *= 2
    return case, loop, max(1, round(count * slice_ns / elapsed))


def _shortest(loop: Loop, count: int) -> int:
    # Of several: a pause of the machine in a single one would end the search with a tiny slice.
    return min(loop(itertools.repeat(None, count), time.perf_counter_ns) for _ in range(3))


def _slice(case: Case, loop: Loop, count: int) -> float:
    with case.around():
        return loop(itertools.repeat(None, count), time.perf_counter_ns) / count


def _timing(label: str, times: Sequence[float], nothing: float) -> Timing:
    wobble = abs(min(times[::2]) - min(times[1::2]))
    return Timing(label, min(times) - nothing, wobble, statistics.median(times) - nothing)
