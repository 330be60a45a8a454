# SPDX-License-Identifier: Apache-2.0
"""`vllm_ir.explain(compiled)`: one table for what became of each op call of a compiled model."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from torch.export import ExportedProgram

from vllm_ir.compile.aoti import explain_package
from vllm_ir.compile.compilations import Compilation, everything, innermost, live
from vllm_ir.compile.export import explain_program
from vllm_ir.compile.report import CompileReport, GraphReport
from vllm_ir.errors import IrTypeError, IrValueError


def explain_compiled(compiled: Callable[..., Any]) -> CompileReport:
    """Return what became of each op call of a function or module compiled with `vllm_ir`.

    Args:
        compiled: Or what `lower_program` returned, or the path of an `aoti_package`.

    Raises:
        IrTypeError: Not something that `torch.compile` or `vllm_ir.compile` returned.
        IrValueError: It has not run yet, or was compiled by another backend; or no package.
    """
    if isinstance(compiled, (str, os.PathLike)):
        return explain_package(compiled)
    if isinstance(compiled, ExportedProgram):
        return explain_program(compiled)
    original = getattr(compiled, "_torchdynamo_orig_callable", None)
    if original is None:
        raise IrTypeError(
            "vllm_ir.explain: needs an op, or what torch.compile(backend='vllm_ir') or "
            f"vllm_ir.compile returned, got {type(compiled).__name__}."
        )
    owner, code = _owner_of(compiled), getattr(original, "__code__", None)
    known = live()
    # Equal backends share code between them: what another wrapper compiled serves this one too.
    mine = [c for c in known if owner is not None and c.owner and c.owner() is owner]
    found = mine or [c for c in known if code is not None and c.code is code]
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
    for compilation in compilations:
        graphs += compilation.graphs
        refused.update(compilation.refused)
    return CompileReport(tuple(graphs), refused)


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
