# SPDX-License-Identifier: Apache-2.0
"""Prints the findings of device_check.py as one table, a line for each fact."""

from collections.abc import Iterator, Sequence
from typing import Any

from device_findings import Findings, Note
from device_problems import NOISY

LONGEST = 240  # characters of a reason; all of it is in the JSON document
MOST = 40  # lines of one list


def table(findings: Findings) -> Iterator[str]:
    """Yield the lines."""
    yield from conformance(findings.conformance)
    yield from graphs(findings.graphs)
    yield from overhead(findings.overhead)
    yield from timings(findings.timings)
    if findings.goals:
        yield "\ngoals of the design (they don't change the exit code)"
        yield from (f"  {goal}" for goal in findings.goals)
    yield from notes("skipped", findings.skipped)
    yield from notes("FAILED", findings.failures)
    yield ""
    yield verdict(findings)


def conformance(rows: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each provider of each op in each dtype."""
    if rows:
        yield (
            f"\n{'conformance: op.provider':<30} {'dtype':<9} {'cases':>5} {'failed':>6} "
            f"{'refused':>7} {'values':>9} {'differ':>8} {'ULP':>5} {'atol':>7} {'rtol':>7} "
            f"{'of truth bound':>14}"
        )
    for r in rows:
        yield (
            f"  {f'{r.op}.{r.provider}':<28} {r.dtype:<9} {r.cases:5} {r.failed:6} "
            f"{sum(r.refused.values()):7} {r.values:9} {r.differing:8} {r.largest_ulp:5} "
            f"{r.atol:7.2g} {r.rtol:7.2g} {r.of_bound:14.3g}"
        )


def graphs(rows: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each check, with the problems that share its outcome."""
    if rows:
        yield f"\n{'graphs and streams':<28} {'provider':<14} outcome"
    together: dict[tuple[str, str, str], list[str]] = {}
    for r in rows:
        together.setdefault((r.check, r.provider, r.status), []).append(r.problem)
    for (check, provider, status), problems in together.items():
        where = f" ({', '.join(problems)})" if any(problems) else ""
        yield f"  {check:<26} {provider:<14} {shortened(status)}{where}"


def overhead(rows: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each way to call."""
    if rows:
        yield f"\n{'one call on 16 values':<44} {'ns':>8} {'± ns':>7} {'÷ kernel op':>12}"
    for r in rows:
        ratio = "" if r.of_kernel is None else f"{r.of_kernel:12.2f}"
        yield f"  {r.route:<42} {r.ns:8.0f} {r.noise_ns:7.0f} {ratio}"


def timings(rows: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each problem: each contender's microseconds, and its fraction of a copy.

    Marks stand behind a time, and the last lines say what those that occur mean.
    """
    problems = list(dict.fromkeys(r.problem for r in rows))
    starred = False
    for op in dict.fromkeys(problem.split()[0] for problem in problems):
        mine = [r for r in rows if r.problem.split()[0] == op]
        labels = list(dict.fromkeys(r.contender for r in mine))
        yield f"\n{op + ': us, of copy':<28}" + "".join(f"{label:>20}" for label in labels)
        replayed = any(r.basis == "graph" for r in mine)
        starred |= replayed and any(r.basis != "graph" for r in mine)
        for problem in dict.fromkeys(r.problem for r in mine):
            cells = {r.contender: cell(r, replayed) for r in mine if r.problem == problem}
            line = "".join(f"{cells.get(label, '-'):>20}" for label in labels)
            yield f"  {problem.partition(' ')[2]:<26}{line}"
    if starred:
        yield "  * launched from the host, where others are replayed from a graph"
    if any(r.noisy for r in rows):
        yield f"  ~ noise above {NOISY:.0%} of the time; such a time is compared with nothing"


def cell(row: Any, replayed: bool) -> str:
    """Return the time and the fraction of one contender, no fraction where noise makes it up."""
    time = row.graph_us if row.basis == "graph" else row.eager_us
    star = "*" if replayed and row.basis != "graph" else ""
    noise = "~" if row.noise > NOISY else ""
    fraction = "~" if row.noisy else f"{row.of_copy:.2f}"
    return f"{time:.2f}{star}{noise} {fraction:>6}"


def notes(title: str, rows: Sequence[Note]) -> Iterator[str]:
    """Yield a line for each note, the first ones of many."""
    if rows:
        yield f"\n{title}: {len(rows)}"
    for note in rows[:MOST]:
        yield f"  {shortened(str(note))}"
    if len(rows) > MOST:
        yield f"  and {len(rows) - MOST} more, in the JSON document"


def shortened(text: str) -> str:
    """Return a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} …"


def verdict(findings: Findings) -> str:
    """Return the last line."""
    told = findings.verdict
    word = "passed" if told["passed"] else "FAILED"
    return (
        f"device_check {word}: {told['against_native']} cases of other providers against native, "
        f"{told['native_itself']} of native against itself, {told['graph_checks']} graph checks, "
        f"{told['timings']} timings; {told['failures']} failures, {told['skipped']} skipped, "
        f"{told['seconds']:.0f} s"
    )
