# SPDX-License-Identifier: Apache-2.0
"""`IrOp`: what people see of an op.

The call itself is C++ (`cpp/python/irop_call.cpp`); this module gives it names, checks and the
`__call__` that Dynamo and `inspect` read.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import torch

from vllm_ir import _C
from vllm_ir.dtypes import dtype_name
from vllm_ir.errors import (
    IrRuntimeError,
    IrTypeError,
    IrValueError,
    unknown_name,
)
from vllm_ir.explanation import Decision, Explanation, ImplCounts, OpReport
from vllm_ir.facts import caller
from vllm_ir.flags import check_flag
from vllm_ir.impl import (
    IrOpImpl,
    SupportsArgs,
    check_impl_schema,
    check_supports_args,
)
from vllm_ir.overloads import MaybeInplace, Overload, with_call
from vllm_ir.registry import registry
from vllm_ir.schema import OpSchema
from vllm_ir.tolerance import DEFAULTS, Tolerance

F = TypeVar("F", bound=Callable[..., Any])


class IrOp(Overload):
    """An op: a name with a meaning. Call it, give it implementations, choose among them.

    Made by `register_op`. `op(...)` preserves its inputs. All attributes are read-only facts.

    Attributes:
        name: The op's name.
        activations: Names of the parameters that `maybe_inplace` donates.
        allow_inplace: Whether `maybe_inplace` exists.
        torch_op: The operator that stands for the op in traced graphs.
        signature: The parameters with their types.
        source: Where the op was declared, "file:line".
    """

    registry: ClassVar[dict[str, "IrOp"]] = registry
    FACTS: ClassVar[tuple[str, ...]] = (
        *Overload.FACTS,
        *("name", "activations", "allow_inplace", "source"),
    )

    def __init__(
        self,
        name: str,
        native: Callable[..., Any],
        schema: OpSchema,
        activations: tuple[str, ...],
        allow_inplace: bool,
        source: str,
    ) -> None:
        packet = getattr(torch.ops.vllm_ir, name)
        super().__init__(name, schema, native, packet.default, packet.default, donating=False)
        self.name = name
        self.activations = activations
        self.allow_inplace = allow_inplace
        self.source = source
        self.__name__ = name
        self.__qualname__ = name
        self.__module__ = getattr(native, "__module__", __name__)
        self.__doc__ = native.__doc__
        self.__wrapped__ = native
        self._schema = schema
        self._impls: dict[str, IrOpImpl] = {}
        self._fake: Callable[..., Any] = native
        self._input_generator: Callable[..., tuple[Any, ...]] | None = None
        self._tolerances: dict[torch.dtype, Tolerance] = {}
        self._maybe_inplace: MaybeInplace | None = None
        if allow_inplace:
            donating = with_call(MaybeInplace, schema, name)
            doc = IrOp.maybe_inplace.__doc__
            self._maybe_inplace = donating(self, schema, packet.maybe_inplace, doc)

    # ---- facts -------------------------------------------------------------------------------

    @property
    def impls(self) -> Mapping[str, IrOpImpl]:
        """The implementations by provider, in order of registration; native is the first."""
        return MappingProxyType(self._impls)

    @property
    def maybe_inplace(self) -> "MaybeInplace":
        """The overload that donates the activations: they may be overwritten.

        Using an activation afterwards is undefined. Results may be the activations. With an
        implementation that isn't in-place, where a gradient is needed, and in compiled graphs it
        behaves like the default overload.

        Raises:
            AttributeError: The op was declared without `allow_inplace=True`.
        """
        if self._maybe_inplace is None:
            raise AttributeError(
                f"vllm_ir.{self.name}: has no maybe_inplace. Declare the op with "
                "@register_op(allow_inplace=True)."
            )
        return self._maybe_inplace

    def supported_providers(self) -> list[str]:
        """Return the providers that can run in this process, native included."""
        return [i.provider for i in self._impls.values() if i.supported]

    def __repr__(self) -> str:
        return f"IrOp('{self.name}')"

    def __str__(self) -> str:
        first = (inspect.cleandoc(self.__doc__ or "").splitlines() or [""])[0]
        return f"{self!r} - {first}" if first else repr(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_op_named, (self.name, self.__module__))

    # ---- registration ------------------------------------------------------------------------

    def register_impl(
        self,
        provider: str,
        *,
        supported: bool = True,
        supports_args: SupportsArgs | None = None,
        inplace: bool = False,
        batch_invariant: bool = False,
        unsupported_reason: str = "",
        entry: str = "",
        memoise: bool = False,
    ) -> Callable[[Callable[..., Any]], IrOpImpl]:
        """Return a decorator that registers a function as an implementation.

        Args:
            provider: Who gives it: a name that matches `^[a-z_][a-z0-9_]*$`.
            supported: Whether it can run in this process; evaluated now, never again.
            supports_args: A rule (`vllm_ir.rules`), or a callable with native's parameters that
                returns a bool. It sees real tensors in eager calls and fake ones while compiling,
                and must not look at the batch size or at values.
            inplace: It may write its activations and return them. Needs `allow_inplace`.
            batch_invariant: A row's result never depends on the other rows.
            unsupported_reason: Printed by `explain` when `supported` is False.
            entry: Name of a C++ function (`vllm_ir/entry.h`) that eager calls use in place of the
                decorated one. Both must give the same bits.
            memoise: Remember the callable's verdicts. Only for one that looks at nothing but
                dtypes, devices, shapes past dimension 0, strides, alignment and plain values.

        Returns:
            A decorator; the decorated name is bound to the `IrOpImpl`.

        Raises:
            DuplicateError: The provider is registered already, or reserved.
            IrValueError: A bad name, schema or callable; `inplace` on an op without
                `allow_inplace`.
            UnknownNameError: No such entry.

        Example:
            >>> import torch, vllm_ir as ir
            >>> from torch import Tensor
            >>> from vllm_ir import rules
            >>> @ir.ops.rms_norm.register_impl("mine", supports_args=rules.is_none("variance_size"))
            ... def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float,
            ...              variance_size: int | None = None) -> Tensor:
            ...     return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, epsilon)
            >>> rms_norm
            IrOpImpl('rms_norm', 'mine')
        """
        source = caller()
        where = f"vllm_ir.{self.name}.{provider}"
        if not isinstance(provider, str):
            raise IrTypeError(
                f"vllm_ir.{self.name}: a provider name must be a string, "
                f"got {type(provider).__name__}. Write @op.register_impl('name')."
            )
        for name, value in (
            ("supported", supported),
            ("inplace", inplace),
            ("batch_invariant", batch_invariant),
            ("memoise", memoise),
        ):
            check_flag(name, value, where)
        if supports_args is not None:
            check_supports_args(self._schema, supports_args, where)

        def decorate(fn: Callable[..., Any]) -> IrOpImpl:
            check_impl_schema(self._schema, fn, where)
            impl = IrOpImpl(
                self,
                provider,
                fn,
                supported=supported,
                unsupported_reason=unsupported_reason,
                supports_args=supports_args,
                inplace=inplace,
                batch_invariant=batch_invariant,
                entry=entry,
                memoise=memoise,
                source=source,
            )
            impl.register()
            return impl

        return decorate

    def register_fake(self, fn: F) -> F:
        """Replace native as the function that tells output shapes to tracers; returns `fn`.

        Args:
            fn: Takes the op's arguments, fake ones, and returns tensors of the right shape, dtype,
                strides and device. Serves all overloads.
        """
        self._fake = fn
        return fn

    def register_input_generator(self, fn: F) -> F:
        """Set the function behind `generate_inputs`; returns `fn`.

        Args:
            fn: Takes keywords (sizes, dtype, device) and returns a tuple of the op's arguments.
        """
        self._input_generator = fn
        return fn

    @property
    def has_input_generator(self) -> bool:
        """Whether `generate_inputs` works."""
        return self._input_generator is not None

    def generate_inputs(self, **kwargs: Any) -> tuple[Any, ...]:
        """Return sample arguments for tests and benchmarks.

        Raises:
            IrRuntimeError: The op has no generator.
        """
        if self._input_generator is None:
            raise IrRuntimeError(
                f"vllm_ir.{self.name}: No input generator registered. "
                "Use @op.register_input_generator."
            )
        return self._input_generator(**kwargs)

    def sample_inputs(self, **wishes: Any) -> tuple[Any, ...]:
        """Return sample arguments; a keyword that the generator doesn't take is left out.

        Args:
            **wishes: Usual ones are `num_tokens`, `hidden_size`, `dtype` and `device`.

        Raises:
            IrRuntimeError: The op has no generator.
        """
        return self.generate_inputs(**self.generator_takes(wishes))

    def generator_takes(self, wishes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the wishes that the input generator has a keyword for; none without one."""
        if self._input_generator is None:
            return {}
        parameters = inspect.signature(self._input_generator).parameters
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return dict(wishes)
        return {name: value for name, value in wishes.items() if name in parameters}

    def override_tolerance(self, dtype: torch.dtype, *, atol: float, rtol: float) -> None:
        """Set how far an implementation of this op may be from native in a dtype."""
        self._tolerances[dtype] = Tolerance(atol, rtol)

    def get_tolerance(self, dtype: torch.dtype) -> Tolerance:
        """Return the override, else the default of the dtype.

        Raises:
            IrValueError: Neither exists.
        """
        found = self._tolerances.get(dtype) or DEFAULTS.get(dtype)
        if found is None:
            raise IrValueError(
                f"vllm_ir.{self.name}: No tolerance defined for dtype {dtype_name(dtype)}. "
                "Use op.override_tolerance."
            )
        return found

    # ---- choosing ----------------------------------------------------------------------------

    def set_default(self, providers: Sequence[str]) -> None:
        """Set the permanent priority list of this process; platform defaults come after it.

        Args:
            providers: Registered provider names, first choice first. Duplicates are dropped; an
                empty list leaves the platform's default, or native.

        Raises:
            UnknownNameError: A provider is not registered for this op.
            IrTypeError: Not a list of strings.
            IrRuntimeError: In strict mode, a provider is unsupported here.
        """
        if not isinstance(providers, (list, tuple)):
            raise IrTypeError(
                f"vllm_ir.{self.name}: a priority must be a list of provider names, "
                f"got {type(providers).__name__}."
            )
        for provider in providers:
            if not isinstance(provider, str):
                raise IrTypeError(
                    f"vllm_ir.{self.name}: a provider name must be a string, "
                    f"got {type(provider).__name__}."
                )
        _C.set_default(self.name, list(providers))

    def set_platform_default(self, providers: Sequence[str], compiling: bool = False) -> list[str]:
        """Set the list that follows the user's; returns the names that are not registered yet.

        Those count as soon as their provider registers.
        """
        return _C.set_platform_default(self.name, list(providers), compiling)

    def get_priority(self, compiling: bool = False) -> list[str]:
        """Return the providers that a call here and now tries, in order."""
        return _C.priority_of(self.name, compiling)[0]

    def dropped(self, compiling: bool = False) -> dict[str, str]:
        """Return the providers that were asked for and can't run, with the reason."""
        return dict(_C.priority_of(self.name, compiling)[1])

    def get_default(self) -> list[str]:
        """Return the list that `set_default` set."""
        return _C.configured(self.name)

    def unknown_provider_message(self, provider: str) -> str | None:
        """Return the error text for a provider that isn't registered, None when it is."""
        if provider in self._impls:
            return None
        return unknown_name(f"vllm_ir.{self.name}", "provider", provider, self._impls)

    # ---- asking ------------------------------------------------------------------------------

    def apply_arg_defaults(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return positional arguments with defaults filled; IrTypeError when one is missing."""
        return self.bind(*args)

    def dispatch(self, *args: Any, **kwargs: Any) -> IrOpImpl:
        """Return the implementation that would run for these arguments. Runs and counts nothing."""
        return self._impls[self._peek(self.bind(*args, **kwargs), False)]

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Return which implementation would run, and the reason for each other one.

        Args:
            *args: The arguments of the call; fake tensors will do.
            **kwargs: The same, by name.

        Example:
            >>> import torch, vllm_ir as ir
            >>> print(ir.ops.rms_norm.explain(torch.randn(2, 8), None, 1e-6))
            vllm_ir.rms_norm: vllm_c runs (priority: vllm_c, native)
              vllm_c  selected
              native  not reached
              triton  not in the priority list
        """
        selected, decisions = self._explain(self.bind(*args, **kwargs), False)
        return Explanation(
            self.name,
            selected,
            tuple(self.get_priority()),
            tuple(Decision(*d) for d in decisions),
        )

    def report(self, reset: bool = False) -> OpReport:
        """Return how often each implementation ran, and why others did not."""
        counts = _C.counts_of(self.name, reset)
        gradient_calls = counts.pop("")
        impls = tuple(
            ImplCounts(provider, selected, dict(rejections))
            for provider, (selected, rejections) in counts.items()
        )
        return OpReport(self.name, impls, gradient_calls)


def _op_named(name: str, module: str) -> IrOp:
    """Find an op for pickle, importing the module that declares it when need be."""
    if name not in IrOp.registry:
        __import__(module)
    return IrOp.registry[name]
