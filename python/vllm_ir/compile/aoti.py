# SPDX-License-Identifier: Apache-2.0
"""AOTInductor packages: a model compiled ahead of time, with its ops lowered, in one file.

The report of the lowering is in the package, so that any process can ask what runs in it.
"""

import json
import os
import uuid
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._inductor.exc import InductorError
from torch.export import ExportedProgram

from vllm_ir.compile import sink
from vllm_ir.compile.config import CompileConfig, split_options
from vllm_ir.compile.export import (
    check_config,
    check_declared,
    check_program,
    forget_donations,
)
from vllm_ir.compile.guard_free import without_guards
from vllm_ir.compile.hooks import POST_PASS, add_pass
from vllm_ir.compile.pipeline import PostGradPass
from vllm_ir.compile.report import CompileReport, GraphReport
from vllm_ir.errors import IrError, IrTypeError, IrValueError
from vllm_ir.selection import Selection

WHERE = "vllm_ir.compile.aoti_package"
_REPORT = "extra/vllm_ir_report.json"


def aoti_package(
    program_or_model: ExportedProgram | torch.nn.Module,
    args: tuple[Any, ...] | None = None,
    *,
    path: str | os.PathLike[str],
    config: CompileConfig | None = None,
    dynamic_shapes: Any = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Compile a program ahead of time, by the priorities for compiling, and write a package.

    `torch._inductor.aoti_load_package(path)` loads it. A package lowered to `native` needs torch
    alone; one with kernels of a provider needs that provider's operators, for `vllm_c` an
    `import vllm_ir` first. Inputs stay the caller's: a package never overwrites them, whatever the
    model donates. `vllm_ir.explain(path)` tells what became of each op call, in any process.

    Args:
        program_or_model: What `torch.export.export` returned, or a module to export.
        args: Example arguments of a module.
        path: Of the package to write; ends in ".pt2".
        config: The choices, as for `torch.compile`.
        dynamic_shapes: Of a module, as for `torch.export.export`.
        options: Inductor's, and ours with the prefix "vllm_ir.". Passes of one's own in
            "post_grad_custom_post_pass" run in front of lowering.

    Returns:
        The path.

    Raises:
        IrTypeError: An argument has the wrong type; or an implementation's result has another
            dtype or shape than the op's.
        IrValueError: The path has another ending.
        UnknownNameError: An option of ours that doesn't exist.
        IrRuntimeError: An op isn't declared in this process, or an implementation misbehaves: it
            branches on a symbolic size, say, since a package checks no guards.

    Example:
        >>> import torch, vllm_ir as ir
        >>> class Layer(torch.nn.Module):
        ...     def forward(self, x):
        ...         return ir.ops.rms_norm(x, None, 1e-6)
        >>> path = ir.compile.aoti_package(
        ...     Layer(), (torch.ones(2, 8),), path="layer.pt2"
        ... )  # doctest: +SKIP
        >>> torch._inductor.aoti_load_package(path)(torch.ones(2, 8)).shape  # doctest: +SKIP
        torch.Size([2, 8])
        >>> print(ir.explain(path))  # doctest: +SKIP
    """
    path = _checked_path(path)
    check_config(config, WHERE)
    ours, theirs = split_options(options or {})
    config = CompileConfig(**{**vars(config or CompileConfig()), **ours})
    program = _exported(program_or_model, args, dynamic_shapes)
    check_declared(program)
    lowering = _LoweringForPackage(config, Selection.in_force(), uuid.uuid4().hex)
    patches = {**config.inductor_options(), **theirs}
    add_pass(patches, POST_PASS, lowering)
    try:
        torch._inductor.aoti_compile_and_package(
            program, package_path=path, inductor_configs=patches
        )
        _add_report(path, lowering.reports)
    except InductorError as error:
        if isinstance(error.inner_exception, IrError):
            raise error.inner_exception from None
        raise
    finally:
        sink.close_entry(lowering.key)
    return path


def explain_package(path: str | os.PathLike[str]) -> CompileReport:
    """Return what became of each op call of a package that `aoti_package` wrote.

    Raises:
        IrValueError: There is no such file, or it isn't such a package.
    """
    path = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((n for n in archive.namelist() if n.endswith(_REPORT)), None)
            if name is None:
                raise ValueError("it has no report")
            graphs: list[dict[str, Any]] = json.loads(archive.read(name))
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise IrValueError(
            f"vllm_ir.explain: path must be a package that vllm_ir.compile.aoti_package wrote, got "
            f"'{path}' ({error})."
        ) from error
    return CompileReport(tuple(GraphReport.from_dict(g) for g in graphs), {})


class _LoweringForPackage(PostGradPass):
    """The passes for code that nobody guards, whose inputs belong to the caller."""

    def __call__(self, graph: fx.Graph) -> None:
        forget_donations(graph)
        with without_guards(graph):
            super().__call__(graph)


def _checked_path(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise IrTypeError(f"{WHERE}: path must be a str or PathLike, got {type(path).__name__}.")
    text = os.fspath(path)
    if not str(text).endswith(".pt2"):
        raise IrValueError(
            f"{WHERE}: path must end in .pt2, got {text!r}. torch takes no other name."
        )
    return str(text)


def _exported(program_or_model: Any, args: object, dynamic_shapes: Any) -> ExportedProgram:
    if not isinstance(program_or_model, torch.nn.Module):
        check_program(program_or_model, WHERE)
        if args is not None or dynamic_shapes is not None:
            raise IrTypeError(
                f"{WHERE}: args and dynamic_shapes go with a module, got them with an exported "
                "program, which has its own. Leave them out."
            )
        program: ExportedProgram = program_or_model
        return program
    if not isinstance(args, tuple):
        raise IrTypeError(
            f"{WHERE}: a module needs example arguments, a tuple, got {type(args).__name__}. Pass "
            "args=(...), or what torch.export.export returned."
        )
    return torch.export.export(program_or_model, args, dynamic_shapes=dynamic_shapes)


def _add_report(path: str, graphs: list[GraphReport]) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        folder = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{folder}/{_REPORT}", json.dumps([g.to_dict() for g in graphs]))
