# SPDX-License-Identifier: Apache-2.0
"""Every environment variable of vllm_ir: its meaning, its default, what it may hold.

This is the only file that reads the environment. A value is read when it is asked for; an empty
one counts as not set. A bad one is an error that lists the allowed values, never a default.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vllm_ir.errors import IrValueError, nearest

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_TRUE, _FALSE = ("1", "true"), ("0", "false")
_SWITCH = "0, 1, false or true"
_PREFIX = "VLLM_IR_"


@dataclass(frozen=True)
class EnvVar:
    """One row of the table that the documentation and `vllm-ir env` print."""

    name: str
    meaning: str
    default: str
    allowed: str
    read_at: str = "start"  # "build": read by the build backend and CMake, listed here to be known


TABLE: tuple[EnvVar, ...] = (
    EnvVar(
        "VLLM_IR_LOGGING_LEVEL",
        "lowest level that the logger 'vllm_ir' shows",
        "VLLM_LOGGING_LEVEL, else INFO",
        ", ".join(LEVELS),
    ),
    EnvVar(
        "VLLM_LOGGING_LEVEL",
        "the same, for all of an engine; VLLM_IR_LOGGING_LEVEL goes first",
        "INFO",
        ", ".join(LEVELS),
    ),
    EnvVar(
        "VLLM_BATCH_INVARIANT",
        "choose only implementations whose result for a row doesn't depend on the other rows",
        "0",
        _SWITCH,
    ),
    EnvVar(
        "VLLM_IR_STRICT",
        "raise where a notice would be given: missing providers, failed plugins",
        "0",
        _SWITCH,
    ),
    EnvVar(
        "VLLM_IR_PLUGINS",
        "which installed plugins are loaded",
        "all",
        "names separated by commas, or none",
    ),
    EnvVar("VLLM_IR_CUDA", "build the CUDA kernels", "AUTO", "AUTO, OFF or ON", "build"),
    EnvVar("VLLM_IR_WERROR", "treat compiler warnings as errors", "OFF", "OFF or ON", "build"),
    EnvVar("VLLM_IR_TORCH_ROOT", "the torch package to build against", "", "a folder", "build"),
)


def raw(name: str) -> str | None:
    """Return the text of a variable, or None when it is not set or holds only spaces."""
    text = os.environ.get(name, "").strip()
    return text or None


def unknown() -> dict[str, str]:
    """Return the hint for each variable that starts with VLLM_IR_ and means nothing, by name."""
    known = [row.name for row in TABLE]
    strangers = sorted(n for n in os.environ if n.startswith(_PREFIX) and n not in known)
    return {name: f"vllm_ir: {name} has no meaning.{_hint(name, known)}" for name in strangers}


def logging_level() -> str:
    """Return the level for the logger 'vllm_ir'.

    Raises:
        IrValueError: The text is not the name of a level.
    """
    return explicit_logging_level() or "INFO"


def explicit_logging_level() -> str | None:
    """Return the level that the environment names, None when it names none."""
    for name in ("VLLM_IR_LOGGING_LEVEL", "VLLM_LOGGING_LEVEL"):
        text = raw(name)
        if text is not None:
            return _one_of(name, text.upper(), LEVELS)
    return None


def batch_invariant() -> bool:
    """Return whether VLLM_BATCH_INVARIANT asks for batch-invariant implementations only."""
    return _switch("VLLM_BATCH_INVARIANT")


def strict() -> bool:
    """Return whether VLLM_IR_STRICT turns notices into errors."""
    return _switch("VLLM_IR_STRICT")


def plugins() -> tuple[str, ...] | None:
    """Return the names of the plugins to load: None for all of them, () for none.

    Raises:
        IrValueError: An empty name between commas, or `none` among other names.
    """
    text = raw("VLLM_IR_PLUGINS")
    if text is None:
        return None
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if names == ("none",):
        return ()
    if "" in names or "none" in names:
        raise _bad("VLLM_IR_PLUGINS", text)
    return names


def triton_interprets() -> bool:
    """Return whether TRITON_INTERPRET, which is Triton's, has it run kernels on the CPU."""
    return (raw("TRITON_INTERPRET") or "").lower() in ("1", "true", "yes", "on", "y")


def check() -> None:
    """Read every variable once.

    Raises:
        IrValueError: Some are wrong; one error names them all.
    """
    problems = []
    readers: Iterable[Callable[[], object]] = (logging_level, batch_invariant, strict, plugins)
    for read in readers:
        try:
            read()
        except IrValueError as error:
            problems.append(str(error))
    if problems:
        raise IrValueError("\n".join(problems))


def _hint(name: str, known: list[str]) -> str:
    # Compare what follows the common prefix, else any name is near to any other.
    tails = [other.removeprefix(_PREFIX) for other in known]
    return nearest(name.removeprefix(_PREFIX), tails).replace("'", f"'{_PREFIX}", 1)


def _switch(name: str) -> bool:
    text = (raw(name) or "0").lower()
    return _one_of(name, text, _TRUE + _FALSE) in _TRUE


def _one_of(name: str, text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise _bad(name, raw(name))
    return text


def _bad(name: str, text: str | None) -> IrValueError:
    allowed = next(row.allowed for row in TABLE if row.name == name)
    return IrValueError(
        f"vllm_ir: {name} must be one of {allowed}, got {text!r}. Correct it or unset it."
    )
