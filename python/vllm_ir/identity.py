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
"""

import builtins
import collections
import hashlib
import importlib
import os
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch._ops import _Ops

from vllm_ir.file_digests import UnknownIdentity, file_digest, library_digest
from vllm_ir.log import warning_once
from vllm_ir.references import Reference, facts_of
from vllm_ir.value_parts import LibraryFile, OpName, parts_of
from vllm_ir.versions import (
    is_extension,
    is_ours,
    is_versioned,
    module_of_globals,
    version_of,
)

__all__ = ["Identity", "LibraryFile", "UnknownIdentity", "identify", "known_identity"]


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
    walk = _Walk()
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


_ATOMS = {
    *(type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)),
    *(range, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    *(torch.finfo, torch.iinfo),
}
_COMPILED = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.MethodWrapperType, types.ClassMethodDescriptorType),
)
# They run or find what no reference shows.
_DYNAMIC: tuple[Any, ...] = (
    *(eval, exec, open, globals, __import__, importlib.import_module, os.getenvb),
)
# What counts by itself, though its module counts by a version.
_LOOKED_INTO = {
    torch: ("ops",),
    os: ("environ", "environb", "getenv", "getenvb"),
    importlib: ("import_module",),
    builtins: ("eval", "exec", "open", "globals", "__import__"),
}
_MISSING = object()


class _Walk:
    """One walk. It writes what it finds into a hash, in a fixed order, each object once."""

    def __init__(self) -> None:
        self.ops: set[str] = set()
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # an address means something only while the object lives
        self._where: list[str] = []
        self._in_class = False

    def digest(self) -> str:
        return self._hash.hexdigest()

    def value(self, value: Any, name: str = "") -> None:
        """Take in a value and all in its reach; `name`: how the code calls it."""
        kind = type(value)
        if kind in _ATOMS:
            self._say(kind.__name__, repr(value))
            return
        number = self._seen.setdefault(id(value), len(self._seen))
        if number < len(self._alive):
            self._say("again", str(number))
            return
        self._alive.append(value)
        if isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, type):
            self._class(value, name)
        elif isinstance(value, _COMPILED):
            self._compiled(value, name)
        elif isinstance(value, types.ModuleType):
            self._module(value, name)
        elif isinstance(value, (dict, types.MappingProxyType)):
            self._sequence(kind, [part for item in value.items() for part in item], name)
        elif isinstance(value, (tuple, list)):
            self._sequence(kind, value, name)
        elif isinstance(value, (set, frozenset)):
            self._set(value, name)
        else:
            self._object(value, name)

    # ---- functions, classes, modules -------------------------------------------------------------

    def _function(self, fn: types.FunctionType, name: str) -> None:
        if fn in _DYNAMIC:
            raise self._unknown(name, f"a call of {fn.__qualname__}()")
        module = module_of_globals(fn.__globals__)
        if module is not None and is_versioned(module):
            self._say(version_of(module), module.__name__, fn.__qualname__)
            # A decorator of torch's or of functools': the user's function is in the closure.
            for variable, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
                self.value(cell.cell_contents, variable)
            return
        facts = facts_of(fn.__code__)
        self._say("function", fn.__qualname__, facts.digest)
        self._where.append(fn.__qualname__)
        self._file_of(fn, module)
        in_class, self._in_class = self._in_class, False
        self.value(fn.__defaults__)
        self.value(fn.__kwdefaults__)
        for reference in facts.references:
            self._reference(fn, reference)
        self._in_class = in_class
        self._where.pop()

    def _file_of(self, fn: types.FunctionType, module: types.ModuleType | None) -> None:
        # The whole file: a body may find its neighbours in ways that no reference shows.
        path = fn.__code__.co_filename
        if os.path.isfile(path):
            self._say(file_digest(path))
        elif module is not None and getattr(module, "__file__", None):
            self._say(file_digest(str(module.__file__)))
        elif not self._in_class:  # else it was made for the class, whose file counts
            raise UnknownIdentity(f"the function {fn.__qualname__} without a source file")

    def _class(self, cls: type, name: str) -> None:
        module = sys.modules.get(cls.__module__)
        if module is None:
            raise self._unknown(name, f"the class {cls.__qualname__} of no module")
        self._say("class", cls.__qualname__)
        if is_versioned(module) or is_extension(module):
            self._module(module, name)
            return
        path = getattr(module, "__file__", None)
        if path is None:
            raise self._unknown(name, f"the class {cls.__qualname__} without a source file")
        self._say(file_digest(path))
        self._where.append(cls.__qualname__)
        inside, self._in_class = self._in_class, True
        self._sequence(type(cls), cls.__bases__, name)
        for member, value in _members(cls).items():
            self._say(member)
            self.value(value, member)
        self._in_class = inside
        self._where.pop()

    def _compiled(self, value: Any, name: str) -> None:
        if value in _DYNAMIC:
            raise self._unknown(name, f"a call of {value.__name__}()")
        self._say("compiled", value.__qualname__)
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        module = sys.modules.get(str(getattr(value, "__module__", None)))
        if owner is None or type(owner).__name__ == "PyCapsule":  # of pybind11
            owner = module
        if owner is None:
            raise self._unknown(name, f"the compiled function {value.__qualname__} of no module")
        self.value(owner, name)

    def _module(self, module: types.ModuleType, name: str) -> None:
        if isinstance(module, _Ops) or is_versioned(module):
            self._say(version_of(module), module.__name__)
        elif is_extension(module):
            self._say("library", library_digest(str(module.__file__)))
        else:
            raise self._unknown(name, f"the module {module.__name__}, taken as a value")

    # ---- values ----------------------------------------------------------------------------------

    def _sequence(self, kind: type, items: Iterable[Any], name: str) -> None:
        found = list(items)
        self._say("sequence", str(len(found)))
        self.value(kind, name)
        for item in found:
            self.value(item, name)

    def _set(self, value: Iterable[Any], name: str) -> None:
        # Its order differs from process to process, so each element counts by itself.
        walks = []
        for item in value:
            walk = _Walk()
            walk.value(item, name)
            walks.append(walk.digest())
            self.ops |= walk.ops
        self._say("set", *sorted(walks))

    def _object(self, value: Any, name: str) -> None:
        kind = type(value)
        if isinstance(value, OpName):
            self.ops.add(value.name)
            self._say("op", value.name)
        elif isinstance(value, LibraryFile):
            self._say("library", library_digest(value.path))
        elif (parts := parts_of(value)) is not None:
            self._say(str(len(parts)))
            for part in parts:
                self.value(part, name)
        elif (home := _home_of(value)) is not None:
            self._say(version_of(home), home.__name__, value.__name__)
        else:
            raise self._unknown(name, f"the state of a {kind.__qualname__} object")

    # ---- references ------------------------------------------------------------------------------

    def _reference(self, fn: types.FunctionType, reference: Reference) -> None:
        name = str(reference)
        try:
            value = _root(fn, reference)
        except Exception as error:  # the function gets it too, or is prepared
            self._say("missing", name, type(error).__name__)
            return
        attributes = list(reference.attributes)
        while attributes and (found := _attribute(value, attributes[0])) is not value:
            value = found
            attributes.pop(0)
        if value is _MISSING:
            self._say("missing", name)
        elif value is os.environ or value is os.getenv:
            self._environment(reference, name)
        else:
            self.value(value, name)
            for attribute in attributes[:1]:
                self._attribute_of(value, attribute, name)

    def _attribute_of(self, value: Any, attribute: str, name: str) -> None:
        """Take in what a function reads of another one, or of an op, beside calling it."""
        if isinstance(value, types.FunctionType) and attribute in vars(value):
            self.value(vars(value)[attribute], name)
        elif attribute in ("impls", "dispatch") and hasattr(value, "impls"):
            self._sequence(tuple, value.impls.values(), name)

    def _environment(self, reference: Reference, name: str) -> None:
        if not reference.argument:
            raise self._unknown(name, "an environment variable whose name isn't written there")
        self._say("environment", reference.argument)
        self.value(os.environ.get(reference.argument))

    # ----------------------------------------------------------------------------------------------

    def _say(self, *texts: str) -> None:
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            self._hash.update(b"%d:%b" % (len(data), data))

    def _unknown(self, name: str, what: str) -> UnknownIdentity:
        place = f" in {self._where[-1]}()" if self._where else ""
        return UnknownIdentity(f"{what} ('{name}'{place})" if name else what + place)


def _root(fn: types.FunctionType, reference: Reference) -> Any:
    if reference.kind == "cell":
        assert fn.__closure__ is not None
        return fn.__closure__[fn.__code__.co_freevars.index(reference.name)].cell_contents
    if reference.kind == "import":
        name = "." * reference.level + reference.name
        return importlib.import_module(name, fn.__globals__.get("__package__"))
    if reference.name in fn.__globals__:
        return fn.__globals__[reference.name]
    return getattr(builtins, reference.name)


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute of a module that doesn't count as a whole; anything else as it is."""
    if not isinstance(value, types.ModuleType):
        return value
    if is_extension(value) or (is_versioned(value) and not _leads_on(value, name)):
        return value
    try:
        return getattr(value, name)
    except Exception:  # a module's own __getattr__ may raise anything
        pass
    try:
        return importlib.import_module(f"{value.__name__}.{name}")
    except Exception:
        return _MISSING


def _leads_on(module: types.ModuleType, name: str) -> bool:
    """Whether an attribute of a versioned module is to be looked at, not only its version."""
    return is_ours(module) or name in _LOOKED_INTO.get(module, ())


def _home_of(value: Any) -> types.ModuleType | None:
    """Return the versioned module that has this object under its own name: NumPy's functions."""
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    if module is None or not is_versioned(module):
        return None
    return module if vars(module).get(getattr(value, "__name__", "")) is value else None


_MACHINERY = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__qualname__"),
    *("__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__slots__"),
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__firstlineno__"),
    *("__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
}
_SLOTS = (
    *(types.MemberDescriptorType, types.GetSetDescriptorType),
    type(vars(collections.namedtuple("_", "field"))["field"]),
)


def _members(cls: type) -> Mapping[str, Any]:
    """Return what a class holds, without what its bases, its file and its other members say."""
    own = {name: value for name, value in vars(cls).items() if name not in _MACHINERY}
    if issubclass(cls, Enum):
        kept: dict[str, Any] = {m.name: m._value_ for m in cls}
        return kept | {n: v for n, v in own.items() if isinstance(v, types.FunctionType)}
    return {n: v for n, v in own.items() if not isinstance(v, _SLOTS)}
