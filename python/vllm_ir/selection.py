# SPDX-License-Identifier: Apache-2.0
"""Selection taken down: what is in force now, kept for a compiler that asks later, elsewhere.

A compiled graph is right for one selection. `Selection` carries it to where the graph is lowered,
which may be another thread or another process; `tokens` tells guards whether it is still in force.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_ir import _C
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
    """

    requests: Mapping[str, Request]

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
            IrRuntimeError: In strict mode, the demanded provider would not run.
        """
        request = self.request(op)
        selected, decisions = op._select(arguments, request.user, request.defaults)
        made = tuple(Decision(*d) for d in decisions)
        return Explanation(op.name, selected, tried(made), made)

    def providers(self, op: IrOp) -> list[str]:
        """Return the providers that are tried for an op, in order, as far as they can run."""
        request = self.request(op)
        return _C.order_of(op.name, request.user, request.defaults)


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

    def __getattr__(self, name: str) -> str:
        mode, _, count = name.partition("_")
        if mode not in ("compiling", "eager") or not count.isdigit():
            raise AttributeError(name)
        return _C.selection_token(int(count), mode == "compiling")


tokens = _Tokens()
