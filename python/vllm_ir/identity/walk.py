# SPDX-License-Identifier: Apache-2.0
"""The walk from a function to all that is in reach of its code."""

import hashlib
import importlib
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import _Ops

from vllm_ir.identity.file_digests import UnknownIdentity, file_digest, library_digest
from vllm_ir.identity.lookups import MISSING, look_up
from vllm_ir.identity.references import Reference, facts_of
from vllm_ir.identity.value_parts import LibraryFile, OpName, members_of, parts_of
from vllm_ir.identity.versions import (
    home_of,
    is_extension,
    is_versioned,
    module_of_globals,
    version_of,
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


class Walk:
    """One walk. It writes what it finds into a hash, in a fixed order, each object once.

    Attributes:
        ops: Names of ops of this package that it came across.
    """

    def __init__(self) -> None:
        self.ops: set[str] = set()
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # an address means something only while the object lives
        self._where: list[str] = []
        self._in_class = False

    def digest(self) -> str:
        """Return the hash of all that was taken in so far."""
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
        for member, value in members_of(cls).items():
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
            walk = Walk()
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
        elif (home := home_of(value)) is not None:
            self._say(version_of(home), home.__name__, value.__name__)
        else:
            raise self._unknown(name, f"the state of a {kind.__qualname__} object")

    # ---- references ------------------------------------------------------------------------------

    def _reference(self, fn: types.FunctionType, reference: Reference) -> None:
        name = str(reference)
        value, attributes = look_up(fn, reference)
        if value is MISSING:
            self._say("missing", name)
        elif value is sys.modules:
            raise self._unknown(name, "a look into sys.modules")
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
