# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `torch.cuda` where no GPU is: graphs that record operators and run them again.

What a graph records runs while it is recorded, other than on a GPU; only a replay that follows new
inputs shows that it was recorded rightly.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FakeStream:
    """A stream by name."""

    def __init__(self, cuda: "FakeCuda", name: str) -> None:
        self.name = name
        self._cuda = cuda

    def wait_stream(self, other: "FakeStream") -> None:
        self._cuda.log.append(f"{self.name} waits for {other.name}")


class FakeGraph(TorchDispatchMode):
    """Operators with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            for old, new in zip(
                tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True
            ):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class FakeEvent:
    """A reading of the host's clock."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "FakeEvent") -> float:
        return (end.at - self.at) * 1e3


class FakeCuda:
    """The part of `torch.cuda` that the device check uses; `log` is what it was asked to do."""

    CUDAGraph = FakeGraph
    Event = FakeEvent

    def __init__(self) -> None:
        self.log: list[str] = []
        self._current = FakeStream(self, "main")

    def Stream(self) -> FakeStream:
        return FakeStream(self, "side")

    def current_stream(self) -> FakeStream:
        return self._current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream
        self.log.append(f"on {stream.name}")
        yield
        self._current = before

    @contextmanager
    def graph(self, graph: FakeGraph) -> Iterator[None]:
        self.log.append("capture")
        with graph:
            yield

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def _sleep(self, cycles: int) -> None:
        self.log.append("sleep")
