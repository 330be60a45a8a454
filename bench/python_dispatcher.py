# SPDX-License-Identifier: Apache-2.0
"""The selection rule in plain Python, as a yardstick: a call without a C++ core."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PythonImpl:
    """One implementation: `run`, and `accepts`, which may refuse the arguments."""

    run: Callable[..., Any]
    accepts: Callable[..., bool] | None = None


class PythonDispatcher:
    """Run the first implementation that accepts the arguments."""

    def __init__(self, impls: Sequence[PythonImpl]) -> None:
        self.impls = impls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for impl in self.impls:
            if impl.accepts is None or impl.accepts(*args, **kwargs):
                return impl.run(*args, **kwargs)
        raise RuntimeError("no implementation accepts the arguments")
