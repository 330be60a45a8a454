# SPDX-License-Identifier: Apache-2.0
"""The configuration object: one priority list an op, checked as a whole before anything is set.

An op or a provider may be registered after the object was made, so names are looked up by
`validate`, `apply` and `scoped`; the form of a list is checked when the object is made.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from vllm_ir import _C
from vllm_ir.errors import (
    IrError,
    IrRuntimeError,
    IrValueError,
    UnknownNameError,
    unknown_name,
)
from vllm_ir.impl import IrOpImpl
from vllm_ir.op import IrOp
from vllm_ir.priority_text import PriorityTypeError, parse_priority

Priority: TypeAlias = str | Sequence[str] | None


class IrOpPriorityConfig(Mapping[str, tuple[str, ...]]):
    """One priority list for each op that the user says something about. Immutable.

    Args:
        **lists: Op name → provider names in order, as a text `"a,b"`, a list or a tuple.
            None and an empty list say nothing, as if the op were left out.

    Raises:
        IrValueError: Some lists are malformed; one error names them all.

    Example:
        >>> from vllm_ir import IrOpPriorityConfig
        >>> config = IrOpPriorityConfig(rms_norm="vllm_c,native")
        >>> config["rms_norm"]
        ('vllm_c', 'native')
        >>> with config.scoped():
        ...     pass
    """

    __slots__ = ("_lists",)
    _lists: Mapping[str, tuple[str, ...]]

    def __init__(self, /, **lists: Priority) -> None:
        self._lists = _checked(lists)

    @classmethod
    def from_dict(cls, lists: Mapping[str, Priority]) -> "IrOpPriorityConfig":
        """Make a configuration from a dict of lists; op names may be any text."""
        config = cls.__new__(cls)
        config._lists = _checked(lists)
        return config

    @classmethod
    def from_any(cls, value: object) -> "IrOpPriorityConfig":
        """Return `value` as a configuration: None is the empty one, a dict is read.

        Raises:
            PriorityTypeError: `value` is something else.
        """
        if isinstance(value, IrOpPriorityConfig):
            return value
        return cls.from_dict(_as_mapping(value))

    def __getitem__(self, op: str) -> tuple[str, ...]:
        try:
            return self._lists[op]
        except KeyError:
            raise UnknownNameError(
                unknown_name("IrOpPriorityConfig", "op", op, self._lists)
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IrOpPriorityConfig):
            return NotImplemented
        return self._lists == other._lists

    def __hash__(self) -> int:
        return hash(frozenset(self._lists.items()))

    def __repr__(self) -> str:
        lists = ", ".join(f"{op}={list(names)}" for op, names in self._lists.items())
        return f"IrOpPriorityConfig({lists})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), dict(self._lists))

    def compute_hash(self) -> str:
        """Return a hash of the lists that is the same in every process, for cache keys."""
        text = json.dumps(sorted(self._lists.items()))
        return hashlib.sha256(text.encode()).hexdigest()

    def merged_with_defaults(self, platform_config: object) -> "IrOpPriorityConfig":
        """Return the lists with a platform's lists behind them, each provider once.

        Args:
            platform_config: What `Platform.get_default_ir_op_priority` returns.
        """
        defaults = IrOpPriorityConfig.from_any(platform_config)
        ops = dict.fromkeys((*self, *defaults))
        return type(self)(**{op: (*self.get(op, ()), *defaults.get(op, ())) for op in ops})

    def validate(self) -> None:
        """Look up every op and provider.

        Raises:
            UnknownNameError: Some are not registered; one error names them all.
            IrRuntimeError: Strict mode, and a provider is unsupported here.
        """
        _raise_all(self._problems())

    def apply(self) -> None:
        """Make the lists the configured ones of this process. The platform's defaults follow them.

        Raises:
            IrError: As `validate`; then nothing was set.
        """
        self.validate()
        for op, names in self._lists.items():
            IrOp.registry[op].set_default(list(names))

    @contextmanager
    def scoped(self) -> Iterator["IrOpPriorityConfig"]:
        """Use exactly these lists inside a `with`, in this thread or async task.

        A scope replaces an op's whole list: merge the platform's defaults in where they are wanted.

        Raises:
            IrError: As `validate`; then no scope was opened.
        """
        self.validate()
        with ExitStack() as scopes:
            for op, names in self._lists.items():
                scopes.enter_context(IrOp.registry[op].set_priority(list(names)))
            yield self

    def unknown_names(self) -> dict[tuple[str, ...], str]:
        """Return a text for each name that isn't registered, by `(op,)` or `(op, provider)`."""
        texts: dict[tuple[str, ...], str | None] = {}
        for name, providers in self._lists.items():
            op = IrOp.registry.get(name)
            if op is None:
                texts[name,] = unknown_name("vllm_ir", "op", name, IrOp.registry)
                continue
            for provider in providers:
                texts[name, provider] = op.unknown_provider_message(provider)
        return {key: text for key, text in texts.items() if text is not None}

    def _problems(self) -> list[IrError]:
        problems: list[IrError] = [UnknownNameError(text) for text in self.unknown_names().values()]
        if _C.is_strict():
            # The core refuses these too, but one op at a time, when others are set already.
            problems += [
                IrRuntimeError(
                    f"vllm_ir.{impl.op.name}.{impl.provider}: strict mode: unsupported here "
                    f"({impl.unsupported_reason or 'supported=False'}). "
                    "Remove it from the priority list."
                )
                for impl in self._registered_impls()
                if not impl.supported
            ]
        return problems

    def _registered_impls(self) -> Iterator[IrOpImpl]:
        for name, providers in self._lists.items():
            if name in IrOp.registry:
                impls = IrOp.registry[name].impls
                yield from (impls[provider] for provider in providers if provider in impls)


