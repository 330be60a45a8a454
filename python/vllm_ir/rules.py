# SPDX-License-Identifier: Apache-2.0
"""Rules: what an implementation accepts, declared in Python and evaluated in C++.

A rule is a conjunction of clauses on named parameters. It is a value: hashable, comparable and
printable, and each clause gives its own reason when it rejects. No clause can name dimension 0, so
no rule depends on the batch size; a symbolic size rejects with that reason and never adds a guard.
An argument that is None satisfies every clause except `is_given`.

Example:
    >>> import torch
    >>> from vllm_ir import rules
    >>> rule = rules.dtype("x", torch.float16, torch.bfloat16) & rules.is_none("variance_size")
    >>> print(rule)
    dtype("x") in {float16, bfloat16} & is_none("variance_size")
"""

from dataclasses import dataclass

import torch

from vllm_ir import _C
from vllm_ir.dtypes import dtype_name
from vllm_ir.errors import IrTypeError

# kind, parameter names, allowed dtypes or devices, number, why
Clause = tuple[str, tuple[str, ...], tuple[str, ...], int, str]


@dataclass(frozen=True)
class Rule:
    """A conjunction of clauses; `&` joins two rules."""

    clauses: tuple[Clause, ...]

    def __and__(self, other: "Rule") -> "Rule":
        if not isinstance(other, Rule):
            return NotImplemented
        return Rule(self.clauses + other.clauses)

    def __bool__(self) -> bool:
        raise IrTypeError("vllm_ir.rules: a rule is neither true nor false. Join rules with '&'.")

    def __str__(self) -> str:
        return _C.rule_text(self.clauses)


def _rule(
    kind: str, *params: str, values: tuple[str, ...] = (), number: int = 0, because: str = ""
) -> Rule:
    where = f"vllm_ir.rules.{kind}"
    for text in (*params, *values, because):
        if not isinstance(text, str):
            raise IrTypeError(f"{where}: names must be strings, got {type(text).__name__}.")
    if not isinstance(number, int) or isinstance(number, bool):
        raise IrTypeError(f"{where}: needs an int, got {type(number).__name__}.")
    rule = Rule(((kind, params, values, number, because),))
    str(rule)  # the C++ core checks the clause: a bad one fails where it is written
    return rule


def _names(dtypes: tuple[torch.dtype, ...]) -> tuple[str, ...]:
    return tuple(map(dtype_name, dtypes))


def dtype(param: str, *allowed: torch.dtype) -> Rule:
    """The tensor's dtype is one of `allowed`."""
    return _rule("dtype", param, values=_names(allowed))


def same_dtype(param: str, other: str, *, or_in: tuple[torch.dtype, ...] = ()) -> Rule:
    """The tensor's dtype is the other tensor's, or one of `or_in`."""
    return _rule("same_dtype", param, other, values=_names(or_in))


def device(param: str, *allowed: str, because: str = "") -> Rule:
    """The tensor lies on one of these device types: "cpu", "cuda", "xpu", ...

    Args:
        param: Name of the parameter.
        allowed: The device types.
        because: Why no others are allowed; each rejection tells it.
    """
    return _rule("device", param, values=allowed, because=because)


def same_device(param: str, other: str) -> Rule:
    """Both tensors lie on one device."""
    return _rule("same_device", param, other)


def same_shape(param: str, other: str) -> Rule:
    """Both tensors have one shape. Symbolic sizes must be equal whatever their values."""
    return _rule("same_shape", param, other)


def is_none(param: str) -> Rule:
    """The argument is None."""
    return _rule("is_none", param)


def is_given(param: str) -> Rule:
    """The argument is not None."""
    return _rule("is_given", param)


def min_dims(param: str, n: int) -> Rule:
    """The tensor has at least `n` dimensions, n >= 1."""
    return _rule("min_dims", param, number=n)


def matches_last_dim(param: str, other: str) -> Rule:
    """The tensor is one-dimensional and as long as the other tensor's last dimension."""
    return _rule("matches_last_dim", param, other)


def within_last_dim(param: str, other: str) -> Rule:
    """The integer lies between 1 and the other tensor's last dimension, both included."""
    return _rule("within_last_dim", param, other)


def last_dim_contiguous(param: str) -> Rule:
    """The last dimension has stride 1."""
    return _rule("last_dim_contiguous", param)


def last_dim_multiple_of(param: str, n: int) -> Rule:
    """The last dimension is a multiple of `n` elements, n >= 1."""
    return _rule("last_dim_multiple_of", param, number=n)


def last_dim_at_most(param: str, n: int) -> Rule:
    """The last dimension has at most `n` elements, n >= 1."""
    return _rule("last_dim_at_most", param, number=n)


def flattens_for_free(param: str) -> Rule:
    """All leading dimensions collapse into rows of one stride, without a copy."""
    return _rule("flattens_for_free", param)


def aligned(param: str, n: int) -> Rule:
    """The tensor's address is a multiple of `n` bytes. Rejects while compiling: no address yet."""
    return _rule("aligned", param, number=n)


def no_overlap(*params: str) -> Rule:
    """No two elements of these tensors (one to four) share memory, within one or between two."""
    return _rule("no_overlap", *params)
