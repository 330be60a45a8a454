# SPDX-License-Identifier: Apache-2.0
"""How fast is each contender, beside the device's own copy of as many bytes?

Every problem is measured for itself: all contenders in the same rounds, on arguments that together
exceed the cache. On a GPU each is timed twice: launched from the host, which is what eager code
pays, and replayed from a CUDA graph, which is what the kernels take. Fractions compare like with
like: replays where there are such of both, launches else.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from contenders import Problem
from device_clock import (
    Clock,
    EventClock,
    HostClock,
    Lane,
    Spread,
    eager_lane,
    graph_lane,
    rounds_of,
)
from device_contenders import Contender, absent_packages, blank_results, check, contenders_of
from device_findings import NO_TIME, Budget, Findings, Progress
from device_problems import NOISY, activation_bytes, goals_of, problems
from sheet import Goal

PART = "timings"
LEAST_SECONDS = 3.0  # a problem of the full run that gets less is skipped


@dataclass(frozen=True)
class Timed:
    """One contender of one problem; times are microseconds of one call.

    Attributes:
        problem: op, dtype, rows and width.
        contender: who it is.
        provider: the same when it is one of ours, else "".
        eager_us: launched from the host, median of the rounds.
        eager_noise_us: half of the distance between the quartiles.
        graph_us: replayed from a graph, None without one.
        graph_noise_us: its noise.
        graph_note: why there is no graph.
        bytes_moved: what must be read and written, each byte once.
        gb_per_s: those bytes by the time of `basis`.
        of_copy: that speed by the speed of the copy, on the same basis.
        basis: "graph" or "eager": the times that `of_copy` compares.
        noise: of the time of `basis`, as a part of it.
        noisy: whether that or the copy's is above `NOISY`; `of_copy` then tells nothing.
        sets: how many sets of arguments took turns.
        rotated_bytes: what all sets together read, without weights.
        rounds: how many the medians are of.
    """

    problem: str
    contender: str
    provider: str
    eager_us: float
    eager_noise_us: float
    graph_us: float | None
    graph_noise_us: float | None
    graph_note: str
    bytes_moved: int
    gb_per_s: float
    of_copy: float
    basis: str
    noise: float
    noisy: bool
    sets: int
    rotated_bytes: int
    rounds: int


def measure_all(
    findings: Findings,
    device: str,
    quick: bool,
    with_compiled: bool,
    cache: int,
    budget: Budget,
    progress: Progress,
) -> None:
    """Measure all problems as far as the time goes; the others are listed as skipped.

    Args:
        findings: gets the rows, and is written after each problem.
        device: "cpu" or "cuda".
        quick: few and small problems, and code is compiled for the first one only.
        with_compiled: whether native is compiled at all.
        cache: bytes that the arguments of a problem must exceed.
        budget: split over the problems.
        progress: told of each problem.
    """
    clock: Clock = EventClock() if device == "cuda" else HostClock()
    todo = problems(quick)
    for module, why in absent_packages().items():
        findings.skip(PART, module, why)
    for number, problem in enumerate(todo):
        if budget.left <= (0 if quick else LEAST_SECONDS):
            findings.skip(PART, str(problem), NO_TIME)
            continue
        progress(f"timing {problem}")
        share = budget.part(1 / (len(todo) - number))
        compiled = with_compiled and (not quick or number == 0)
        try:
            with torch.inference_mode():
                measure_problem(findings, problem, device, compiled, cache, clock, share)
        except Exception as error:  # too little memory, say; other problems may fit
            findings.fail(PART, str(problem), f"{type(error).__name__}: {error}")
        findings.write()
        if device == "cuda":
            torch.cuda.empty_cache()


def measure_problem(
    findings: Findings,
    problem: Problem,
    device: str,
    with_compiled: bool,
    cache: int,
    clock: Clock,
    budget: Budget,
) -> None:
    """Time everybody who computes a problem rightly."""

    def skip(who: str, why: str) -> None:
        findings.skip(PART, f"{problem}: {who}", why)

    torch.compiler.reset()  # each shape gets code of its own, and there is a limit to their number
    entrants = contenders_of(problem, device, cache, with_compiled, skip)
    right = [entrant for entrant in entrants if admitted(findings, entrant, problem, skip)]
    graphs, notes = {}, dict.fromkeys((contender.label for contender in right), "CUDA only")
    if isinstance(clock, EventClock):
        for contender in right:
            graphs[contender.label], notes[contender.label] = try_graph(contender, clock)
    # After the captures, which give back the memory that is in no use.
    kept = blank_results(problem, device, len(right[-1].sets))
    lanes = [eager_lane(contender, kept, clock) for contender in right]
    replays = [lane for lane in graphs.values() if lane is not None]
    times = rounds_of([*lanes, *replays], clock, budget)
    eager = {lane.label: time for lane, time in zip(lanes, times, strict=False)}
    replayed = {lane.label: time for lane, time in zip(replays, times[len(lanes) :], strict=True)}
    for contender in right:
        row = timed(problem, contender, right[0], eager, replayed, notes[contender.label])
        findings.timings.append(row)
        findings.goals += goals_for(problem, row, device)


def goals_for(problem: Problem, row: Timed, device: str) -> list[Goal]:
    """Return the goals of a row: kernels of ours have some, on a GPU."""
    if device != "cuda" or row.provider in ("", "native"):
        return []
    return goals_of(problem, row.contender, math.nan if row.noisy else row.of_copy)


def admitted(
    findings: Findings, entrant: Contender, problem: Problem, skip: Callable[[str, str], None]
) -> bool:
    """Return whether a contender may be timed; a provider of ours with wrong results has failed."""
    try:
        wrong = check(entrant, problem)
    except Exception as error:  # a package of others may raise anything
        wrong = f"{type(error).__name__}: {error}"
    if wrong and entrant.provider:
        findings.fail(PART, f"{problem}: {entrant.label}", wrong)
    elif wrong:
        skip(entrant.label, wrong)
    return not wrong


def try_graph(contender: Contender, clock: EventClock) -> tuple[Lane | None, str]:
    """Return a lane that replays a graph, else why there is none: some calls can't be captured."""
    if contender.label == "native":
        return None, "native launches too many kernels"
    try:
        lane = graph_lane(contender, clock.cuda)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return lane, "" if lane else "too many sets for a graph"


