# SPDX-License-Identifier: Apache-2.0
"""What may stand for a priority list, and what each form means. Knows no op and no provider.

| input | meaning |
|---|---|
| `"a,b"`, `" a , b "` | `a` before `b`; spaces and tabs around a name don't count |
| `["a", "b"]`, `("a", "b")` | the same; each entry is exactly one name |
| `None`, `[]`, `()` | nothing said: the same as leaving the op out |
| a repeated name | the first one counts |
| `""`, `" "`, `","`, `"a,,b"` | an error: a name is missing |
| `"A"`, `"['a','b']"`, `["a,b"]` | an error: not a provider name |
| `5`, `{"a"}`, `b"a"`, `[1]` | an error: the wrong type |
"""

import re

from vllm_ir.errors import IrTypeError, IrValueError

_NAME = re.compile(r"[a-z_][a-z0-9_]*")


class PriorityTypeError(IrTypeError, IrValueError):
    """A priority of the wrong type; a ValueError too, as every malformed priority is."""


def parse_priority(op: str, value: object) -> tuple[str, ...]:
    """Read one op's priority list.

    Args:
        op: The op's name, for the error text. It needn't exist.
        value: One of the forms above.

    Returns:
        The provider names in order, each once; empty when nothing was said.

    Raises:
        IrValueError: A name is missing or can't be a provider's name.
        PriorityTypeError: `value` or an entry has the wrong type.
    """
    names = _names(op, value)
    for name in names:
        if not _NAME.fullmatch(name):
            raise IrValueError(
                f"vllm_ir.{op}: a provider name matches {_NAME.pattern}, "
                f"got {name!r} in {value!r}.{_cure(value)}"
            )
    return tuple(dict.fromkeys(names))


def _names(op: str, value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return _split(op, value)
    if isinstance(value, (list, tuple)):
        for entry in value:
            if not isinstance(entry, str):
                raise PriorityTypeError(
                    f"vllm_ir.{op}: a priority list holds provider names (str), "
                    f"got {entry!r} ({type(entry).__name__}) in {value!r}."
                )
        return list(value)
    raise PriorityTypeError(
        f"vllm_ir.{op}: a priority is a text such as 'vllm_c,native' or a list of provider names, "
        f"got {value!r} ({type(value).__name__})."
    )


def _split(op: str, text: str) -> list[str]:
    if not text.strip():
        raise IrValueError(
            f"vllm_ir.{op}: a priority names at least one provider, got {text!r}. "
            "Leave the setting out to use the platform's default."
        )
    if text.strip().startswith(("[", "(")):
        return [text]  # a list that was turned into text: quote it whole, not its pieces
    names = [part.strip() for part in text.split(",")]
    if "" in names:
        raise IrValueError(
            f"vllm_ir.{op}: entry {names.index('') + 1} of the priority is empty, got {text!r}. "
            "Write one comma between two names and none at the ends."
        )
    return names


def _cure(value: object) -> str:
    """Return what to write instead, when the intended names are plain to see."""
    words = re.findall(r"[\w-]+", str(value).lower())
    if not words or not all(_NAME.fullmatch(word) for word in words):
        return ""
    return f" Write {','.join(words)!r}." if isinstance(value, str) else f" Write {words!r}."
