# SPDX-License-Identifier: Apache-2.0
"""`vllm_ir.explain(compiled)`: one table for what became of each op call of a compiled model."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._dynamo import external_utils
from torch.export import ExportedProgram

from vllm_ir.compile.aoti import explain_package
from vllm_ir.compile.compilations import Compilation, everything, innermost, live
from vllm_ir.compile.export import explain_program
from vllm_ir.compile.report import CompileReport, GraphReport
from vllm_ir.errors import IrTypeError, IrValueError


def explain_compiled(compiled: Callable[..., Any]) -> CompileReport:
    """Return what became of each op call of a function or module compiled with `vllm_ir`.

    Args:
        compiled: Or a module with parts that were compiled, in place or not; or what
            `lower_program` returned, or the path of an `aoti_package`.

    Raises:
        IrTypeError: Nothing in it comes from `torch.compile` or `vllm_ir.compile`.
        IrValueError: It has not run yet, or was compiled by another backend; or no package.
    """
    if isinstance(compiled, (str, os.PathLike)):
        return explain_package(compiled)
    if isinstance(compiled, ExportedProgram):
        return explain_program(compiled)
    parts = _compiled_parts(compiled)
    if not parts:
        raise IrTypeError(
            "vllm_ir.explain: needs an op, or what torch.compile(backend='vllm_ir') or "
            "vllm_ir.compile returned, or a module with parts compiled by either or by "
            f"module.compile(backend='vllm_ir'), got {type(compiled).__name__}."
        )
    found = _compilations_of(parts)
    if not found:
        raise IrValueError(
            "vllm_ir.explain: nothing was compiled by the backend 'vllm_ir' yet. Call the compiled "
            "function first."
        )
    return report_of(found)


def explain_process() -> CompileReport:
    """Return what became of each op call that this process has compiled.

    Raises:
        IrValueError: Nothing was compiled yet.
    """
    found = everything()
    if not found:
        raise IrValueError(
            "vllm_ir.explain: nothing was compiled by the backend 'vllm_ir' in this process."
        )
    return report_of(found)


def report_of(compilations: Iterable[Compilation]) -> CompileReport:
    """Put compilations into one report."""
    graphs: list[GraphReport] = []
    refused: dict[str, str] = {}
    unwrapped: Counter[str] = Counter()
    for compilation in compilations:
        graphs += compilation.graphs
        refused.update(compilation.refused)
        unwrapped.update(compilation.unwrapped)
    return CompileReport(tuple(graphs), refused, dict(unwrapped))


def _compiled_parts(compiled: Any) -> list[Callable[..., Any]]:
    """Return the functions that `torch.compile` made: of a module, those in its submodules too."""
    candidates = [compiled]
    if isinstance(compiled, torch.nn.Module):
        # `module.compile()` sets the first; a wrapper around a module, or a user, sets the others.
        names = ("_compiled_call_impl", "forward", "_forward")
        candidates = [vars(m).get(name) for m in compiled.modules() for name in names]
    return [c for c in candidates if hasattr(c, "_torchdynamo_orig_callable")]


def _compilations_of(parts: list[Callable[..., Any]]) -> list[Compilation]:
    """Return the compilations that serve these functions, in order."""
    known = live()
    owners = [_owner_of(p) for p in parts]
    made_for = [c.owner() if c.owner else None for c in known]
    # Equal backends share code between them: what another wrapper compiled serves this one too,
    # unless code of the same function was made for this model.
    own = [c.code for c, o in zip(known, made_for, strict=True) if _among(o, owners)]
    without = [p for p, o in zip(parts, owners, strict=True) if not _among(o, made_for)]
    shared = [code for code in map(_code_of, without) if not _among(code, own)]
    return [
        c
        for c, o in zip(known, made_for, strict=True)
        if _among(o, owners) or _among(c.code, shared)
    ]


def _among(one: Any, some: Iterable[Any]) -> bool:
    """Whether this very object is there; None is nowhere."""
    return one is not None and any(one is other for other in some)


def _code_of(part: Any) -> Any:
    """Return the code object that Dynamo compiles for a function that `torch.compile` made.

    None where that is a wrapper of torch's, the same for all functions.
    """
    original = part._torchdynamo_orig_callable
    if getattr(original, "__name__", "") in ("_call_impl", "_wrapped_call_impl"):
        original = original.__self__.forward  # Dynamo leaves a module's `__call__` alone
    code = getattr(original, "__code__", None)
    return None if code is not None and code.co_filename == external_utils.__file__ else code


def _owner_of(compiled: Callable[..., Any]) -> Any:
    """Return the wrapper that `torch.compile` put around the backend."""
    context = getattr(compiled, "dynamo_ctx", None)
    cells = getattr(compiled, "__closure__", None) or ()
    holders = [context] + [c.cell_contents for c in cells]
    for holder in holders:
        backend = getattr(holder, "callback", None)
        if backend is None:
            continue
        return innermost(backend)
    return None
