# SPDX-License-Identifier: Apache-2.0
"""vllm_ir: a functional intermediate representation for LLM inference ops on PyTorch.

An op is declared once by a Python function that says what it means; any number of implementations
register for it; the first one in priority order that is supported and accepts the arguments runs.

Example:
    >>> import torch, vllm_ir as ir
    >>> y = ir.ops.rms_norm(torch.randn(2, 64), torch.ones(64), 1e-6)
    >>> print(ir.ops.rms_norm.explain(torch.randn(2, 64), torch.ones(64), 1e-6))
    vllm_ir.rms_norm: vllm_c runs (priority: vllm_c, native)
      vllm_c  selected
      native  not reached
      triton  not in the priority list
"""

import importlib
from typing import Any

from vllm_ir._version_check import check_torch

check_torch()  # before the extension is loaded: beside another torch it may misbehave in silence

from vllm_ir import _C, _build_info, envs, log, notices  # noqa: E402

envs.check()
log.configure()
_C.set_strict(envs.strict())
_C.set_batch_invariant(envs.batch_invariant())
notices.install()

from vllm_ir import ops, rules  # noqa: E402
from vllm_ir.declare import register_op  # noqa: E402
from vllm_ir.entries import load_entries  # noqa: E402
from vllm_ir.errors import (  # noqa: E402
    DonationError,
    DuplicateError,
    IrError,
    IrImportError,
    IrRuntimeError,
    IrTypeError,
    IrValueError,
    UnknownNameError,
)
from vllm_ir.explanation import Explanation, Report  # noqa: E402
from vllm_ir.impl import IrOpImpl  # noqa: E402
from vllm_ir.notices import refresh_log_level  # noqa: E402
from vllm_ir.op import IrOp  # noqa: E402
from vllm_ir.platforms import Platform, current_platform, set_platform  # noqa: E402
from vllm_ir.plugins import load_plugins  # noqa: E402
from vllm_ir.priority import IrOpPriorityConfig, KernelConfig, combine  # noqa: E402
from vllm_ir.selection import Selection  # noqa: E402
from vllm_ir.state import (  # noqa: E402
    get_include,
    report,
    set_batch_invariant,
    set_strict,
)
from vllm_ir.torch_wrap import enable_torch_wrap, set_default_torch_wrap  # noqa: E402

load_plugins()


def explain(subject: Any, *args: Any, **kwargs: Any) -> Any:
    """Return which implementation runs and why, for a call of an op or for a compiled model.

    Args:
        subject: An op; or what `torch.compile(..., backend="vllm_ir")`, `vllm_ir.compile` or
            `vllm_ir.compile.lower_program` returned; or a module that was compiled in place, or
            has submodules that were compiled; or the path of a package that
            `vllm_ir.compile.aoti_package` wrote.
        *args: For an op, the arguments of the call.
        **kwargs: The same, by name.

    Returns:
        An `Explanation` for an op; for a compiled model a report with every op call, its
        implementation, the reasons for the rest, and the copies kept and removed. Both print.

    Raises:
        IrTypeError: Something else was given.
        IrValueError: The compiled model has not run yet.

    Example:
        >>> import torch, vllm_ir as ir
        >>> print(ir.explain(ir.ops.rms_norm, torch.ones(2, 8), None, 1e-6).selected)
        vllm_c
    """
    if isinstance(subject, IrOp):
        return subject.explain(*args, **kwargs)
    return importlib.import_module("vllm_ir.compile").explain(subject, *args, **kwargs)


def __getattr__(name: str) -> Any:
    # The compiler half brings Dynamo and Inductor in, which takes a second: on first use.
    if name == "compile":
        return importlib.import_module("vllm_ir.compile")
    raise AttributeError(f"module 'vllm_ir' has no attribute '{name}'")


__version__ = _build_info.VERSION

__all__ = [
    "DonationError",
    "DuplicateError",
    "Explanation",
    "IrError",
    "IrImportError",
    "IrOp",
    "IrOpImpl",
    "IrOpPriorityConfig",
    "IrRuntimeError",
    "IrTypeError",
    "IrValueError",
    "KernelConfig",
    "Platform",
    "Report",
    "Selection",
    "UnknownNameError",
    "combine",
    "current_platform",
    "enable_torch_wrap",
    "explain",
    "get_include",
    "load_entries",
    "load_plugins",
    "ops",
    "refresh_log_level",
    "register_op",
    "report",
    "rules",
    "set_batch_invariant",
    "set_default_torch_wrap",
    "set_platform",
    "set_strict",
]
