# SPDX-License-Identifier: Apache-2.0
"""Who competes in device_timings.py: providers, torch, compiled native, and packages that are here.

A contender is called with one set of arguments after the other, so that what it reads is no longer
in the cache. A package of others is checked as ours is, but when it can't be used that is no
failure.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from contenders import EPSILON, GATED, Problem, native_of
from device_conformance import absence
from device_problems import activation_bytes, set_count
from torch import Tensor

import vllm_ir as ir
from vllm_ir.testing import refusal

Set = tuple[Any, ...]
Skip = Callable[[str, str], None]  # who, and why


@dataclass(frozen=True)
class Contender:
    """One way to compute a problem, or the copy that all are measured against.

    Attributes:
        label: names it.
        call: takes one set of arguments; returns the results, or None when they are the first
            arguments themselves.
        sets: arguments to take turns with.
        provider: who it is about when it goes through an op, else "".
        scope: makes a context that is entered around its calls.
        fresh: whether its results are new tensors.
        checked: whether its results are those of the op.
    """

    label: str
    call: Callable[..., Any]
    sets: tuple[Set, ...]
    provider: str = ""
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    fresh: bool = True
    checked: bool = True


def rotation(problem: Problem, device: str, cache_size: int) -> tuple[Set, ...]:
    """Make the sets of arguments of a problem; their activations together exceed the cache."""
    count = set_count(activation_bytes(problem), cache_size)
    if problem.op in GATED:
        return tuple(
            (x,) for x in matrices(count, problem.rows, 2 * problem.width, problem, device)
        )
    weight = (1 + 0.1 * torch.randn(problem.width, device=device)).to(problem.dtype)
    xs = matrices(count, problem.rows, problem.width, problem, device)
    if problem.op == "rms_norm":
        return tuple((x, weight, EPSILON) for x in xs)
    residuals = matrices(count, problem.rows, problem.width, problem, device)
    return tuple((x, r, weight, EPSILON) for x, r in zip(xs, residuals, strict=True))


def matrices(count: int, rows: int, width: int, problem: Problem, device: str) -> Iterator[Tensor]:
    """Yield matrices with the same random values, each at an address of its own."""
    one = torch.randn(rows, width, device=device).to(problem.dtype)
    yield from one.expand(count, rows, width).clone(memory_format=torch.contiguous_format).unbind()


def copy_of_the_same_bytes(problem: Problem, device: str, cache_size: int) -> Contender:
    """Return a copy that reads and writes together what the problem must, half of it each."""
    half = problem.bytes_moved // 2
    count = set_count(half, cache_size)
    source = torch.ones(count, half, dtype=torch.uint8, device=device)
    pairs = zip(source.clone().unbind(), source.unbind(), strict=True)
    return Contender("copy", Tensor.copy_, tuple(pairs), fresh=False, checked=False)


def contenders_of(
    problem: Problem, device: str, cache_size: int, with_compiled: bool, skip: Skip
) -> list[Contender]:
    """Return the copy and everybody who can compute a problem; `skip` is told of each other one."""
    sets = rotation(problem, device, cache_size)
    op = ir.IrOp.registry[problem.op]
    rows = [copy_of_the_same_bytes(problem, device, cache_size)]
    for provider, impl in op.impls.items():
        if absence(impl, device):
            continue  # the part on conformance tells so
        reason = refusal(op, provider, *sets[0])
        if reason:
            skip(provider, reason)
        else:
            rows += through_op(op, provider, sets)
    if problem.op == "rms_norm":
        size = (problem.width,)
        rows.append(Contender("F.rms_norm", lambda x, w, eps: F.rms_norm(x, size, w, eps), sets))
    if with_compiled:
        compiled = torch.compile(native_of(problem.op), fullgraph=True, dynamic=False)
        rows.append(Contender("compiled", compiled, sets))
    for label, module, make in OTHERS.get(problem.op, ()):
        if module in absent_packages():
            continue
        call, fresh = make(importlib.import_module(module)), not label.endswith("in place")
        rows.append(Contender(label, call, sets, fresh=fresh))
    return rows


@cache
def absent_packages() -> dict[str, str]:
    """Return the modules of others that can't be imported here, with the reason."""
    absent = {}
    for module in sorted({module for rows in OTHERS.values() for _, module, _ in rows}):
        try:
            importlib.import_module(module)
        except Exception as error:  # some raise RuntimeError where no GPU is
            absent[module] = f"{type(error).__name__}: {error}"
    return absent