def timed(
    problem: Problem,
    contender: Contender,
    copy: Contender,
    eager: Mapping[str, Spread],
    graphs: Mapping[str, Spread],
    note: str,
) -> Timed:
    """Put the row of one contender together."""
    basis = graphs if contender.label in graphs and copy.label in graphs else eager
    copied = 2 * int(copy.sets[0][0].nbytes)
    is_copy = contender is copy
    moved = copied if is_copy else problem.bytes_moved
    read = copied // 2 if is_copy else activation_bytes(problem)
    mine, graph = eager[contender.label], graphs.get(contender.label)
    time, time_of_copy = basis[contender.label], basis[copy.label]
    speed = moved / time.median
    noise = time.noise / time.median
    return Timed(
        problem=str(problem),
        contender=contender.label,
        provider=contender.provider,
        eager_us=mine.median / 1e3,
        eager_noise_us=mine.noise / 1e3,
        graph_us=None if graph is None else graph.median / 1e3,
        graph_noise_us=None if graph is None else graph.noise / 1e3,
        graph_note=note,
        bytes_moved=moved,
        gb_per_s=speed,
        of_copy=speed / (copied / time_of_copy.median),
        basis="graph" if basis is graphs else "eager",
        noise=noise,
        noisy=max(noise, time_of_copy.noise / time_of_copy.median) > NOISY,
        sets=len(contender.sets),
        rotated_bytes=len(contender.sets) * read,
        rounds=mine.rounds,
    )
