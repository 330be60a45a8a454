# SPDX-License-Identifier: Apache-2.0
"""What identifies a function: everything in reach of its code that decides what it returns.

From a function the walk goes to all that its code refers to, by names, attributes and imports, and
on from there. Functions and classes count by their bytecode and by the content of their file, plain
values by what they are, libraries by the content of their file. Torch, NumPy, Triton and Python's
own library count by their versions, and this package by all of its sources. No path and no address
counts: equal checkouts are equal.

Two processes with one identity run the same code on the same values. What can't be known, the state
of an object say, has no identity: caches are then bypassed, which is slow and safe. Modules that a
function imports when it runs are imported by asking.

| module | what it knows |
|---|---|
| `walk` | how to go on from a function, a class, a container |
| `references` | what code refers to, from its bytecode |
| `lookups` | what a reference stands for in this process |
| `value_parts` | what objects are made of |
| `operators` | which files decide what a graph makes of a torch operator |
| `versions` | which modules count by a version |
| `file_digests` | hashes of files and libraries |
"""

from dataclasses import dataclass
from typing import Any

from vllm_ir.identity.file_digests import UnknownIdentity
from vllm_ir.identity.value_parts import LibraryFile
from vllm_ir.identity.walk import Walk
from vllm_ir.log import warning_once

__all__ = [
    "Identity",
    "LibraryFile",
    "UnknownIdentity",
    "identify",
    "known_identity",
    "warn_unknown",
]


@dataclass(frozen=True)
class Identity:
    """An identity, and the ops that are called on the way: what those do is not in it.

    Attributes:
        digest: The same exactly when the same things are in reach.
        ops: Names of ops of this package.
    """

    digest: str
    ops: frozenset[str]


def identify(*values: Any) -> Identity:
    """Return the identity of functions and plain values, taken together.

    Raises:
        UnknownIdentity: Something in reach has no identity; the text says what and where.

    Example:
        >>> from vllm_ir.identity import identify
        >>> identify("limit", 3) == identify("limit", 3)
        True
        >>> identify("limit", 3) == identify("limit", 4)
        False
    """
    walk = Walk()
    try:
        for value in values:
            walk.value(value)
    except UnknownIdentity:
        raise
    except Exception as error:  # an attribute of somebody's object may raise anything
        kind = type(error).__name__
        raise UnknownIdentity(f"an object that can't be looked at ({kind})") from error
    return Identity(walk.digest(), frozenset(walk.ops))


def known_identity(where: str, *values: Any) -> str | None:
    """Return the identity of values for compile caches; None, with a warning, when unknown.

    Args:
        where: Whose they are, for the warning, which comes once.
        *values: As for `identify`.
    """
    try:
        return identify(*values).digest
    except UnknownIdentity as error:
        warn_unknown(where, error)
        return None


def warn_unknown(where: str, error: UnknownIdentity) -> None:
    """Say once that compile caches are bypassed on somebody's account, and why."""
    warning_once(
        ("identity", where, str(error)),
        "%s: compile caches need to know what decides the result, got %s. They are bypassed: each "
        "process compiles anew. Use functions in files, plain values and frozen dataclasses.",
        where,
        error,
    )
