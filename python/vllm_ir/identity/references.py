# SPDX-License-Identifier: Apache-2.0
"""What the code of a function refers to, read from its bytecode. Nothing is looked up or run here.

`helper.limits.MAX` in a body is a reference: where the name comes from, the name, and the
attributes that are read of it. Code that is nested in the body (lambdas, comprehensions) counts.
"""

import dis
import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Reference:
    """A value that code gets by name.

    Attributes:
        kind: "global", "cell" (of the closure) or "import" (inside the function).
        name: Of the variable or of the module.
        attributes: Those that are read of it in one expression, in order.
        level: Of a relative import, how many packages up; 0 for an absolute one.
        argument: The text that stands next to it: "NAME" in `environ["NAME"]`, `getenv("NAME")` and
            `"NAME" in environ`, "" when there is none.
    """

    kind: str
    name: str
    attributes: tuple[str, ...] = ()
    level: int = 0
    argument: str = ""

    def __str__(self) -> str:
        return "." * self.level + ".".join(filter(None, (self.name, *self.attributes)))


@dataclass(frozen=True)
class CodeFacts:
    """What identifies a code object by itself, and what it depends on besides.

    Attributes:
        digest: Of the instructions and constants, nested code included; no paths, no lines.
        references: In order of appearance, each once.
    """

    digest: str
    references: tuple[Reference, ...]


@functools.cache
def facts_of(code: CodeType) -> CodeFacts:
    """Return the facts of a function's code; they are kept."""
    found = dict.fromkeys(_references(code, {}, frozenset(code.co_freevars)))
    return CodeFacts(_digest(code), tuple(found))


def _digest(code: CodeType) -> str:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    handlers = getattr(code, "co_exceptiontable", b"")  # from Python 3.11 on
    constants = [_constant_text(c) for c in code.co_consts]
    return hashlib.sha256(
        repr((code.co_code, handlers, counts, names, constants)).encode()
    ).hexdigest()


def _constant_text(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _digest(constant)
    if isinstance(constant, frozenset):  # its order differs from process to process
        return f"frozenset{sorted(map(_constant_text, constant))}"
    if isinstance(constant, tuple):
        return f"tuple{list(map(_constant_text, constant))}"
    return f"{type(constant).__name__} {constant!r}"


# ---- instructions --------------------------------------------------------------------------------

_LOADS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_BETWEEN = {"EXTENDED_ARG", "CACHE", "NOP", "PUSH_NULL"}
_STEPS = {
    "LOAD_ATTR": "attribute",
    "LOAD_METHOD": "attribute",
    "IMPORT_NAME": "import",
    "IMPORT_FROM": "from",
    "LOAD_CONST": "constant",
    "LOAD_SMALL_INT": "constant",
    "CONTAINS_OP": "contains",
}
_Step = tuple[str, Any]


def _steps(code: CodeType) -> Iterator[_Step]:
    """Yield the instructions as (what, argument), alike for all versions of Python."""
    boxed = {*code.co_cellvars, *code.co_freevars}
    for instruction in dis.get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        if name in _BETWEEN:
            continue
        if name in _STEPS:
            yield _STEPS[name], argument
        elif name in _LOADS_GLOBAL:
            yield "global", argument
        elif name.startswith(("LOAD_FAST", "STORE_FAST")):
            for kind, variable in zip(_kinds(name), _several(argument), strict=False):
                # Of a boxed variable, LOAD_FAST takes the box along, for a function in the body.
                yield ("other" if kind == "load" and variable in boxed else kind), variable
        elif name.startswith("LOAD_") and name.endswith("DEREF"):
            yield "load", argument
        elif name.startswith("STORE_") and name not in ("STORE_ATTR", "STORE_SUBSCR"):
            yield "store", argument
        else:
            yield "other", argument


def _kinds(name: str) -> list[str]:
    """Return what one instruction does in turn: two things for "STORE_FAST_LOAD_FAST"."""
    return [word.lower() for word in name.split("_") if word in ("LOAD", "STORE")]


def _several(argument: Any) -> tuple[Any, ...]:
    return argument if isinstance(argument, tuple) else (argument,)


def _references(
    code: CodeType, imported: Mapping[str, Reference], cells: frozenset[str]
) -> Iterator[Reference]:
    """Yield the references of a body and of the code in it.

    Args:
        code: The body.
        imported: Variables that enclosing bodies bind by imports.
        cells: Names of the outermost function's closure, as far as this body sees them.
    """
    steps = list(_steps(code))
    imports = dict(_imports(steps))
    own = set(code.co_varnames) | set(code.co_cellvars)
    bound = {name: ref for name, ref in imported.items() if name not in own} | imports
    for i, (what, name) in enumerate(steps):
        root = None
        if what == "global":
            root = bound.get(name) or Reference("global", name)
        elif what == "load":
            root = bound.get(name) or (Reference("cell", name) if name in cells else None)
        if root is not None:
            read = tuple(_attributes_at(steps, i + 1))
            beside = steps[i + 1 + len(read) :][:1] + steps[:i][-1:]
            yield replace(root, attributes=root.attributes + read, argument=_argument(beside))
    visible = cells - own
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _references(constant, bound, visible)


def _attributes_at(steps: list[_Step], i: int) -> Iterator[str]:
    while i < len(steps) and steps[i][0] == "attribute":
        yield steps[i][1]
        i += 1


def _argument(beside: list[_Step]) -> str:
    """Return the text constant among the steps behind and in front of a value."""
    if len(beside) == 2 and beside[0][0] == "contains":
        beside.reverse()
    what, value = beside[0] if beside else ("", "")
    return value if what == "constant" and isinstance(value, str) else ""


def _imports(steps: list[_Step]) -> Iterator[tuple[str, Reference]]:
    """Yield each variable that an import statement binds, with what it stands for."""
    for i, (what, module) in enumerate(steps):
        if what != "import":
            continue
        (_, level), (_, names) = steps[i - 2 : i]
        if names:  # from module import a, b as c
            j = i + 1
            while steps[j][0] == "from" and steps[j + 1][0] == "store":
                yield steps[j + 1][1], Reference("import", module, (steps[j][1],), level)
                j += 2
        elif steps[i + 1][0] == "store":  # import a.b: binds a
            yield steps[i + 1][1], Reference("import", module.partition(".")[0])
        else:  # import a.b as c
            variable = next(v for w, v in steps[i + 1 :] if w == "store")
            yield variable, Reference("import", module)
