# SPDX-License-Identifier: Apache-2.0
"""What comes out of the compiler, against eager, plain torch.compile and code written by hand?

Two programs: a chain of 8 in-place norms with nothing between them, and one decoder layer. For each
way to run them: how many kernels were generated and what else is called, read in the generated
code; copies; what one call allocates, counted by torch's profiler; time. "by hand" calls the kernel
`torch.ops.vllm_ir_C.fused_add_rms_norm_` itself, in place.

    python bench/bench_compile.py [--quick] [--json FILE]
    python bench/bench_compile.py --kinds layer --tokens 4 --dtypes float32 --threads 2
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from allocations import Allocations, allocations_of
from compile_contenders import Contender, Program, contenders
from compile_options import cells, compile_arguments
from compile_subjects import Subject
from generated_code import Code, code_of
from sheet import Goal, Sheet
from stopwatch import Case, Timing, measure
from torch import Tensor
from torch._inductor.utils import fresh_cache
from tqdm import tqdm

import vllm_ir as ir

FULL = {"tokens": (4, 512), "dtypes": ("bfloat16",), "threads": (1, 2)}
QUICK = {"tokens": (4,), "dtypes": ("bfloat16",), "threads": (1,)}
# Products of bfloat16 matrices; a program that rounds less often lies closer to the exact result.
TOLERANCE = {torch.bfloat16: 0.05, torch.float32: 1e-4}


@dataclass
class Row:
    """What is known about one way to run a program; None where nothing was compiled.

    Attributes:
        code: what its generated code calls.
        kept: copies in front of in-place kernels that the lowering kept.
        memory: what one call allocates.
        timing: of one call, in nanoseconds.
    """

    code: Code | None
    kept: int | None
    memory: Allocations
    timing: Timing | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        code = self.code and {
            "kernels": self.code.kernels,
            "externs": self.code.externs,
            "allocated": self.code.allocated,
        }
        return {"code": code, "clones_kept": self.kept, "memory": vars(self.memory)}

    def __str__(self) -> str:
        code, kept = self.code, "-" if self.kept is None else self.kept
        calls = (len(code.kernels), len(code.externs), code.copies) if code else ("-",) * 3
        kib = self.memory.peak / 1024
        text = "{:>8} {:>7} {:>7}".format(*calls)
        text += f" {kept:>7} {self.memory.count:>7} {kib:>9.0f}"
        if self.timing is not None:
            micros = (t / 1e3 for t in (self.timing.minimum, self.timing.wobble))
            text += " {:>10.1f} {:>8.1f}".format(*micros)
        return text


HEAD = f"{'kernels':>8} {'externs':>7} {'copies':>7} {'clones':>7} {'allocs':>7} {'peak KiB':>9}"


def run_subject(subject: Subject, threads: int, rounds: int) -> dict[str, Row]:
    """Compile, check, count and time every way to run one program."""
    torch._dynamo.reset()
    weights, ways = subject.weights(), contenders(threads)
    rows, cases = {}, []
    with ways["eager native"].scope():
        expected = subject.program(ways["eager native"].norm)(*subject.activations(), weights)
    for label, way in ways.items():
        program = way.build(subject.program(way.norm))
        with way.scope():
            rows[label] = count(subject, way, program, weights)
        x, residual = subject.activations()
        names = {"f": program, "x": x, "residual": residual, "weights": weights}
        cases.append(
            Case(label, "f(x, residual, weights)", names, way.scope, partial(right, expected))
        )
    for label, timing in measure(cases, rounds).items():
        rows[label].timing = timing
    return rows


def right(expected: tuple[Tensor, Tensor], value: tuple[Tensor, Tensor]) -> None:
    """Raise unless both results are those of eager native, up to rounding."""
    for got, want in zip(value, expected, strict=True):
        bound = TOLERANCE[want.dtype]
        torch.testing.assert_close(got, want, rtol=bound, atol=bound)


def count(subject: Subject, way: Contender, program: Program, weights: Any) -> Row:
    """Compile the program when it is to be compiled, and count what it does."""
    code = kept = None
    if way.compiler:
        with fresh_cache():
            code = code_of(program, *subject.activations(), weights)
    if way.compiler == "ours":
        nodes = ir.explain(program).nodes
        if {node.selected for node in nodes} != {way.provider}:
            raise RuntimeError(f"{subject}: {way.label} was lowered to\n{ir.explain(program)}")
        kept = sum(clone.kept for node in nodes for clone in node.clones)
    args = (*subject.activations(), weights)
    program(*subject.activations(), weights)
    return Row(code, kept, allocations_of(lambda: program(*args)))


def add_goals(sheet: Sheet, where: str, subject: Subject, rows: dict[str, Row]) -> None:
    """Add the goals of the design: what is lowered to the kernel is what one writes by hand."""
    lowered, native = rows["lowered vllm_c"], rows["lowered native"]
    hand = rows["by hand" if subject.kind == "chain" else "by hand, compiled"]
    beyond = {
        "lowered vllm_c: clones kept": lowered.kept or 0,
        "lowered vllm_c: allocations beyond those by hand": lowered.memory.count
        - hand.memory.count,
        "lowered vllm_c: calls beyond those by hand": calls(lowered)
        - calls(rows["by hand, compiled"]),
        "lowered native: calls beyond compiled native": calls(native)
        - calls(rows["compiled native"]),
    }
    for label, number in beyond.items():
        sheet.goal(Goal(f"{where}: {label}", number, 0))


def calls(row: Row) -> int:
    """Return how many calls the generated code makes."""
    assert row.code is not None
    return row.code.calls


def print_rows(where: str, rows: dict[str, Row]) -> None:
    """Print the table of one program."""
    print(f"\n{where:<48} {HEAD} {'us':>10} {'± us':>8}")
    for label, row in rows.items():
        print(f"  {label:<46} {row}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    parser = compile_arguments(__doc__, ("chain", "layer"))
    parser.add_argument("--rounds", type=int, default=100, help="slices per row (default: 100)")
    options = parser.parse_args(argv)
    sheet = Sheet("compiled programs: calls, copies, memory, time")
    grid = list(cells(options, FULL, QUICK))
    with torch.inference_mode():
        for cell in tqdm(grid, unit="program", disable=None, leave=False):
            subject = Subject(cell.kind, cell.tokens, cell.dtype)
            where = f"{subject}, threads {cell.threads}"
            if options.only is not None and options.only not in where:
                continue
            torch.set_num_threads(cell.threads)
            rows = run_subject(subject, cell.threads, options.rounds)
            print_rows(where, rows)
            sheet.timings[where] = {k: r.timing for k, r in rows.items() if r.timing}
            sheet.facts[where] = {label: row.to_dict() for label, row in rows.items()}
            add_goals(sheet, where, subject, rows)
    sheet.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
