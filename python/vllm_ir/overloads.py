# SPDX-License-Identifier: Apache-2.0
"""What the two callables of an op share: the C call, the signature, identity under copying."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from vllm_ir import _C, traced
from vllm_ir.errors import IrTypeError
from vllm_ir.facts import set_once
from vllm_ir.schema import OpSchema
from vllm_ir.torch_wrap import torch_wrap_enabled

if TYPE_CHECKING:
    from vllm_ir.op import IrOp


class Overload(_C.IrOpBase):
    """A callable over one torch operator. The call itself is C++ (`cpp/python/irop_call.cpp`)."""

    FACTS: ClassVar[tuple[str, ...]] = ("signature",)
    __setattr__ = set_once

    def __init__(
        self,
        op_name: str,
        schema: OpSchema,
        native: Callable[..., Any],
        torch_op: Any,
        exported_op: Any,
        donating: bool,
    ) -> None:
        off_fast_path = self._call_off_fast_path
        super().__init__(op_name, schema.defaults(), torch_op, off_fast_path, donating)
        self._op_name = op_name
        self._native = native
        self._exported_op = exported_op
        self.signature = self.__signature__ = schema.signature

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__call__" in cls.__dict__:
            _C.use_native_call(cls)

    def bind(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the full positional arguments of a call, defaults filled.

        Raises:
            IrTypeError: An argument is missing, unknown or given twice.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as e:
            raise IrTypeError(f"vllm_ir.{self._op_name}: {e}. It takes {self.signature}.") from None
        bound.apply_defaults()
        return bound.args

    def __copy__(self) -> "Overload":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Overload":
        return self

    def _call_off_fast_path(self, *args: Any, **kwargs: Any) -> Any:
        """Take a call that isn't plain eager, if it donates or somebody has turned wrap off."""
        if torch.compiler.is_exporting():
            return self._exported_op(*args, **kwargs)
        if torch_wrap_enabled():
            return self.torch_op(*args, **kwargs)
        return self._run_unwrapped(self.bind(*args, **kwargs), False)


class MaybeInplace(Overload):
    """`op.maybe_inplace`: the donating overload; shares the op's priority and implementations."""

    FACTS: ClassVar[tuple[str, ...]] = (*Overload.FACTS, "op")

    def __init__(self, op: "IrOp", schema: OpSchema, torch_op: Any, doc: str | None) -> None:
        super().__init__(op.name, schema, op._native, torch_op, op.torch_op, donating=True)
        self.op = op
        self.__name__ = "maybe_inplace"
        self.__qualname__ = f"{op.name}.maybe_inplace"
        self.__module__ = op.__module__
        self.__doc__ = doc

    def __repr__(self) -> str:
        return f"IrOp('{self.op.name}').maybe_inplace"

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (self.op, "maybe_inplace"))


B = TypeVar("B", bound=Overload)


def with_call(base: type[B], schema: OpSchema, op_name: str) -> type[B]:
    """Return a subclass whose Python `__call__` has the op's exact signature.

    Dynamo and `inspect` read it and find the torch operator behind it, with keywords put in their
    places, or what else `traced.how_traced` says; the interpreter uses the C slot, which
    `__init_subclass__` gives back.
    """
    names = ", ".join(schema.param_names())
    params = ", ".join(
        f"{p.name}=_default_of[{p.name!r}]" if p.has_default else p.name for p in schema.params
    )
    owner, how = _free_names(schema)
    scope: dict[str, Any] = {
        "_default_of": schema.defaults(),
        "_how_traced": traced.how_traced,
        "_run_in_graph": traced.run_in_graph,
    }
    source = f"""
def __call__({owner}, {params}):
    {how} = _how_traced({op_name!r})
    if {how} == {traced.OPERATOR!r}:
        return {owner}.torch_op({names})
    if {how} == {traced.NATIVE!r}:
        return {owner}._native({names})
    if {how} == {traced.DEFAULT!r}:
        return {owner}._exported_op({names})
    return _run_in_graph({op_name!r}, {how}, {names})
"""
    exec(source, scope)
    return type(base.__name__, (base,), {"__call__": scope["__call__"], "__module__": __name__})


def _free_names(schema: OpSchema) -> tuple[str, str]:
    """Return two names that no parameter has."""
    owner, how = "_op", "_how"
    while owner in schema.param_names():
        owner += "_"
    while how in schema.param_names():
        how += "_"
    return owner, how
