# SPDX-License-Identifier: Apache-2.0
"""Times batches of calls on a device, in interleaved rounds.

- On the GPU two events stand around a batch, so that launches of one batch overlap with work of the
  call before, as they do in a model; on the CPU the clock is `perf_counter_ns`.
- A batch walks over many sets of arguments, and the next one goes on where it ended. Results are
  kept for a whole walk, so that they too land where nothing is in the cache.
- In a *round* each lane gets one batch, and the next round begins one lane later. The *median* over
  the rounds is the number: on a GPU clocks go up and down, and a minimum would be a lucky moment.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from device_contenders import Contender
from device_findings import Budget
from device_graphs import captured

LEAST_ROUNDS = 3
GRAPH_CALLS = (20, 20_000)  # how many calls go into a graph; with more than that there is none


class Spread(NamedTuple):
    """Nanoseconds of one call over the rounds.

    Attributes:
        median: the number.
        noise: half of the distance between the quartiles.
        rounds: how many there were.
    """

    median: float
    noise: float
    rounds: int


class HostClock:
    """Times what runs on the CPU."""

    batch_ns = 300_000

    def time(self, batch: Callable[[], Any]) -> float:
        """Return the nanoseconds of one batch."""
        begin = time.perf_counter_ns()
        batch()
        return float(time.perf_counter_ns() - begin)


class EventClock:
    """Times what runs on a GPU, from the first to the last kernel of a batch."""

    batch_ns = 2_000_000

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self.cuda = cuda

    def time(self, batch: Callable[[], Any]) -> float:
        """Return the nanoseconds of one batch."""
        begin, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
        self.cuda.synchronize()
        begin.record()
        batch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e6


Clock = HostClock | EventClock


class Walk:
    """Calls a contender with one set after the other, and keeps the results of the last round.

    Args:
        contender: who is called.
        kept: one place for each set; None for a contender that makes no new tensors.
    """

    def __init__(self, contender: Contender, kept: list[Any] | None) -> None:
        self.contender = contender
        self._kept = kept if contender.fresh and kept is not None else [None] * len(contender.sets)
        self._position = 0

    def run(self, count: int) -> None:
        """Make the next `count` calls."""
        call, sets, kept = self.contender.call, self.contender.sets, self._kept
        n, begin = len(sets), self._position
        with self.contender.scope():
            for i in range(begin, begin + count):
                kept[i % n] = call(*sets[i % n])
        self._position = begin + count


@dataclass
class Lane:
    """One thing that is timed: `batch` makes `calls` calls."""

    label: str
    batch: Callable[[], Any]
    calls: int


def eager_lane(contender: Contender, kept: list[Any], clock: Clock) -> Lane:
    """Warm a contender up and find how many calls make a batch.

    `kept` must hold results already: memory is then allocated once, before anything is timed.
    """
    walk = Walk(contender, kept)
    walk.run(3)
    count = 1
    while (elapsed := clock.time(partial(walk.run, count))) < clock.batch_ns / 2 and count < 4096:
        count *= 2
    calls = max(1, min(8192, round(count * clock.batch_ns / max(1.0, elapsed))))
    return Lane(contender.label, partial(walk.run, calls), calls)


def graph_lane(contender: Contender, cuda: Any) -> Lane | None:
    """Capture a whole walk over the sets: a replay launches nothing from the host.

    Returns:
        None when the walk is too long for a graph.
    """
    n = len(contender.sets)
    calls = n * -(-GRAPH_CALLS[0] // n)
    if calls > GRAPH_CALLS[1]:
        return None
    walk = Walk(contender, kept=[None] * n)
    graph, _ = captured(cuda, partial(walk.run, calls), warm_ups=1)
    return Lane(contender.label, graph.replay, calls)


def rounds_of(lanes: Sequence[Lane], clock: Clock, budget: Budget, most: int = 25) -> list[Spread]:
    """Time each lane in rounds until the time is spent, `LEAST_ROUNDS` at least."""
    samples: list[list[float]] = [[] for _ in lanes]
    for first in range(most):
        if first >= LEAST_ROUNDS and budget.left <= 0:
            break
        for offset in range(len(lanes)):
            index = (first + offset) % len(lanes)
            samples[index].append(clock.time(lanes[index].batch) / lanes[index].calls)
    return [spread(nanoseconds) for nanoseconds in samples]


def spread(samples: Sequence[float]) -> Spread:
    """Summarise the rounds of one lane."""
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(median, (high - low) / 2, len(samples))
