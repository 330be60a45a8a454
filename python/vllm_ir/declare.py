# SPDX-License-Identifier: Apache-2.0
"""`register_op`: an op is declared once, by a function that says what it means."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from vllm_ir import _C
from vllm_ir.errors import IrTypeError, IrValueError, UnknownNameError, unknown_name
from vllm_ir.facts import caller
from vllm_ir.flags import check_flag
from vllm_ir.impl import IrOpImpl
from vllm_ir.op import IrOp
from vllm_ir.overloads import with_call
from vllm_ir.schema import OpSchema, schema_of

# Called with every op that is declared from now on; the platform's defaults come this way.
on_declare: list[Callable[[IrOp], None]] = []


@overload
def register_op(
    fn: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: bool = False,
) -> IrOp: ...
@overload
def register_op(
    fn: None = None,
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: bool = False,
) -> Callable[[Callable[..., Any]], IrOp]: ...
def register_op(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: bool = False,
) -> IrOp | Callable[[Callable[..., Any]], IrOp]:
    """Declare an op by its native function: the meaning, the default and the test reference.

    Args:
        fn: The native function. Parameters are positional-or-keyword with annotations that torch's
            schema inference takes; the result is a Tensor or a tuple of Tensors.
        name: The op's name; default: the function's. Must match `^[a-z_][a-z0-9_]*$`.
        activations: Tensor parameters that may be donated; default: those whose name starts
            with `x`.
        allow_inplace: Also make `op.maybe_inplace`. Needs as many results as activations.

    Returns:
        The op; without `fn`, a decorator.

    Raises:
        IrValueError: A bad name, signature or activation list.
        DuplicateError: The name is taken; the message names both places.

    Example:
        >>> import torch, vllm_ir as ir
        >>> from torch import Tensor
        >>> @ir.register_op
        ... def scaled_add(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        ...     return x + scale * y
        >>> scaled_add(torch.ones(2), torch.ones(2))
        tensor([2., 2.])
    """
    source = caller()

    def decorate(native: Callable[..., Any]) -> IrOp:
        return _declare(native, name, activations, allow_inplace, source)

    return decorate if fn is None else decorate(fn)


def _declare(
    native: Callable[..., Any],
    name: str | None,
    activations: Sequence[str] | None,
    allow_inplace: bool,
    source: str,
) -> IrOp:
    op_name = getattr(native, "__name__", repr(native)) if name is None else name
    if not isinstance(op_name, str):
        raise IrTypeError(f"vllm_ir: an op name must be a string, got {type(op_name).__name__}.")
    where = f"vllm_ir.{op_name}"
    check_flag("allow_inplace", allow_inplace, where)
    if _hidden_in_torch_ops(op_name):
        raise IrValueError(
            f"vllm_ir: op name '{op_name}' is invalid. torch.ops.vllm_ir.{op_name} means something "
            "else; choose another name."
        )
    schema = schema_of(native, where)
    donated = _activations(schema, activations, where)
    make = with_call(IrOp, schema, op_name)  # what can fail comes before anything is defined
    _C.define_op(
        op_name,
        [(p.name, p.kind, p.optional, p.has_default, p.name in donated) for p in schema.params],
        allow_inplace,
        schema.tensor_outputs,
        schema.text,
        schema.donating_text(donated) if allow_inplace else "",
        source,
    )
    op = make(op_name, native, schema, donated, allow_inplace, source)
    IrOp.registry[op_name] = op
    impl = IrOpImpl(
        op,
        "native",
        native,
        supported=True,
        unsupported_reason="",
        supports_args=None,
        inplace=False,
        batch_invariant=True,
        entry="",
        memoise=False,
        source=source,
    )
    impl.register()
    _register_fakes(op)
    for told in on_declare:
        told(op)
    return op


def _hidden_in_torch_ops(name: str) -> bool:
    """Whether an attribute of the namespace itself would be found in place of the operator."""
    namespace = torch.ops.vllm_ir
    own = vars(namespace).get(name)
    shown = own is None or isinstance(own, torch._ops.OpOverloadPacket)
    return hasattr(type(namespace), name) or not shown


def _activations(
    schema: OpSchema, activations: Sequence[str] | None, where: str
) -> tuple[str, ...]:
    if activations is None:
        return tuple(p.name for p in schema.params if p.name[0] == "x" and p.kind == "Tensor")
    if isinstance(activations, str):
        raise IrTypeError(f"{where}: activations must be a list of names, got str.")
    activations = tuple(activations)  # an iterator would be empty at the second look
    for name in activations:
        if name not in schema.param_names():
            raise UnknownNameError(unknown_name(where, "activation", name, schema.param_names()))
    # In parameter order: results correspond to activations by position.
    return tuple(n for n in schema.param_names() if n in activations)


def _register_fakes(op: IrOp) -> None:
    def fake(*args: Any, **kwargs: Any) -> Any:
        _check_tensors(op, args)
        return op._fake(*args, **kwargs)

    overloads = ["", ".maybe_inplace", ".donated"] if op.allow_inplace else [""]
    for suffix in overloads:
        torch.library.register_fake(f"vllm_ir::{op.name}{suffix}", fake)


def _check_tensors(op: IrOp, args: tuple[Any, ...]) -> None:
    """Refuse None for a Tensor, in the words of eager calls: torch lets it through to the fake."""
    for param, arg in zip(op._schema.params, args, strict=False):
        if arg is None and param.kind == "Tensor" and not param.optional:
            raise IrTypeError(f"vllm_ir.{op.name}: {param.name} must be a Tensor, got None.")
