# SPDX-License-Identifier: Apache-2.0
"""Objects that are no more than their parts, for identities: a partial, a rule, an operator."""

import collections
import ctypes
import functools
import logging
import os
import re
import threading
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._contextlib import _DecoratorContextManager

from vllm_ir import _C
from vllm_ir.identity.operators import facts_of_overload, overloads_of
from vllm_ir.rules import Rule


@dataclass(frozen=True)
class LibraryFile:
    """Stands for the content of a shared library."""

    path: str


@dataclass(frozen=True)
class OpName:
    """Stands for an op of this package; what it does is asked elsewhere."""

    name: str


def parts_of(value: Any) -> tuple[Any, ...] | None:
    """Return what an object is made of, None when it has a state of its own.

    Raises:
        UnknownIdentity: It is an operator that nobody is known to have registered.
    """
    for kinds, parts in _PARTS:
        if isinstance(value, kinds):
            return parts(value)
    kind: Any = type(value)
    if kind.__module__ == "vllm_ir.impl":
        return repr(value), value.impl_fn, value._callable, value.rule
    if is_dataclass(value) and kind.__dataclass_params__.frozen:
        return kind, *(getattr(value, field.name) for field in fields(value))
    if typing.get_origin(value) is not None:  # list[int], A | B
        return kind.__name__, typing.get_origin(value), typing.get_args(value)
    if kind.__module__.startswith("triton."):
        return kind.__name__, {k: v for k, v in vars(value).items() if k in _OF_TRITON}
    return None


# Of a kernel, its tuner and a configuration of one: the rest is caches and what was made of these.
_OF_TRITON = {
    *("fn", "configs", "keys", "values", "kwargs", "num_warps", "num_stages", "num_ctas"),
    *("maxnreg", "pre_hook", "ir_override"),
}


def _library(value: ctypes.CDLL) -> tuple[Any, ...] | None:
    path = getattr(value, "_name", None)
    return (LibraryFile(path),) if path and os.path.isfile(path) else None


def _operator(value: Any) -> tuple[Any, ...]:
    parts: list[Any] = []
    for overload in overloads_of(value):
        if overload.namespace == "vllm_ir":
            parts.append(OpName(overload._schema.name.partition("::")[2]))
        else:
            facts = facts_of_overload(overload)
            parts += facts.texts + facts.functions
    return tuple(parts)


def _op(value: Any) -> tuple[Any, ...]:
    return repr(value), OpName(value._op_name)


_PARTS: list[tuple[Any, Callable[[Any], tuple[Any, ...] | None]]] = [
    (types.MethodType, lambda v: ("method", v.__func__, v.__self__)),
    ((staticmethod, classmethod), lambda v: (type(v).__name__, v.__func__)),
    (property, lambda v: ("property", v.fget, v.fset, v.fdel)),
    (functools.cached_property, lambda v: ("cached_property", v.func)),
    (functools.partial, lambda v: ("partial", v.func, v.args, v.keywords)),
    # What it remembers is taken for what the function returns.
    (functools._lru_cache_wrapper, lambda v: ("cache", v.__wrapped__)),
    (slice, lambda v: ("slice", v.start, v.stop, v.step)),
    (re.Pattern, lambda v: ("pattern", v.pattern, v.flags)),
    (Enum, lambda v: (type(v), v.name)),
    (logging.Logger, lambda v: ("logger",)),
    ((type(threading.Lock()), type(threading.RLock())), lambda v: ("lock",)),
    (ctypes.CDLL, _library),
    ((OpOverload, OpOverloadPacket), _operator),
    (CustomOpDef, lambda v: _operator(v._opoverload)),
    (_DecoratorContextManager, lambda v: (type(v), vars(v))),  # torch.no_grad() and its like
    (Rule, lambda v: ("rule", str(v))),
    (_C.IrOpBase, _op),
]

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


def members_of(cls: type) -> Mapping[str, Any]:
    """Return what a class holds, without what its bases, its file and its other members say."""
    own = {name: value for name, value in vars(cls).items() if name not in _MACHINERY}
    if issubclass(cls, Enum):
        kept: dict[str, Any] = {m.name: m._value_ for m in cls}
        return kept | {n: v for n, v in own.items() if isinstance(v, types.FunctionType)}
    return {n: v for n, v in own.items() if not isinstance(v, _SLOTS)}
