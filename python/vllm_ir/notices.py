# SPDX-License-Identifier: Apache-2.0
"""What the C++ core says in Python: warnings once per op and cause, decisions at debug level.

Nothing here runs on an ordinary call.
"""

import logging

from vllm_ir import _C
from vllm_ir.errors import IrError, IrRuntimeError
from vllm_ir.log import logger, warning_once


def impl_failed(op: str, provider: str, error: BaseException) -> BaseException:
    """Return the exception to raise for one that an implementation raised.

    Torch's own errors (a shape, out of memory) and ours keep their class: engines catch them. What
    is left means that the implementation itself is broken, and then its name matters most.
    """
    if isinstance(error, (IrError, RuntimeError, MemoryError)) or not isinstance(error, Exception):
        return error
    text = (
        f"vllm_ir.{op}.{provider}: the implementation raised {type(error).__name__}: {error}. "
        f"Mend it, or remove '{provider}' from the priority list."
    )
    wrapped = IrRuntimeError(text)
    wrapped.__cause__ = error
    return wrapped


def _callable_misbehaved(op: str, provider: str, reason: str) -> None:
    warning_once(
        (op, provider, reason),
        f"vllm_ir.{op}.{provider}: rejected: {reason}. Strict mode raises here.",
    )


def _notice(
    op: str,
    priority_not_set: bool,
    native_appended: bool,
    unreachable: list[str],
    catch_all: str,
) -> None:
    if priority_not_set:
        warning_once(
            (op, "priority not set"),
            f"vllm_ir.{op}: Priority not set for op {op}: native is used. "
            f"Set one with vllm_ir.ops.{op}.set_default([...]).",
        )
    if native_appended:
        warning_once(
            (op, "native appended"),
            f"vllm_ir.{op}: no listed provider accepts every argument, so native follows the list. "
            "End it with 'native' to say so yourself.",
        )
    for provider in unreachable:
        warning_once(
            (op, "unreachable", provider, catch_all),
            f"vllm_ir.{op}.{provider}: unreachable in the priority list behind {catch_all}, which "
            f"accepts everything. Put '{provider}' before it, or remove it.",
        )


def _trace(op: str, decision: str) -> None:
    logger.debug("%s", decision)


def _alias(op: str, provider: str, parameter: str) -> None:
    warning_once(
        (op, provider, "alias"),
        f"vllm_ir.{op}.{provider}: a result shares memory with '{parameter}', so it was copied. "
        "Return a new tensor, or register the implementation with inplace=True.",
    )


def install() -> None:
    """Connect the C++ core to this module and take the log level over."""
    _C.set_hooks(
        {
            "impl_failed": impl_failed,
            "callable_misbehaved": _callable_misbehaved,
            "notice": _notice,
            "trace": _trace,
            "alias": _alias,
        }
    )
    refresh_log_level()


def refresh_log_level() -> None:
    """Let the core trace decisions when the logger shows debug records, and not otherwise.

    Call it after changing the level of the logger `vllm_ir` in a running process.
    """
    _C.set_trace(logger.isEnabledFor(logging.DEBUG))
