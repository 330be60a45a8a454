# SPDX-License-Identifier: Apache-2.0
"""Every error of vllm_ir: one base class, each child also the built-in class that a user expects.

The C++ core raises through these classes too (`cpp/python/errors.cpp` looks them up by name),
so a message has one home and `except ValueError` works wherever the check was made.
"""

import difflib
from collections.abc import Iterable


class IrError(Exception):
    """Base of every error that vllm_ir raises itself."""


class IrValueError(IrError, ValueError):
    """A value, name or schema that breaks a rule of the API."""


class IrTypeError(IrError, TypeError):
    """An argument of the wrong type."""


class IrRuntimeError(IrError, RuntimeError):
    """Something failed while an implementation was chosen or ran."""


class IrImportError(IrError, ImportError):
    """The compiled part can't be used here, or a plugin failed in strict mode."""


class UnknownNameError(IrError, ValueError, KeyError):
    """An op or provider name that is not registered; the message lists the known ones."""

    def __str__(self) -> str:
        # KeyError prints the repr of its argument; the text is meant to be read.
        return str(self.args[0]) if self.args else ""


class DuplicateError(IrError, ValueError, AssertionError):
    """A name that is taken or reserved; the message names both registration places."""


class DonationError(IrError, ValueError):
    """A tensor was used again after it had been donated to `maybe_inplace`."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the closest known name, or `""`.

    Example:
        >>> from vllm_ir.errors import nearest
        >>> nearest("vlm_c", ["native", "vllm_c"])
        " Did you mean 'vllm_c'?"
    """
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{match[0]}'?" if match else ""


def unknown_name(where: str, kind: str, name: object, known: Iterable[str]) -> str:
    """Return the text for an unknown name: where, what, the known names and the nearest one."""
    names = sorted(known)
    listed = ", ".join(names) if names else "none"
    return f"{where}: unknown {kind} {name!r}. Known: {listed}.{nearest(str(name), names)}"
