# SPDX-License-Identifier: Apache-2.0
"""Counts what a call allocates through torch's allocator, by torch's profiler."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

WRAPPED_NUMBER = 8  # bytes; torch makes a tensor of each Python number that meets one


@dataclass(frozen=True)
class Allocations:
    """Memory that a call asked for, on the CPU.

    Attributes:
        count: number of allocations; tensors of one number are left out.
        total: bytes of all of them, results included.
        peak: most bytes held at a time beyond those held before, results included.
    """

    count: int
    total: int
    peak: int


def allocations_of(call: Callable[[], Any]) -> Allocations:
    """Run `call` once; its result is held until the counting ends."""
    with quiet_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = call()
    del result
    events = seen.profiler.kineto_results.events()
    return add_up([event.nbytes() for event in events if event.name() == "[memory]"])


def add_up(changes: list[int]) -> Allocations:
    """Roll up changes in bytes: positive when memory is taken, negative when it is given back."""
    changes = [change for change in changes if abs(change) > WRAPPED_NUMBER]
    held = peak = 0
    for change in changes:
        held += change
        peak = max(peak, held)
    taken = [change for change in changes if change > 0]
    return Allocations(len(taken), sum(taken), peak)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Send to nowhere what C++ code writes to stderr: the profiler announces itself there."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
