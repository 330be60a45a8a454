# SPDX-License-Identifier: Apache-2.0
"""`python -m vllm_ir list|explain|env`, also installed as `vllm-ir`.

Exit codes: 0 done; 2 a wrong command line or an error of vllm_ir, in one line on stderr.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import vllm_ir
from vllm_ir import cli
from vllm_ir.env_report import env_report
from vllm_ir.errors import IrError, IrValueError
from vllm_ir.explain_report import explain_report
from vllm_ir.list_report import list_report
from vllm_ir.op import IrOp
from vllm_ir.sample_args import Sample, parse_shape


class _Report(Protocol):
    def to_dict(self) -> Any: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    args = _parser().parse_args(argv)
    try:
        cli.from_args(args).apply()
        report: _Report = args.run(args)
        print(json.dumps(report.to_dict(), indent=2) if args.json else report)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`| head`): nothing is wrong, and the flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except IrError as error:
        print(f"vllm-ir: error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vllm-ir", description="Which implementation runs, and why."
    )
    commands = parser.add_subparsers(required=True, metavar="list|explain|env")

    show = commands.add_parser("list", help="ops, their implementations and effective priorities")
    show.add_argument("op", nargs="*", help="only these ops")
    show.set_defaults(run=lambda args: list_report([IrOp.registry[name] for name in args.op]))

    explain = commands.add_parser("explain", help="the decision for sample arguments of an op")
    what = explain.add_mutually_exclusive_group(required=True)
    what.add_argument("op", nargs="?", help="an op")
    what.add_argument(
        "--compiled",
        metavar="FILE",
        help="run this Python script (its output goes to stderr) and explain what it compiled",
    )
    explain.add_argument("--shape", default="4,64", help="of the activations (4,64)")
    explain.add_argument("--dtype", default="float32", help="of every tensor (float32)")
    explain.add_argument("--device", default="cpu", help="of every tensor (cpu)")
    explain.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one argument: none, true, false, a number, or a tensor such as float32[64]",
    )
    explain.set_defaults(run=_explain)

    env = commands.add_parser("env", help="what a bug report needs")
    env.set_defaults(run=lambda args: env_report())

    for command in (show, explain, env):
        command.add_argument("--json", action="store_true", help="print JSON")
        if command is not env:
            cli.add_arguments(command)
    return parser


def _explain(args: argparse.Namespace) -> _Report:
    if args.compiled is not None:
        report: _Report = vllm_ir.compile.explain_script(args.compiled)
        return report
    given = dict(_name_and_value(text) for text in args.arg)
    sample = Sample(parse_shape(args.shape), args.dtype, args.device, given)
    return explain_report(IrOp.registry[args.op], sample)


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise IrValueError(f"vllm_ir.explain: --arg takes NAME=VALUE, got {text!r}.")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
