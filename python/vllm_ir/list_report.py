# SPDX-License-Identifier: Apache-2.0
"""What `vllm-ir list` shows: ops, their implementations, and the order in which they are tried."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vllm_ir.impl import IrOpImpl
from vllm_ir.op import IrOp
from vllm_ir.platforms import current_platform
from vllm_ir.text_table import render

RULE = (
    "The first implementation in priority order that is supported and accepts the arguments runs; "
    "native is last.\n"
    "Priority = an open scope, else the configured list (set_default, --ir-op-priority.<op>=a,b) "
    "followed by the platform's default."
)
_COLUMNS = ("provider", "supported", "in place", "batch invariant", "source")
_WIDTH = 100
_MODES = {"eager": False, "compiling": True}


@dataclass(frozen=True)
class ImplRow:
    """One implementation of an op."""

    provider: str
    supported: bool
    reason: str
    accepts: str
    inplace: bool
    batch_invariant: bool
    source: str

    def cells(self) -> list[str]:
        """Return the row of the text table."""
        supported = "yes" if self.supported else f"no: {self.reason}"
        flags = ["yes" if flag else "no" for flag in (self.inplace, self.batch_invariant)]
        return [self.provider, supported, *flags, self.source]


@dataclass(frozen=True)
class OpRow:
    """One op with its implementations and effective priorities."""

    name: str
    summary: str
    activations: list[str]
    allow_inplace: bool
    priority: dict[str, list[str]]  # by mode
    dropped: dict[str, dict[str, str]]  # by mode: provider → why it can't run
    impls: list[ImplRow]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.summary}" if self.summary else self.name]
        for mode, names in self.priority.items():
            lines.append(f"  priority, {mode + ':':<10} {', '.join(names)}")
            lines += [f"    without {name}: {why}" for name, why in self.dropped[mode].items()]
        table = render(_COLUMNS, [impl.cells() for impl in self.impls])
        lines += [f"  {line}" for line in table]
        for impl in self.impls:
            text = f"{impl.provider} accepts {impl.accepts}"
            lines += textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
        return "\n".join(lines)


@dataclass(frozen=True)
class ListReport:
    """All ops of this process."""

    platform: str
    rule: str
    ops: list[OpRow]

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n\n".join([f"Platform {self.platform}. {self.rule}", *map(str, self.ops)])


def list_report(ops: Sequence[IrOp] = ()) -> ListReport:
    """Describe some ops; none given: all of them, by name."""
    chosen = ops or [op for _, op in sorted(IrOp.registry.items())]
    return ListReport(current_platform().name, RULE, [_op_row(op) for op in chosen])


def _op_row(op: IrOp) -> OpRow:
    return OpRow(
        name=op.name,
        summary=(op.__doc__ or "").strip().partition("\n")[0],
        activations=list(op.activations),
        allow_inplace=op.allow_inplace,
        priority={mode: op.get_priority(compiling) for mode, compiling in _MODES.items()},
        dropped={mode: op.dropped(compiling) for mode, compiling in _MODES.items()},
        impls=[_impl_row(impl) for impl in op.impls.values()],
    )


def _impl_row(impl: IrOpImpl) -> ImplRow:
    return ImplRow(
        provider=impl.provider,
        supported=impl.supported,
        reason="" if impl.supported else impl.unsupported_reason or "supported=False",
        accepts=_accepts(impl),
        inplace=impl.inplace,
        batch_invariant=impl.batch_invariant,
        source=impl.source,
    )


def _accepts(impl: IrOpImpl) -> str:
    if impl.supports_all_args:
        return "everything"
    return "what its supports_args says" if impl.rule is None else str(impl.rule)
