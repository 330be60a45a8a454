# SPDX-License-Identifier: Apache-2.0
"""How fast are the kernels, against native, torch, compiled native and the machine's own copy?

For each shape, dtype and number of threads: time, GB/s (each byte counted once, read or written),
and the fraction of the bandwidth of `out.copy_(x)` on the same matrix, measured in the same rounds.
Small shapes stay in the cache, as the copy beside them does. "out" rows allocate nothing; the
others allocate results, in memory that has been used before.

    python bench/bench_ops.py [--full] [--json FILE]
    python bench/bench_ops.py --rows 1,64 --widths 576 --dtypes float32 --threads 1
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from functools import partial

import torch
from contenders import GATED, Problem, arguments, contenders, forget_compiled, keep_freed_memory
from sheet import Goal, Sheet, bench_arguments
from stopwatch import Timing, measure
from tqdm import tqdm

import vllm_ir as ir

OPS = ("rms_norm", "fused_add_rms_norm", *GATED)
FULL = {
    "rows": (1, 16, 256, 4096),
    "widths": (64, 128, 576, 4096, 8192),
    "dtypes": ("bfloat16", "float16", "float32"),
}
GOALS_ONLY = {"rows": (1, 16, 256, 4096), "widths": (4096,), "dtypes": ("bfloat16",)}


def rounds_for(problem: Problem) -> int:
    """Return the slices per row: many for a steady minimum, few for large matrices."""
    return max(40, min(200, 100_000_000 // problem.bytes_moved))


def grid(options: argparse.Namespace) -> list[Problem]:
    """Return the problems that were asked for."""
    defaults = FULL if options.full else GOALS_ONLY
    rows, widths, dtypes = (
        getattr(options, name) or defaults[name] for name in ("rows", "widths", "dtypes")
    )
    cells = itertools.product(OPS, dtypes, widths, rows)
    return [Problem(op, r, w, getattr(torch, dtype)) for op, dtype, w, r in cells]


def run_problem(problem: Problem, with_compiled: bool) -> dict[str, Timing]:
    """Time all contenders of one problem; vllm_c must be what the op runs."""
    cases = contenders(problem, with_compiled)
    op, args = ir.IrOp.registry[problem.op], arguments(problem, dict(cases[0].names))
    if op.dispatch(*args).provider != "vllm_c":
        raise RuntimeError(f"{problem}: vllm_c was not selected.\n{op.explain(*args)}")
    return measure(cases, rounds=rounds_for(problem))


def print_problem(problem: Problem, threads: int, timings: dict[str, Timing]) -> None:
    """Print the table of one problem."""
    copy = problem.bytes_copied / timings["copy"].minimum
    title = f"{problem}, threads {threads}"
    print(f"\n{title:<50} {'us':>10} {'± us':>8} {'median':>10} {'GB/s':>8} {'of copy':>8}")
    for label, row in timings.items():
        speed = (problem.bytes_copied if label == "copy" else problem.bytes_moved) / row.minimum
        micros = (value / 1e3 for value in (row.minimum, row.wobble, row.median))
        numbers = "{:10.2f} {:8.2f} {:10.2f}".format(*micros)
        print(f"  {label:<48} {numbers} {speed:8.1f} {speed / copy:8.2f}")


def add_goals(sheet: Sheet, problem: Problem, threads: int, timings: dict[str, Timing]) -> None:
    """Add the goals, which are about bf16 and width 4096."""
    if (problem.width, problem.dtype) != (4096, torch.bfloat16):
        return
    where = f"{problem}, threads {threads}"
    get = partial(dict.get, timings)
    if problem.op in GATED:  # as much arithmetic as memory: the copy is no measure
        sheet.ratio(f"{where}: vllm_c ÷ compiled native", get("vllm_c"), get("compiled"), 1.0)
    if problem.op == "rms_norm" and problem.rows == 1:
        sheet.ratio(f"{where}: vllm_c ÷ F.rms_norm", get("vllm_c"), get("F.rms_norm"), 0.15)
        sheet.ratio(f"{where}: vllm_c ÷ compiled native", get("vllm_c"), get("compiled"), 0.20)
    if problem.op not in GATED and problem.rows == 4096:
        ours = get("vllm_c out") or get("vllm_c")
        speeds = (
            problem.bytes_moved / ours.minimum,
            problem.bytes_copied / timings["copy"].minimum,
        )
        sheet.goal(Goal(f"{where}: bandwidth ÷ copy", speeds[0] / speeds[1], 0.60, at_least=True))
        sheet.ratio(f"{where}: {ours.label} ÷ compiled out", ours, get("compiled out"), 1.0)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = bench_arguments(__doc__)
    parser.add_argument(
        "--full", action="store_true", help="all shapes and dtypes (about half an hour)"
    )
    parser.add_argument("--rows", type=numbers, metavar="N,N", help="numbers of rows")
    parser.add_argument("--widths", type=numbers, metavar="N,N", help="widths")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), metavar="T,T", help="dtypes")
    parser.add_argument(
        "--threads", type=numbers, default=[1, 2], metavar="N,N", help="numbers of threads"
    )
    parser.add_argument(
        "--no-compiled", action="store_true", help="leave out compiled native, which takes long"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    options = parse(argv)
    keep_freed_memory()
    sheet = Sheet("ops on the CPU, by provider")
    problems = grid(options)
    steps = tqdm(
        total=len(options.threads) * len(problems), unit="shape", disable=None, leave=False
    )
    with (
        torch.inference_mode(),
        ir.IrOpPriorityConfig.from_dict(dict.fromkeys(OPS, "vllm_c,native")).scoped(),
    ):
        for threads in options.threads:
            torch.set_num_threads(threads)
            forget_compiled()
            for problem in problems:
                if options.only is None or options.only in str(problem):
                    timings = run_problem(problem, not options.no_compiled)
                    sheet.timings[f"{problem}, threads {threads}"] = timings
                    print_problem(problem, threads, timings)
                    add_goals(sheet, problem, threads, timings)
                steps.update()
    sheet.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
