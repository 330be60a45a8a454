# SPDX-License-Identifier: Apache-2.0
"""What a reference in a function's code stands for, here and now."""

import builtins
import importlib
import os
import sys
import types
from typing import Any

import torch

from vllm_ir.identity.references import Reference
from vllm_ir.identity.versions import is_extension, is_ours, is_versioned

MISSING = object()  # the function doesn't find it either, or is prepared for that

# What counts by itself, though its module counts by a version.
_LOOKED_INTO = {
    torch: ("ops",),
    os: ("environ", "environb", "getenv", "getenvb"),
    importlib: ("import_module",),
    sys: ("modules",),
    builtins: ("eval", "exec", "open", "globals", "__import__"),
}


def look_up(fn: types.FunctionType, reference: Reference) -> tuple[Any, tuple[str, ...]]:
    """Return what a function finds by a reference, and the attributes that it reads of that.

    Modules and torch's namespaces are looked into, as far as they don't count by a version. A
    module that the function imports when it runs is imported.

    Returns:
        The value, or MISSING, and the attributes that were not looked up.
    """
    try:
        value = _root(fn, reference)
    except Exception:  # an import may raise anything
        return MISSING, ()
    attributes = list(reference.attributes)
    while attributes and (found := _attribute(value, attributes[0])) is not value:
        value = found
        attributes.pop(0)
    return value, tuple(attributes)


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
        return MISSING


def _leads_on(module: types.ModuleType, name: str) -> bool:
    """Whether an attribute of a versioned module is to be looked at, not only its version."""
    return is_ours(module) or name in _LOOKED_INTO.get(module, ())
