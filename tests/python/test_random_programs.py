# SPDX-License-Identifier: Apache-2.0
"""Soundness of eager calls: random programs give what they give with plain native functions.

RANDOM_PROGRAMS=100000 runs that many instead of the usual number; RANDOM_SEED=n starts at seed n,
which is how to run one program again.
"""

import os
from collections import Counter

import pytest
import torch
from ops_for_programs import OpUnderTest
from random_programs import (
    MODES,
    OPS,
    VALUES,
    VIEWS,
    WRITES,
    Outcome,
    Program,
    draw_program,
    execute,
)
from torch import Tensor
from toys import new_name

import vllm_ir as ir

COUNT = int(os.environ.get("RANDOM_PROGRAMS", "2000"))
FIRST = int(os.environ.get("RANDOM_SEED", "0"))
PARTS = 10


def difference(got: Outcome, want: Outcome, tracked: bool) -> str:
    """Return in words what differs, "" for nothing; `tracked`: in grad mode."""
    for i, expected in want.values.items():
        text = _difference(got.values[i], expected)
        # Without it a result may be a donated leaf.
        if tracked and got.values[i].requires_grad != expected.requires_grad:
            text = f"requires_grad is {got.values[i].requires_grad}"
        if text:
            return f"v{i}: {text}"
    for number, (g, w) in enumerate(zip(got.gradients, want.gradients, strict=True)):
        if (g is None) != (w is None):
            return f"gradient {number} is missing on one side"
        if g is not None and _difference(g, w):
            return f"gradient {number}: {_difference(g, w)}"
    return ""


def _difference(got: Tensor, want: Tensor) -> str:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}"
    # Another order of a sum; a tensor that was overwritten is off by about one.
    tolerance = 0.1 if got.dtype is torch.bfloat16 else 2e-3
    scale = 1 + want.abs().max().item() if want.numel() else 1
    error = (got.double() - want.double()).abs().max().item() if want.numel() else 0
    return "" if error <= tolerance * scale else f"off by {error} of {scale}"


def donates(program: Program) -> bool:
    return any(step.detail[:1] == ("donate",) for step in program.steps)


def verdict(program: Program) -> str:
    """Return what is wrong with the program's run through the ops, "" for nothing."""
    want = execute(program, through_ir=False)
    got = execute(program, through_ir=True)
    if want.error:
        return ""  # the program itself overwrites what autograd has kept
    if got.error:
        # A donated tensor that autograd has kept: torch sees it by the version, and says so.
        return "" if donates(program) and "inplace operation" in got.error else got.error
    with torch.no_grad():  # torch doesn't let one look at changed views of leaves elsewhere
        return difference(got, want, tracked=program.mode.startswith("grad"))


def shortest(program: Program) -> Program:
    """Return the program without the steps at its end that aren't needed to fail."""
    for n in range(1, len(program.steps)):
        shorter = draw_program(program.seed)
        shorter.steps = shorter.steps[:n]
        made = max((i for s in shorter.steps for i in s.inputs), default=0)
        shorter.alive = {i for i in shorter.alive if i <= made}
        try:
            if verdict(shorter):
                return shorter
        except Exception:
            continue
    return program


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_give_what_native_gives(part):
    for seed in range(FIRST + part, FIRST + COUNT, PARTS):
        program = draw_program(seed)
        wrong = verdict(program)
        assert not wrong, f"{wrong}\n{shortest(program)}\n\nin full: {program}"


def test_programs_use_everything():
    """A generator that draws nothing of a kind would find nothing wrong with it."""
    seen: Counter[object] = Counter()
    for seed in range(FIRST, FIRST + 400):
        program = draw_program(seed)
        seen[program.mode] += 1
        for step in program.steps:
            seen[step.kind] += 1
            if step.detail[:1] in (("donate",), ("default",)):
                seen[step.kind, step.detail[0], step.detail[1][0]] += 1
    for kind in (*OPS, *VIEWS, *WRITES, *VALUES, *MODES):
        assert seen[kind] > 10, kind
    for kind, under_test in OPS.items():
        for provider in under_test.providers:
            assert seen[kind, "default", provider] > 5, (kind, provider)
            assert not under_test.allow_inplace or seen[kind, "donate", provider] > 5


def writes_undeclared(x: Tensor, factor: float) -> Tensor:
    return x.mul_(factor).clone()


def writes_beside(x: Tensor, factor: float) -> Tensor:
    x.untyped_storage().fill_(0)
    return x


def forgets_to_write(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("broken", "inplace"),
    [(writes_undeclared, False), (writes_beside, True), (forgets_to_write, True)],
)
def test_a_broken_provider_is_found(broken, inplace, monkeypatch):
    native = OPS["scale"].op.impls["native"].impl_fn
    op = ir.register_op(native, name=new_name("scale"), allow_inplace=True)
    op.register_impl("broken", inplace=inplace)(broken)
    monkeypatch.setitem(OPS, "scale", OpUnderTest(op, 1, weight=False))
    if not inplace:  # the call itself refuses it
        with pytest.raises(ir.IrRuntimeError, match="modified an argument in place"):
            [verdict(draw_program(seed)) for seed in range(100)]
        return
    assert any(verdict(draw_program(seed)) for seed in range(100))


def test_a_provider_that_forgets_about_overlaps_is_found(monkeypatch):
    native = OPS["butterfly"].op.impls["native"].impl_fn
    op = ir.register_op(native, name=new_name("butterfly"), allow_inplace=True)
    op.register_impl("broken", inplace=True)(OPS["butterfly"].op.impls["inplace"].impl_fn)
    monkeypatch.setitem(OPS, "butterfly", OpUnderTest(op, 2, weight=False))

    def fails(seed):
        try:
            return bool(verdict(draw_program(seed)))
        except RuntimeError:  # torch refuses to write to an expanded tensor
            return False

    assert any(map(fails, range(1000)))
