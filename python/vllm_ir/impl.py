# SPDX-License-Identifier: Apache-2.0
"""`IrOpImpl`: one implementation of an op, and the checks that its registration makes."""

import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_ir import _C
from vllm_ir.entries import entry_library
from vllm_ir.errors import IrValueError
from vllm_ir.facts import set_once
from vllm_ir.identity import Identity, LibraryFile, UnknownIdentity, identify
from vllm_ir.rules import Rule
from vllm_ir.schema import OpSchema, schema_of

if TYPE_CHECKING:
    from vllm_ir.op import IrOp

SupportsArgs = Callable[..., bool] | Rule

_registering = threading.RLock()


class IrOpImpl:
    """One way to run an op; made by `IrOp.register_impl`, which binds the decorated name to it.

    It is not a way to call the op: `impl_fn` is the function itself. Attributes are read-only.

    Attributes:
        op: The op.
        provider: Who gives the implementation, "vllm_c" say.
        impl_fn: The traceable Python function.
        supported: Whether it can run in this process.
        unsupported_reason: Why not, "" when it can.
        supports_all_args: No rule and no callable restricts the arguments.
        rule: The rule, or None.
        inplace: It may write its activations and return them.
        batch_invariant: A row's result doesn't depend on the other rows.
        entry: Name of the C++ function that eager calls use, "" for none.
        source: Where it was registered, "file:line".
    """

    FACTS: ClassVar[tuple[str, ...]] = (
        *("op", "provider", "impl_fn", "supported", "unsupported_reason", "supports_all_args"),
        *("rule", "inplace", "batch_invariant", "entry", "source"),
    )
    __setattr__ = set_once

    def __init__(
        self,
        op: "IrOp",
        provider: str,
        impl_fn: Callable[..., Any],
        *,
        supported: bool,
        unsupported_reason: str,
        supports_args: SupportsArgs | None,
        inplace: bool,
        batch_invariant: bool,
        entry: str,
        memoise: bool,
        source: str,
    ) -> None:
        self.op = op
        self.provider = provider
        self.impl_fn = impl_fn
        self.supported = supported
        self.unsupported_reason = unsupported_reason
        self.supports_all_args = supports_args is None
        self.rule = supports_args if isinstance(supports_args, Rule) else None
        self.inplace = inplace
        self.batch_invariant = batch_invariant
        self.entry = entry
        self.source = source
        self._callable = None if isinstance(supports_args, Rule) else supports_args
        self._memoise = memoise
        self.__doc__ = impl_fn.__doc__

    def supports_args(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether the implementation accepts these arguments of the op.

        Looks at them only: real, fake and meta tensors will do. A callable that raises or returns
        no bool has not accepted.

        Raises:
            IrTypeError: An argument is missing, unknown or given twice.
        """
        return self.op._verdict(self.provider, self.op.bind(*args, **kwargs))[0]

    def uuid(self) -> str | None:
        """Return an identity for compile caches, None when it can't be known.

        It changes when anything changes that decides the result: the functions, all that their code
        refers to, helpers in other files included, the libraries behind them, the rule, the flags.
        What has a state, an object in a closure say, can't be known (`vllm_ir.identity`).
        """
        try:
            return self.identity().digest
        except UnknownIdentity:
            return None

    def identity(self) -> Identity:
        """Return what `uuid` tells, and the ops that the implementation calls.

        Raises:
            UnknownIdentity: It can't be known; the text says why.
        """
        flags = (self.supported, self.inplace, self.batch_invariant, self.entry)
        library = LibraryFile(entry_library(self.entry)) if self.entry else None
        named = (self.op.name, self.provider, flags, library)
        return identify(*named, self.rule, self.impl_fn, self._callable)

    def __repr__(self) -> str:
        return f"IrOpImpl('{self.op.name}', '{self.provider}')"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_impl_of, (self.op, self.provider))

    def __copy__(self) -> "IrOpImpl":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "IrOpImpl":
        return self

    def options(self) -> dict[str, Any]:
        """Return the registration as the C++ core takes it."""
        return {
            "supported": self.supported,
            "unsupported_reason": self.unsupported_reason,
            "clauses": None if self.rule is None else list(self.rule.clauses),
            "inplace": self.inplace,
            "batch_invariant": self.batch_invariant,
            "memoise": self._memoise,
            "entry": self.entry,
            "source": self.source,
        }

    def register(self) -> None:
        """Hand the implementation to the C++ core, which makes it selectable.

        It is in `op.impls` before: another thread may choose it, and look for it there, at once.
        """
        impls = self.op._impls
        with _registering:
            first = impls.setdefault(self.provider, self) is self
            try:
                _C.add_impl(
                    self.op.name, self.provider, self.impl_fn, self._callable, self.options()
                )
            except BaseException:
                if first:
                    del impls[self.provider]
                raise


def _impl_of(op: "IrOp", provider: str) -> IrOpImpl:
    return op.impls[provider]


def check_impl_schema(op_schema: OpSchema, fn: Callable[..., Any], where: str) -> None:
    """Raise IrValueError unless the implementation's schema is native's."""
    schema = schema_of(fn, where)
    if schema.text != op_schema.text:
        raise IrValueError(
            f"{where}: the implementation's schema {schema.text} does not match native schema "
            f"{op_schema.text}. Give it native's parameters, types, defaults and result."
        )


def check_supports_args(op_schema: OpSchema, supports_args: object, where: str) -> None:
    """Raise IrValueError unless the rule or callable can be called with native's arguments."""
    if isinstance(supports_args, Rule):
        return
    if not callable(supports_args):
        raise IrValueError(
            f"{where}: supports_args must be a callable or a rule, "
            f"got {type(supports_args).__name__}."
        )
    try:
        given = list(inspect.signature(supports_args).parameters.values())
    except (TypeError, ValueError) as e:
        raise IrValueError(
            f"{where}: supports_args must have a signature that can be read, "
            f"got {supports_args!r}. Wrap it in a function with native's parameters."
        ) from e
    native = list(op_schema.signature.parameters.values())
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in given):
        return
    if any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in given):
        raise IrValueError(f"{where}: supports_args has keyword-only parameters. Remove the *.")
    if len(given) != len(native):
        raise IrValueError(
            f"{where}: supports_args has the wrong number of parameters: native takes "
            f"{len(native)} ({', '.join(p.name for p in native)}), got {len(given)}."
        )
    for want, got in zip(native, given, strict=True):
        if want.name != got.name:
            raise IrValueError(
                f"{where}: supports_args parameter '{got.name}' does not match native parameter "
                f"'{want.name}'."
            )
        if not _same_default(want.default, got.default):
            raise IrValueError(
                f"{where}: supports_args default of '{got.name}' does not match native default: "
                f"{_shown(want.default)} is needed, got {_shown(got.default)}."
            )


def _same_default(a: object, b: object) -> bool:
    return a is b or (type(a) is type(b) and a == b)


def _shown(default: object) -> str:
    return "no default" if default is inspect.Parameter.empty else repr(default)
