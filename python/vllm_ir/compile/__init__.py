# SPDX-License-Identifier: Apache-2.0
"""The compiler half: ops in `torch.compile`.

    compiled = vllm_ir.compile(model)          # or torch.compile(model, backend="vllm_ir")
    y = compiled(x)
    print(vllm_ir.explain(compiled))

The module is also the function `vllm_ir.compile`. A graph goes through these rooms, each with its
invariants in its docstring:

    functionalize    on Dynamo's graph: maybe_inplace -> donated; DonationError
    collect          behind AOTAutograd: one form for every op call
    fusion           fusion and transformation passes on op calls
    choose           the implementation of each call, by the rule of eager calls
    hoist            readers of old values go in front of in-place calls
    lowering         op calls -> what the implementations do, with protective clones
    clone_cleanup    clones that protect nobody go, by alias classes
    realize          what reads memory is computed before a kernel overwrites it
    keep_strides     kernels get the strides that their rules saw
    verify           no op call is left

`pipeline.PostGradPass` is all but the first as one pass of Inductor's; `backend.Backend` puts both
to work. Engines that own their pipeline use `PostGradPass` and `FunctionalizePass` themselves.
`export.lower_program` runs the same passes on an exported program, `aoti.aoti_package` on what
AOTInductor compiles.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from vllm_ir.compile.aoti import aoti_package
from vllm_ir.compile.backend import Backend, backend
from vllm_ir.compile.config import CompileConfig, mode_options, split_options
from vllm_ir.compile.explain_compiled import explain_compiled as explain
from vllm_ir.compile.export import decompositions, lower_program
from vllm_ir.compile.functionalize import FunctionalizePass, functionalize
from vllm_ir.compile.pipeline import PostGradPass
from vllm_ir.compile.report import CompileReport, GraphReport, NodeReport
from vllm_ir.compile.script import explain_script
from vllm_ir.errors import IrTypeError

__all__ = [
    "Backend",
    "CompileConfig",
    "CompileReport",
    "FunctionalizePass",
    "GraphReport",
    "NodeReport",
    "PostGradPass",
    "aoti_package",
    "backend",
    "decompositions",
    "explain",
    "explain_script",
    "functionalize",
    "lower_program",
]


class _CallableModule(ModuleType):
    def __call__(
        self,
        model: Callable[..., Any] | None = None,
        *,
        strict_numerics: bool = False,
        donate_graph_inputs: bool = True,
        fusions: tuple[str, ...] | None = None,
        **options: Any,
    ) -> Any:
        """Compile a function or module with the backend `vllm_ir`.

        Args:
            model: A function or `torch.nn.Module` that calls ops. None: return a decorator.
            strict_numerics: Round wherever eager rounds, see `CompileConfig`.
            donate_graph_inputs: Let `maybe_inplace` overwrite inputs of the compiled graph.
            fusions: Names of fusion and transformation passes. None: those on by default.
            **options: As for `torch.compile`: `fullgraph`, `dynamic`, `mode`, `options`.

        Returns:
            What `torch.compile` returns. Compilation happens at the first call, by the priorities
            in force there; a later change of them compiles anew, going back takes the old code.

        Raises:
            IrTypeError: A choice has the wrong type, or a backend is given.
            UnknownNameError: No such mode, or no such choice in `options`, or the prefix
                "vllm_ir." is missing.
            torch._dynamo.exc.BackendCompilerFailed: At the first call, around a `DonationError`
                (`inner_exception`), or around an error of an implementation.

        Example:
            >>> import torch, vllm_ir as ir
            >>> def layer(x, weight):
            ...     return ir.ops.rms_norm(x, weight, 1e-6) * 2
            >>> compiled = ir.compile(layer, fullgraph=True)
            >>> with torch.no_grad():
            ...     y = compiled(torch.ones(2, 8), torch.ones(8))  # doctest: +SKIP
            >>> print(ir.explain(compiled))  # doctest: +SKIP
        """
        if "backend" in options:
            raise IrTypeError(
                "vllm_ir.compile: must be given no backend, since it is one, got "
                f"{options['backend']!r}. Use torch.compile(model, backend=...) for another."
            )
        mode_options(options.get("mode"))  # errors of both before the first call
        split_options(options.get("options") or {})
        config = CompileConfig(strict_numerics, donate_graph_inputs, fusions)
        return torch.compile(model, backend=Backend(config), **options)


sys.modules[__name__].__class__ = _CallableModule