def through_op(op: ir.IrOp, provider: str, sets: tuple[Set, ...]) -> Iterator[Contender]:
    """Yield the op with one provider selected, and its in-place form where there is one."""
    names = list(dict.fromkeys([provider, "native"]))

    def scope() -> AbstractContextManager[Any]:
        return op.set_priority(names)

    yield Contender(provider, op, sets, provider, scope)
    if op.impls[provider].inplace:
        label = f"{provider} in place"
        yield Contender(label, op.maybe_inplace, sets, provider, scope, fresh=False)


def clones(arguments: Set) -> Set:
    """Return arguments whose tensors are copies, each in memory of its own."""
    return tuple(a.clone() if isinstance(a, Tensor) else a for a in arguments)


def blank_results(problem: Problem, device: str, count: int) -> list[Any]:
    """Return tensors that look like the results of `count` calls."""
    outputs = 2 if problem.op == "fused_add_rms_norm" else 1
    make = partial(torch.ones, problem.rows, problem.width, dtype=problem.dtype, device=device)
    return [tuple(make() for _ in range(outputs)) for _ in range(count)]


def check(contender: Contender, problem: Problem) -> str:
    """Return what is wrong with the results of a contender, "" when they are right."""
    if not contender.checked:
        return ""
    op, arguments = ir.IrOp.registry[problem.op], clones(contender.sets[0])
    want = native_of(problem.op)(*clones(arguments))
    if contender.provider:
        with contender.scope():
            explanation = op.explain(*arguments)
        if explanation.selected != contender.provider:
            return f"another provider runs: {explanation}"
    with contender.scope():
        got = contender.call(*arguments)
    want = (want,) if isinstance(want, Tensor) else want
    got = arguments[: len(want)] if got is None else got
    got = (got,) if isinstance(got, Tensor) else got
    # Others leave out the rounding in front of the product with the weight: one more place each.
    rtol = 4 * torch.finfo(problem.dtype).eps
    try:
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, atol=1e-3, rtol=rtol)
    except (AssertionError, ValueError) as error:
        return f"not native's result: {error}"
    return ""


def _flashinfer_norm(module: Any) -> Callable[..., Any]:
    return lambda x, w, eps: module.rmsnorm(x, w, eps)


def _flashinfer_fused(module: Any) -> Callable[..., Any]:
    return lambda x, residual, w, eps: module.fused_add_rmsnorm(x, residual, w, eps)


def _quack_norm(module: Any) -> Callable[..., Any]:
    return lambda x, w, eps: module.rmsnorm(x, w, eps=eps)


def _quack_fused(module: Any) -> Callable[..., Any]:
    def fused(x: Tensor, residual: Tensor, w: Tensor, eps: float) -> Any:
        return module.rmsnorm(x, w, residual=residual, eps=eps, prenorm=True)

    return fused


def _liger_norm(module: Any) -> Callable[..., Any]:
    return lambda x, w, eps: module.liger_rms_norm(x, w, eps, in_place=False)


def _liger_fused(module: Any) -> Callable[..., Any]:
    return lambda x, r, w, eps: module.liger_fused_add_rms_norm(x, r, w, eps, in_place=False)


# op → label, module, and what makes a call out of it
OTHERS: dict[str, tuple[tuple[str, str, Callable[[Any], Callable[..., Any]]], ...]] = {
    "rms_norm": (
        ("flashinfer", "flashinfer.norm", _flashinfer_norm),
        ("quack", "quack.rmsnorm", _quack_norm),
        ("liger", "liger_kernel.transformers.functional", _liger_norm),
    ),
    "fused_add_rms_norm": (
        ("flashinfer in place", "flashinfer.norm", _flashinfer_fused),
        ("quack", "quack.rmsnorm", _quack_fused),
        ("liger", "liger_kernel.transformers.functional", _liger_fused),
    ),
    "silu_and_mul": (("flashinfer", "flashinfer.activation", lambda m: m.silu_and_mul),),
    "gelu_and_mul": (("flashinfer", "flashinfer.activation", lambda m: m.gelu_and_mul),),
}
