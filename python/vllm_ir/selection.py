# SPDX-License-Identifier: Apache-2.0
"""Selection taken down: what is in force now, kept for a compiler that asks later, elsewhere.

A compiled graph is right for one selection. `Selection` carries it to where the graph is lowered,
which may be another thread or another process; `tokens` tells guards whether it is still in force.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_ir import _C
from vllm_ir.errors import IrRuntimeError
from vllm_ir.explanation import Decision, Explanation
from vllm_ir.op import IrOp


@dataclass(frozen=True)
class Request:
    """What is asked for, for one op: the user's names, then the platform's."""

    user: tuple[str, ...]
    defaults: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """The priorities of all ops at one moment. Plain data: it pickles and compares.

    Attributes:
        requests: By op. An op that was declared later is asked about when it is met.
        strict: Whether strict mode was on.
        batch_invariant: Whether only batch-invariant implementations were asked for.
    """

    requests: Mapping[str, Request]
    strict: bool = field(default_factory=_C.is_strict)
    batch_invariant: bool = field(default_factory=_C.is_batch_invariant)

    @classmethod
    def in_force(cls) -> "Selection":
        """Take down what is in force in this thread, scopes included, for compiling."""
        return cls({name: _request_of(name) for name in sorted(IrOp.registry)})

    def request(self, op: IrOp) -> Request:
        """Return what is asked for, for one op."""
        return self.requests.get(op.name) or _request_of(op.name)

    def select(self, op: IrOp, arguments: tuple[Any, ...]) -> Explanation:
        """Return which implementation runs for these arguments, usually fake ones, and why.

        Raises:
            IrRuntimeError: In strict mode, the demanded provider would not run; or a switch is no
                longer as it was.
        """
        self._check_switches()
        request = self.request(op)
        selected, decisions = op._select(arguments, request.user, request.defaults)
        made = tuple(Decision(*d) for d in decisions)
        return Explanation(op.name, selected, tried(made), made)

    def providers(self, op: IrOp) -> list[str]:
        """Return the providers that are tried for an op, in order, as far as they can run.

        Raises:
            IrRuntimeError: A switch is no longer as it was.
        """
        self._check_switches()
        request = self.request(op)
        return _C.order_of(op.name, request.user, request.defaults)

    def _check_switches(self) -> None:
        # A backward graph is compiled when it is first needed, and kept with its forward graph.
        for name in ("strict", "batch_invariant"):
            before, now = getattr(self, name), getattr(_C, f"is_{name}")()
            if before != now:
                raise IrRuntimeError(
                    f"vllm_ir.compile: {name} must stay as it was when the compilation began, "
                    f"{before}, got {now}. Set it back, or call torch.compiler.reset()."
                )


def tried(decisions: tuple[Decision, ...]) -> tuple[str, ...]:
    """Return the providers that a selection tries, in order: those its walk met or would meet."""
    walked = ("selected", "rejected", "not reached")
    return tuple(d.provider for d in decisions if d.status in walked)


def _request_of(name: str) -> Request:
    user, defaults = _C.request_of(name, True)
    return Request(tuple(user), tuple(defaults))


class _Tokens:
    """`tokens.compiling_3` is a text that names the selection among the first three declared ops.

    `tokens.eager_3` is that of eager calls. They are attributes because guards of compiled code
    read attributes; they count ops because one that is declared later must not invalidate what was
    compiled before it existed.
    """


tokens = _Tokens()


def token_name(count: int, compiling: bool) -> str:
    """Return the name of an attribute of `tokens`, which is there from now on."""
    name = f"{'compiling' if compiling else 'eager'}_{count}"
    if not hasattr(_Tokens, name):

        def token(_: _Tokens) -> str:
            text = _C.selection_token(count, compiling)
            # It also decides how code is generated, whoever is selected.
            return f"batch-invariant {text}" if _C.is_batch_invariant() else text

        # A property each, no __getattr__: that would cost every compiled call as much again.
        setattr(_Tokens, name, property(token))
    return name


def token_now(count: int, compiling: bool = True) -> str:
    """Return the text of `tokens` for the first `count` ops."""
    text: str = getattr(tokens, token_name(count, compiling))
    return text
