# SPDX-License-Identifier: Apache-2.0
"""Whether a compiled program does what its text means, in everything that its caller can see.

Results in value, dtype, shape and strides; every byte of every tensor that the caller still holds;
which results lie in which inputs' memory, and that no others do; gradients.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from program_routes import (
    compile_program,
    compile_without_backend,
    compile_without_ops,
    quiet,
    route_of,
)
from program_text import (
    MODES,
    InvalidProgramError,
    Outcome,
    Program,
    gradients_of,
    make_inputs,
    priorities_of,
    run_natively,
    units,
)
from torch import Tensor

from vllm_ir.errors import DonationError

# What rounds in another way than native does.
_INEXACT = re.compile(r"norm|mean|@|cumsum|sum\(")


Compile = Callable[[Program, dict[str, Any]], Callable[..., Any]]


def verdict(program: Program, compile: Compile = compile_program) -> str:
    """Return what is wrong with the compiled program, "" for nothing.

    Raises:
        InvalidProgramError: The program means nothing.
    """
    with quiet(), priorities_of(program), route_of(program):
        calls = [(v, r) for v in range(len(program.inputs)) for r in program.rows]
        want = _native(program, *calls[0])
        if want is None:
            raise InvalidProgramError("not a valid program")
        try:
            with MODES[program.mode]():
                fn = compile(program, make_inputs(program.inputs[0], program.rows[0]))
        except Exception as error:
            return f"compiling failed: {_shown(error)}"
        for variant, rows in [*calls, calls[0]]:
            wrong = _call(program, fn, variant, rows)
            if wrong:
                return f"variant {variant}, {rows} rows: {wrong}"
    return ""


def torch_is_wrong(program: Program, wrong: str = "") -> bool:
    """Whether torch itself gets the program wrong.

    With native functions in the place of the ops; or Dynamo doesn't take it, whatever the backend;
    or what is wrong is that torch says what it doesn't do.
    """
    if "It seems one of cond's output stride" in wrong:
        return True
    if verdict(program, compile_without_ops):
        return True
    return program.route in ("dynamo", "inductor") and _fails(program, compile_without_backend)


def _fails(program: Program, compile: Compile) -> bool:
    wrong = verdict(program, compile)
    return "compiling failed" in wrong or "the call failed" in wrong


def refusal(program: Program) -> str:
    """Return what is wrong with how a program that uses what it gave away is refused, or ""."""
    with quiet(), priorities_of(program), route_of(program), MODES[program.mode]():
        inputs = make_inputs(program.inputs[0], program.rows[0])
        try:
            fn = compile_program(program, inputs)
            fn(*[inputs[n] for n in program.arguments])
        except Exception as error:
            if isinstance(error, DonationError) or "DonationError" in str(error):
                return ""
            return f"not a DonationError: {_shown(error)}"
    return "used what was donated, and nobody said so"


def _shown(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + "\n    ".join(lines[:6])


def _native(program: Program, variant: int, rows: int) -> Outcome | None:
    try:
        return run_natively(program, variant, rows)
    except InvalidProgramError:
        return None


def _call(program: Program, fn: Callable[..., Any], variant: int, rows: int) -> str:
    want = _native(program, variant, rows)
    if want is None:
        return ""
    with MODES[program.mode]():
        before = make_inputs(program.inputs[variant], rows)
        if variant and _is_for_one_layout(program, want):
            return ""
        inputs = make_inputs(program.inputs[variant], rows)
        try:
            results = fn(*[inputs[n] for n in program.arguments])
        except Exception as error:
            return f"the call failed: {_shown(error)}"
        got = Outcome(list(results), inputs)
        wrong = _difference(program, got, want, before)
        if wrong or want.gradients is None:
            return wrong
        return _gradient_difference(program, got, want)


def _is_for_one_layout(program: Program, want: Outcome) -> bool:
    """Whether other inputs need other code, and nobody would know: torch has no guard for it."""
    if program.route in ("direct", "aot"):
        # Graphs that are run as they are count `as_strided` from the beginning of the memory.
        return want.writes_inputs or "as_strided(v" in program.source()
    return want.writes_inputs and not program.options.get("any_layout")


# ---- comparing -----------------------------------------------------------------------------------


def _difference(program: Program, got: Outcome, want: Outcome, before: dict[str, Any]) -> str:
    with torch.no_grad():
        if len(got.results) != len(want.results):
            return f"{len(got.results)} results, not {len(want.results)}"
        for name, g, w in zip(program.returns, got.results, want.results, strict=True):
            wrong = _layout(program, g, w) or _values(program, g, w)
            if wrong:
                return f"result {name}: {wrong}"
        for name, w in want.inputs.items():
            if name[0] in "bg":
                wrong = _memory(program, got.inputs[name], w, before[name], want.donated)
                if wrong:
                    return f"input {name}: {wrong}"
        return _aliases(program, got, want)


def _layout(program: Program, got: Tensor, want: Tensor) -> str:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}"
    if program.mode == "grad" and got.requires_grad != want.requires_grad:
        return f"requires_grad is {got.requires_grad}"
    if program.route == "inductor" and 2 * len(units(want)) < want.nbytes:
        return ""  # Inductor gives the elements of an `unfold` of a slice memory of their own
    strides = zip(got.shape, got.stride(), want.stride(), strict=True)
    if got.numel() and any(n > 1 and g != w for n, g, w in strides):
        return f"strides {got.stride()}, not {want.stride()}"
    return ""


def _values(program: Program, got: Tensor, want: Tensor) -> str:
    if not want.numel() or torch.equal(got, want):
        return ""
    if not want.is_floating_point():  # the bits of floats
        if want.dtype is not torch.int32 or got.dtype is not want.dtype:
            return f"{got} instead of {want}"
        got, want = got.view(torch.float32), want.view(torch.float32)
    text = program.source()
    scale = 1 + want.abs().max().item()
    tolerance = 0.0
    if "bf16" in str(program.inputs) + text:
        tolerance = 0.03 if _INEXACT.search(text) else 0.01
    elif _INEXACT.search(text):
        tolerance = 2e-5
    error = (got.double() - want.double()).abs().max().item()
    return "" if error <= tolerance * scale else f"off by {error:.3g} of {scale - 1:.3g}"


def _memory(program: Program, got: Tensor, want: Tensor, before: Tensor, donated: set[int]) -> str:
    """Compare what the caller still holds: to the bit where the program itself wrote nothing."""
    offsets = units_in_order(want)
    kept = torch.tensor([u not in donated for u in offsets], dtype=torch.bool).view(want.shape)
    same = torch.eq(want, before).detach() & kept
    if not torch.equal(got[same], before[same]):
        count = int((got[same] != before[same]).sum())
        return f"{count} elements were overwritten, and nobody had given them away"
    written = kept & ~same
    wrong = _values(program, got[written], want[written])
    return f"what the program wrote to it is {wrong}" if wrong else ""


def units_in_order(t: Tensor) -> list[int]:
    """Return the address of each element of a base, which has no gaps."""
    return list(range(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), t.element_size()))


def _aliases(program: Program, got: Outcome, want: Outcome) -> str:
    bases = [n for n in want.inputs if n[0] in "bg"]
    ours, theirs = [units(t) for t in got.results], [units(t) for t in want.results]
    for name, g, w in zip(program.returns, ours, theirs, strict=True):
        for base in bases:
            start, wanted_start = got.inputs[base].data_ptr(), want.inputs[base].data_ptr()
            whole = units(want.inputs[base])
            shift = start - wanted_start
            allowed = {u + shift for u in whole & (want.donated | w)}
            outside = g & {u + shift for u in whole} - allowed
            if outside:
                return f"result {name} lies in input {base}"
            # The quick ways take no care of results that are views.
            careful = program.route in ("dynamo", "inductor") or base[0] == "b"
            if program.route != "direct" and careful and {u + shift for u in whole & w} - g:
                return f"result {name} does not lie in input {base}"
    for i, a in enumerate(program.returns):
        for j, b in enumerate(program.returns[:i]):
            if ours[i] & ours[j] and not theirs[i] & theirs[j]:
                return f"results {b} and {a} share memory"
    return ""


def _gradient_difference(program: Program, got: Outcome, want: Outcome) -> str:
    gradients = gradients_of(got)
    donates = any("maybe_inplace" in line for line in program.lines)
    if gradients is None:
        return "" if donates else "gradients can't be computed"
    assert want.gradients is not None
    if len(gradients) != len(want.gradients):
        return f"{len(gradients)} gradients, not {len(want.gradients)}"
    for number, (g, w) in enumerate(zip(gradients, want.gradients, strict=True)):
        if (g is None) != (w is None):
            return f"gradient {number} is missing on one side"
        if g is not None and w is not None and _values(program, g, w):
            return f"gradient {number}: {_values(program, g, w)}"
    return ""
