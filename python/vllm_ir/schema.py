# SPDX-License-Identifier: Apache-2.0
"""From a Python function to an op's schema: parameters, kinds, and the text that torch reads.

Annotations may be strings (`from __future__ import annotations`), PEP 604 unions, `Optional` or
`List[int]`, and may name what the module imports only locally: torch's and typing's own names are
always known here.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.library import infer_schema

from vllm_ir import _C
from vllm_ir.errors import IrValueError

_KNOWN_NAMES: dict[str, Any] = {
    "torch": torch,
    "typing": typing,
    "Tensor": torch.Tensor,
    "Any": Any,
    "List": list,
    "Optional": typing.Optional,
    "Sequence": typing.Sequence,
    "Tuple": tuple,
    "Union": typing.Union,
}
_SCALARS: dict[Any, str] = {
    float: "float",
    int: "int",
    bool: "bool",
    str: "str",
    torch.dtype: "dtype",
}


@dataclass(frozen=True)
class Param:
    """One parameter as the C++ core sees it."""

    name: str
    kind: str  # "Tensor", "float", "int", "bool", "str", "dtype", "other"
    optional: bool
    has_default: bool
    default: Any


@dataclass(frozen=True)
class OpSchema:
    """The signature of a native function, resolved once."""

    params: tuple[Param, ...]
    signature: inspect.Signature  # with real types as annotations
    text: str  # "(Tensor x, ...) -> Tensor"
    tensor_outputs: int

    def param_names(self) -> tuple[str, ...]:
        """Return the parameter names in order."""
        return tuple(p.name for p in self.params)

    def defaults(self) -> dict[str, Any]:
        """Return the defaults by parameter, of those that have one."""
        return {p.name: p.default for p in self.params if p.has_default}

    def donating_text(self, activations: Sequence[str]) -> str:
        """Return the text for `maybe_inplace`: activations may be written.

        The results carry no alias annotation: torch has no word for "perhaps the input". So the
        operator returns new tensors when a graph calls it, and only an eager `op.maybe_inplace`
        call may return its activations.
        """
        text = self.text
        for i, name in enumerate(activations):
            text = re.sub(rf"\bTensor(\??) {name}\b", rf"Tensor(a{i}!)\1 {name}", text)
        return text


def schema_of(fn: Callable[..., Any], where: str) -> OpSchema:
    """Return the schema of a native function or an implementation.

    Args:
        fn: A function with an annotation for every parameter and for the result.
        where: What error texts start with, "vllm_ir.rms_norm" say.

    Raises:
        IrValueError: Keyword-only arguments, a missing or unknown annotation, a type that torch
            can't put into a schema, or a result that isn't a Tensor or a tuple of them.
    """
    if not _is_plain(fn):
        raise IrValueError(f"{where}: a plain function is needed, got {fn!r}.")
    signature = _resolved_signature(fn, where)

    def prototype() -> None:
        """Carry the resolved signature for torch to read."""

    prototype.__signature__ = signature  # type: ignore[attr-defined]
    outputs = _tensor_outputs(signature.return_annotation, where)
    try:
        text = infer_schema(prototype, mutates_args=())
    except ValueError as e:
        raise IrValueError(f"{where}: torch can't make a schema of the signature. {e}") from e
    params = tuple(_param(p) for p in signature.parameters.values())
    return OpSchema(params, signature, text, outputs)


def _is_plain(fn: object) -> bool:
    """Whether calling it gives a result at once, and not a coroutine, a generator or an op."""
    deferred = inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn)
    return not deferred and not isinstance(fn, _C.IrOpBase)


def _resolved_signature(fn: Callable[..., Any], where: str) -> inspect.Signature:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as e:
        raise IrValueError(f"{where}: a function with a signature is needed, got {fn!r}.") from e
    scope = {**_KNOWN_NAMES, **getattr(fn, "__globals__", {}), **_closure_names(fn)}
    params = []
    for p in signature.parameters.values():
        if p.kind is inspect.Parameter.KEYWORD_ONLY:
            raise IrValueError(
                f"{where}: keyword-only arguments are not supported, got '{p.name}'. "
                "Remove the * from the signature."
            )
        if p.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise IrValueError(
                f"{where}: every parameter must be positional-or-keyword, got '{p}'."
            )
        params.append(p.replace(annotation=_resolve(p.annotation, scope, where, p.name)))
    result = _resolve(signature.return_annotation, scope, where, "return")
    return signature.replace(parameters=params, return_annotation=result)


def _closure_names(fn: Callable[..., Any]) -> dict[str, Any]:
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None)
    if code is None or not cells:
        return {}
    filled = {}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            filled[name] = cell.cell_contents
        except ValueError:  # an empty cell: the variable isn't assigned yet
            continue
    return filled


def _resolve(annotation: Any, scope: dict[str, Any], where: str, name: str) -> Any:
    if annotation is inspect.Signature.empty:
        raise IrValueError(f"{where}: '{name}' has no annotation. Annotate it, x: Tensor say.")
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, scope)
        except Exception as e:
            raise IrValueError(
                f"{where}: the annotation {annotation!r} of '{name}' can't be read "
                f"({type(e).__name__}: {e}). Import its names at module level, or use torch's and "
                "typing's own."
            ) from e
    return _normalised(annotation)


def _normalised(annotation: Any) -> Any:
    """Write a PEP 604 union as typing's, which every supported torch understands."""
    if isinstance(annotation, types.UnionType):
        return typing.Union[tuple(_normalised(a) for a in typing.get_args(annotation))]  # noqa: UP007
    return annotation


def _tensor_outputs(annotation: Any, where: str) -> int:
    if annotation is torch.Tensor:
        return 1
    args = typing.get_args(annotation)
    is_tuple = typing.get_origin(annotation) is tuple
    if is_tuple and args and all(a is torch.Tensor for a in args):
        return len(args)
    shown = getattr(annotation, "__name__", annotation)
    raise IrValueError(
        f"{where}: must return a Tensor or a tuple of Tensors, got '{shown}'. "
        "Annotate the result, -> Tensor or -> tuple[Tensor, Tensor]."
    )


def _param(p: inspect.Parameter) -> Param:
    kind, optional = p.annotation, False
    if typing.get_origin(kind) is typing.Union:
        some = [a for a in typing.get_args(kind) if a is not type(None)]
        optional = len(some) < len(typing.get_args(kind))
        kind = some[0] if len(some) == 1 else typing.Union[tuple(some)]  # noqa: UP007
    has_default = p.default is not inspect.Parameter.empty
    return Param(
        p.name, _kind_name(kind), optional, has_default, p.default if has_default else None
    )


def _kind_name(kind: Any) -> str:
    if kind is torch.Tensor:
        return "Tensor"
    return _SCALARS.get(kind, "other")
