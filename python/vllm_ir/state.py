# SPDX-License-Identifier: Apache-2.0
"""Switches of the whole process, and the roll-up of its calls."""

from pathlib import Path

from vllm_ir import _C
from vllm_ir.explanation import Report
from vllm_ir.flags import check_flag
from vllm_ir.op import IrOp


def set_strict(on: bool) -> None:
    """Turn strict mode on or off; its start value is VLLM_IR_STRICT.

    In strict mode it is an error when a provider that the user named doesn't run: because it is
    unsupported, rejects the arguments, or has a `supports_args` that misbehaves. Calls that need a
    gradient are exempt: native always runs those.

    Raises:
        IrTypeError: Not a bool.
    """
    _C.set_strict(check_flag("on", on, "vllm_ir.set_strict"))


def set_batch_invariant(on: bool) -> None:
    """Choose only implementations declared batch-invariant; starts as VLLM_BATCH_INVARIANT.

    Takes effect at the next call, in all threads and open scopes. Others are skipped with that
    reason.

    Raises:
        IrTypeError: Not a bool.
    """
    _C.set_batch_invariant(check_flag("on", on, "vllm_ir.set_batch_invariant"))


def report(reset: bool = False) -> Report:
    """Return how often each implementation ran since the process started, and why others did not.

    Args:
        reset: Also set the counters to zero.

    Example:
        >>> import vllm_ir as ir
        >>> print(ir.report())  # doctest: +SKIP
        rms_norm: 157 calls; vllm_c 105, native 52 (x.dtype is float64: 52)
    """
    reports = [op.report(reset) for _, op in sorted(IrOp.registry.items())]
    return Report(tuple(r for r in reports if r.calls))


def get_include() -> str:
    """Return the folder to add to the include path of a C++ provider (`vllm_ir/entry.h`)."""
    # Beside the compiled module: an editable install has its Python files elsewhere.
    return str(Path(_C.__file__).parent / "include")
