# SPDX-License-Identifier: Apache-2.0
"""Ops that tests declare. An op can't be taken back, so each one gets a name of its own."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import vllm_ir as ir

_numbers = itertools.count()


def new_name(stem: str = "toy") -> str:
    """Return an op name that nothing else in this process has."""
    return f"{stem}_{next(_numbers)}"


def toy_native(
    x: Tensor, y: Tensor | None = None, scale: float = 1.0, n: int | None = None, flag: bool = False
) -> Tensor:
    """Scale x, then add y.

    The parameters are one of each kind that the fast path unpacks.
    """
    out = x * scale
    return out if y is None else out + y


def pair_native(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the scaled sum and the sum."""
    total = x + x_other
    return total * scale, total


def pair_inplace(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    x_other.add_(x)
    x.copy_(x_other * scale)
    return x, x_other


def new_toy(*providers: str, **options: Any) -> ir.IrOp:
    """Declare `toy_native`, with providers that do the same; native is the whole priority."""
    op = ir.register_op(toy_native, name=new_name(), **options)
    for provider in providers:
        op.register_impl(provider)(same_as(toy_native))
    op.set_default(["native"])
    return op


def new_pair(*inplace_providers: str) -> ir.IrOp:
    """Declare `pair_native` with allow_inplace; the providers overwrite both activations."""
    op = ir.register_op(pair_native, name=new_name("pair"), allow_inplace=True)
    for provider in inplace_providers:
        op.register_impl(provider, inplace=True)(pair_inplace)
    op.set_default([*inplace_providers, "native"])
    return op


def same_as(native: Callable[..., Any]) -> Callable[..., Any]:
    """Return another function with native's signature that calls it."""

    def implementation(*args: Any) -> Any:
        return native(*args)

    implementation.__wrapped__ = native  # type: ignore[attr-defined]  # inspect.signature reads it
    return implementation


class Probe:
    """An op that runs `provider`, which keeps the arguments that it was given.

    A float object comes through the fast path as it is; torch's operator makes a new one. So
    `took_fast_path` proves which way a call went, without a word from the code under test.
    """

    def __init__(self, provider: str = "probe", **options: Any) -> None:
        self.op = new_toy()
        self.provider = provider
        self.seen: list[tuple[Any, ...]] = []
        self.op.register_impl(provider, **options)(self._implementation())
        self.op.set_default([provider, "native"])

    def _implementation(self) -> Callable[..., Any]:
        def implementation(*args: Any) -> Tensor:
            self.seen.append(args)
            return toy_native(*args)

        implementation.__wrapped__ = toy_native  # type: ignore[attr-defined]
        return implementation

    def took_fast_path(self, x: Tensor, y: Tensor | None = None) -> bool:
        """Call the op once and tell which way the call went."""
        scale = float("0.5")
        self.seen.clear()
        with runs(self.op, **{self.provider: 1}):
            result = self.op(x, y, scale)
        ((_, _, got, *_),) = self.seen
        assert got == scale
        expected = toy_native(x, y, scale)
        if expected.device.type == "cpu":
            torch.testing.assert_close(result, expected)
        return got is scale


def counts(op: ir.IrOp) -> dict[str, int]:
    """Return how often each implementation ran, those that did."""
    return {i.provider: i.selected for i in op.report().impls if i.selected}


@contextmanager
def runs(op: ir.IrOp, **expected: int) -> Iterator[None]:
    """Fail unless the block runs exactly these implementations of the op, so many times."""
    before = counts(op)
    yield
    after = counts(op)
    ran = {p: n - before.get(p, 0) for p, n in after.items() if n != before.get(p, 0)}
    assert ran == expected


@contextmanager
def raises_exactly(kind: type[BaseException], text: str) -> Iterator[None]:
    """Fail unless the block raises this very class with this very text."""
    with pytest.raises(kind) as raised:
        yield
    assert (type(raised.value), str(raised.value)) == (kind, text)


def line_of(marker: str, path: str) -> str:
    """Return "file:line" of the only line that holds the marker as a comment."""
    with open(path) as file:
        (number,) = [i for i, line in enumerate(file, 1) if line.rstrip().endswith(f"# {marker}")]
    return f"{path}:{number}"