@dataclass(frozen=True, init=False)
class KernelConfig:
    """The part of an engine's configuration that chooses implementations.

    Args:
        ir_op_priority: Lists for some ops, as a configuration or a dict; None: the defaults.
    """

    ir_op_priority: IrOpPriorityConfig

    def __init__(
        self, ir_op_priority: IrOpPriorityConfig | Mapping[str, Priority] | None = None
    ) -> None:
        object.__setattr__(self, "ir_op_priority", IrOpPriorityConfig.from_any(ir_op_priority))

    def validate(self) -> None:
        """Look up every name, see `IrOpPriorityConfig.validate`."""
        self.ir_op_priority.validate()

    def apply(self) -> None:
        """Set the lists for this process, see `IrOpPriorityConfig.apply`."""
        self.ir_op_priority.apply()

    @contextmanager
    def scoped(self) -> Iterator["KernelConfig"]:
        """Use the lists inside a `with`, see `IrOpPriorityConfig.scoped`."""
        with self.ir_op_priority.scoped():
            yield self


def combine(routes: Mapping[str, object]) -> IrOpPriorityConfig:
    """Make one configuration from all the places that set priorities, and look up its names.

    Args:
        routes: Name of the place, for the error text → a KernelConfig, an IrOpPriorityConfig, a
            dict of lists or None. Example: `{"the command line": a, "KernelConfig": b}`.

    Raises:
        IrError: One error that names all problems: an op that two places set differently,
            malformed lists, unknown ops and providers.
    """
    problems: list[IrError] = []
    lists: dict[str, tuple[str, ...]] = {}
    origin: dict[str, str] = {}
    for route, value in routes.items():
        parsed, malformed = _read(_as_mapping(value))
        problems += malformed
        for op, names in parsed.items():
            if lists.setdefault(op, names) != names:
                problems.append(_set_twice(op, lists[op], origin[op], names, route))
            origin.setdefault(op, route)
    config = IrOpPriorityConfig(**lists)
    _raise_all(problems + config._problems())
    return config


def _set_twice(
    op: str, first: Sequence[str], place: str, second: Sequence[str], other: str
) -> IrValueError:
    return IrValueError(
        f"vllm_ir.{op}: one place sets the priority of an op, got {','.join(first)!r} from {place} "
        f"and {','.join(second)!r} from {other}. Remove one of them."
    )


def _as_mapping(value: object) -> Mapping[str, Priority]:
    if value is None:
        return {}
    if isinstance(value, KernelConfig):
        return value.ir_op_priority
    if isinstance(value, Mapping):
        return value
    raise PriorityTypeError(
        "IrOpPriorityConfig: priorities are given as an IrOpPriorityConfig, a dict of lists by op "
        f"or None, got {value!r} ({type(value).__name__})."
    )


def _checked(lists: Mapping[str, Priority]) -> Mapping[str, tuple[str, ...]]:
    parsed, problems = _read(lists)
    _raise_all(problems)
    return MappingProxyType(parsed)


def _read(lists: Mapping[str, Priority]) -> tuple[dict[str, tuple[str, ...]], list[IrError]]:
    """Parse each list: the good ones that say something, and what is wrong with the rest."""
    parsed: dict[str, tuple[str, ...]] = {}
    problems: list[IrError] = []
    for op, value in lists.items():
        if not isinstance(op, str):
            problems.append(
                PriorityTypeError(
                    f"IrOpPriorityConfig: an op is given by its name (str), "
                    f"got {op!r} ({type(op).__name__})."
                )
            )
            continue
        try:
            names = parse_priority(op, value)
        except IrError as error:
            problems.append(error)
        else:
            if names:
                parsed[op] = names
    return parsed, problems


def _raise_all(problems: Sequence[IrError]) -> None:
    """Raise one error for all problems; alone, a problem is raised as it is."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        text = f"vllm_ir: {len(problems)} problems in the priorities."
        raise _class_for(problems)("\n  ".join([text, *map(str, problems)]))


def _class_for(problems: Sequence[IrError]) -> type[IrError]:
    kinds = {type(problem) for problem in problems}
    if len(kinds) == 1:
        return kinds.pop()
    for kind in (UnknownNameError, PriorityTypeError):
        if any(isinstance(problem, kind) for problem in problems):
            return kind
    return IrValueError


def _rebuild(cls: type[IrOpPriorityConfig], lists: dict[str, Priority]) -> IrOpPriorityConfig:
    return cls(**lists)
