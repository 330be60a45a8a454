# SPDX-License-Identifier: Apache-2.0
"""The option `--ir-op-priority.<op>=a,b` for any argparse program.

Ops may be registered after the parser was made, so options are added when the parser runs: one for
each registered op, and one for each name on the command line, so that `from_args` can say what is
wrong with a name that no op has.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from vllm_ir.op import IrOp
from vllm_ir.priority import IrOpPriorityConfig, combine

OPTION = "--ir-op-priority"
_DEST = "ir_op_priority"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Let `parser` take `--ir-op-priority.<op>=a,b` and `--ir-op-priority.<op> a,b`.

    Works for every op that is registered when the parser runs, out-of-tree ones too. Call it for
    the parser that the options stand behind (a subcommand's own). The values are read by
    `from_args`.

    Example:
        >>> import argparse
        >>> from vllm_ir.cli import add_arguments, from_args
        >>> parser = argparse.ArgumentParser()
        >>> add_arguments(parser)
        >>> from_args(parser.parse_args(["--ir-op-priority.rms_norm=native"]))
        IrOpPriorityConfig(rms_norm=['native'])
    """
    group = parser.add_argument_group(
        "implementations", "Which implementation of an op runs: the first one that can."
    )
    group.add_argument(
        OPTION, action=_NameTheOp, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    options = _Options(group)
    for name in ("parse_known_args", "parse_known_intermixed_args"):
        setattr(parser, name, options.before(getattr(parser, name)))


def from_args(namespace: argparse.Namespace) -> IrOpPriorityConfig:
    """Return the priorities of a parsed command line; empty when it names none.

    Raises:
        IrError: One error that names all problems: malformed lists, unknown ops and providers, an
            op that is given twice with different lists.
    """
    given: dict[str, list[str]] = getattr(namespace, _DEST, {})
    return combine(
        {f"{OPTION}.{op}={text}": {op: text} for op, texts in given.items() for text in texts}
    )


class _Options:
    """Adds the missing options to a parser's group just before the parser runs."""

    def __init__(self, group: Any) -> None:  # argparse names the class of a group in private only
        self._group = group
        self._ops: set[str] = set()

    def before(self, parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_with_options(
            args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
        ) -> Any:
            args = sys.argv[1:] if args is None else list(args)
            for op in sorted(IrOp.registry):
                self._add(op, f"providers of {op} in order: {', '.join(IrOp.registry[op].impls)}")
            for op in _named(args):
                self._add(op, argparse.SUPPRESS)
            return parse(args, namespace)

        return parse_with_options

    def _add(self, op: str, text: str) -> None:
        if op in self._ops:
            return
        self._ops.add(op)
        self._group.add_argument(
            f"{OPTION}.{op}",
            action=_Collect,
            dest=_DEST,
            metavar="PROVIDERS",
            default=argparse.SUPPRESS,
            help=text,
        )


class _Collect(argparse.Action):
    """Keeps every text given for an op: namespace.ir_op_priority = {op: [text, ...]}."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        op = self.option_strings[0].removeprefix(OPTION + ".")
        given: dict[str, list[str]] = getattr(namespace, _DEST, {})
        setattr(namespace, _DEST, {**given, op: [*given.get(op, ()), values]})


class _NameTheOp(argparse.Action):
    """Refuses the bare option, which argparse would else take for the short form of another."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{OPTION} needs the name of an op: {OPTION}.rms_norm={values or 'a,b'}")


def _named(args: Sequence[str]) -> list[str]:
    """Return the ops that the arguments name, registered or not."""
    options = [arg.split("=", 1)[0] for arg in args if arg.startswith(OPTION + ".")]
    return [option.removeprefix(OPTION + ".") for option in options]
