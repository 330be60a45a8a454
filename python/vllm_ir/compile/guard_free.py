# SPDX-License-Identifier: Apache-2.0
"""Lowering for code that nobody guards: exported programs, and packages made of them.

What such code was made for are the sizes of its inputs, symbolic ones included. A guard on one of
those would be needed and never checked, so it is refused. Torch has other symbols too: an example
input that is a view has a base, whose sizes the code knows nothing of. What is asked about those,
that a view lies inside its base say, is answered and not kept.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode

from vllm_ir.compile.graph import value_of
from vllm_ir.errors import IrRuntimeError


@contextlib.contextmanager
def without_guards(graph: fx.Graph) -> Iterator[None]:
    """Let whatever asks for a guard on sizes of the graph's inputs fail.

    Raises:
        IrRuntimeError: A guard was added, in a torch that can't refuse one.
    """
    values = [value_of(node) for node in graph.nodes if node.op == "placeholder"]
    env = getattr(detect_fake_mode(values), "shape_env", None)
    symbols = {symbol for value in values for symbol in _symbols(value)}
    if env is None:
        yield
    elif hasattr(env, "error_on_new_guards"):
        with env.suppress_guards(), _refusing(env, symbols):
            yield
    else:
        with _watching(env, symbols):
            yield


def _symbols(value: Any) -> Iterator[Any]:
    numbers = (*value.shape, *value.stride()) if isinstance(value, Tensor) else (value,)
    for number in numbers:
        if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            yield from number.node.expr.free_symbols


@contextlib.contextmanager
def _refusing(env: Any, symbols: set[Any]) -> Iterator[None]:
    ask_torch = env._check_frozen  # raises where guards are refused, for all symbols

    def check(expr: Any, value: Any) -> None:
        if expr.free_symbols <= symbols:
            with env.error_on_new_guards():
                ask_torch(expr, value)
        ask_torch(expr, value)

    env._check_frozen = check
    try:
        yield
    finally:
        del env._check_frozen


@contextlib.contextmanager
def _watching(env: Any, symbols: set[Any]) -> Iterator[None]:
    before = len(env.guards)
    yield
    added = [g.expr for g in env.guards[before:] if g.expr.free_symbols <= symbols]
    if added:
        raise IrRuntimeError(
            "vllm_ir.compile: nothing may branch on a symbolic size in an exported program, got "
            f"the guard {added[0]} from an implementation or a pass. Make that size static, or "
            "choose others."
        )
