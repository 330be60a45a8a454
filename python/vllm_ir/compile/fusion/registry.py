# SPDX-License-Identifier: Apache-2.0
"""The passes, in the order in which they run, by name.

One list, no hidden phases: a pass stands behind everything that it was registered `after`, and in
front of everything that it was registered `before`. Without either it is the last.
"""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from vllm_ir.compile.fusion.rewriter import Rewriter
from vllm_ir.errors import (
    DuplicateError,
    IrTypeError,
    IrValueError,
    UnknownNameError,
    unknown_name,
)
from vllm_ir.facts import caller
from vllm_ir.identity import known_identity

Run = Callable[[Rewriter], None]
F = TypeVar("F", bound=Run)
WHERE = "vllm_ir.fusion"


@dataclass(frozen=True)
class FusionPass:
    """One pass of the list.

    Attributes:
        name: What `CompileConfig.fusions` calls it.
        run: Rewrites a graph.
        default: Whether it runs when `CompileConfig.fusions` is None.
        source: Where it was registered, "file:line".
        functions: The functions that decide what it does; their files identify it in caches.
        text: What identifies it beside them.
        identity_now: Returns what its result depends on in this process, None when that can't be
            known.
    """

    name: str
    run: Run
    default: bool
    source: str
    functions: tuple[Callable[..., object], ...]
    text: str = ""
    identity_now: Callable[[], str | None] | None = None

    def identity(self) -> str | None:
        """Return what identifies the pass for compile caches, None when it can't be known."""
        state = "" if self.identity_now is None else self.identity_now()
        if state is None:
            return None
        found = known_identity(f"{WHERE}.{self.name}", self.text, state, *self.functions)
        return None if found is None else f"{self.name} {found}"


_passes: tuple[FusionPass, ...] = ()  # replaced as a whole: readers need no lock
_registering = threading.Lock()


def passes() -> tuple[FusionPass, ...]:
    """Return all passes in the order in which they run."""
    return _passes


def register_pass(
    name: str,
    *,
    before: str | Sequence[str] = (),
    after: str | Sequence[str] = (),
    default: bool = True,
    identity: Callable[[], str | None] | None = None,
) -> Callable[[F], F]:
    """Return a decorator that registers a function as a pass over a graph.

    The function is called with a `Rewriter` once for each graph that holds an op. It must say what
    it did: `rewriter.matched(...)`, and `rewriter.near_miss(...)` where it had to leave something.
    For a pattern with a replacement, `register_fusion` is shorter.

    Register before compiling: code that exists stays as it is.

    Args:
        name: For `CompileConfig.fusions`; matches `^[a-z_][a-z0-9_]*$`.
        before: Names of passes that must run later.
        after: Names of passes that must have run.
        default: Whether it runs when `CompileConfig.fusions` is None.
        identity: Returns what the result depends on in this process beside the function's file, a
            rank or an environment variable say; None bypasses compile caches.

    Raises:
        DuplicateError: The name is taken.
        IrValueError: A bad name, or an order that can't be.
        UnknownNameError: `before` or `after` names no pass.

    Example:
        >>> from vllm_ir.compile import fusion
        >>> @fusion.register_pass("count_norms", before="add_rms_norm", default=False)
        ... def count_norms(rewriter):
        ...     for node in rewriter.graph.nodes:
        ...         if "rms_norm" in str(node.target):
        ...             rewriter.matched(node, "counted")
        >>> fusion.passes()[0].name
        'count_norms'
    """
    source = caller()

    def decorate(run: F) -> F:
        if not callable(run):
            raise IrTypeError(
                f"{WHERE}.{name}: a pass must be a function of a Rewriter, "
                f"got {type(run).__name__}."
            )
        made = FusionPass(name, run, default, source, (run,), identity_now=identity)
        add(made, before, after)
        return run

    return decorate


def add(new: FusionPass, before: str | Sequence[str], after: str | Sequence[str]) -> None:
    """Put a pass into the list.

    Raises:
        DuplicateError, IrValueError, UnknownNameError: As for `register_pass`.
    """
    global _passes
    if not isinstance(new.name, str) or not re.fullmatch("[a-z_][a-z0-9_]*", new.name):
        raise IrValueError(
            f"{WHERE}: the name of a pass must match ^[a-z_][a-z0-9_]*$, got {new.name!r}."
        )
    with _registering:
        for other in _passes:
            if other.name == new.name:
                raise DuplicateError(
                    f"{WHERE}.{new.name}: registered already, at {other.source}, got another at "
                    f"{new.source}. Choose another name, or unregister the first."
                )
        place = _place(new.name, _as_names(before), _as_names(after))
        _passes = (*_passes[:place], new, *_passes[place:])


def unregister(name: str) -> None:
    """Take a pass out of the list; code that was compiled with it stays as it is.

    Raises:
        UnknownNameError: No pass has this name.
    """
    global _passes
    with _registering:
        _index_of(name, WHERE)
        _passes = tuple(p for p in _passes if p.name != name)


def chosen(fusions: tuple[str, ...] | None) -> list[FusionPass]:
    """Return the passes that a configuration asks for, in the order in which they run.

    Args:
        fusions: Names, in any order; None means those that are on by default.

    Raises:
        UnknownNameError: No pass has one of the names.
    """
    if fusions is None:
        return [p for p in _passes if p.default]
    for name in fusions:
        _index_of(name, "vllm_ir.compile")
    return [p for p in _passes if p.name in fusions]


def _place(name: str, before: tuple[str, ...], after: tuple[str, ...]) -> int:
    where = f"{WHERE}.{name}"
    last_in_front = max((_index_of(n, where) for n in after), default=-1)
    first_behind = min((_index_of(n, where) for n in before), default=len(_passes))
    if last_in_front >= first_behind:
        raise IrValueError(
            f"{where}: must run after '{_passes[last_in_front].name}' and before "
            f"'{_passes[first_behind].name}', got the order "
            f"{', '.join(p.name for p in _passes)}. Leave one of them out."
        )
    return first_behind


def _index_of(name: str, where: str) -> int:
    names = [p.name for p in _passes]
    if name not in names:
        raise UnknownNameError(unknown_name(where, "fusion pass", name, names))
    return names.index(name)


def _as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
