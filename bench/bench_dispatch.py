# SPDX-License-Identifier: Apache-2.0
"""What does one eager call of an op cost, before any work is done?

Rows with a no-op body are the cost of the call alone; `dispatch_bench.cpp` gives the same body to a
hand-written METH_FASTCALL (the floor), to torch.ops, and to impls of IR ops, so that two rows
differ by the route only. All rows are measured against each other in one process, in inference
mode, on one thread.

    python bench/bench_dispatch.py [--only TEXT] [--json FILE]
    python bench/bench_dispatch.py --only "op call, no-op impl" --loops 100000

The second form keeps no clock: it is for instruction counters.
"""

import sys

import dispatch_rows
import dispatch_scopes
import torch
from sheet import Goal, Sheet, bench_arguments
from stopwatch import Case, Timing, measure, repeat

# part, whole, limit
RATIOS = (
    ("op call, no-op impl", "torch.ops, no-op", 0.10),
    ("op call, third impl, no-op, 2 rules reject", "torch.ops, no-op", 0.11),
    ("op call, rms [1,16]", "torch.ops, rms [1,16]", 0.33),
    ("ir.ops.rms_norm as shipped [1,16]", "torch.ops, rms [1,16]", 0.20),
)
FLOOR_NS = 40.0
SCOPE_NS = 500.0


def add_goals(sheet: Sheet, timings: dict[str, Timing]) -> None:
    """Add the goals of the design."""
    for part, whole, limit in RATIOS:
        sheet.ratio(f"{part} ÷ {whole}", timings.get(part), timings.get(whole), limit)
    difference = timings["op call, no-op impl"].minimum - timings["METH_FASTCALL, no-op"].minimum
    sheet.goal(Goal("op call, no-op impl − METH_FASTCALL, no-op", difference, FLOOR_NS, unit=" ns"))
    sheet.goal(
        Goal(
            "priority scope, entered and left",
            timings["priority scope, entered and left"].minimum,
            SCOPE_NS,
            unit=" ns",
        )
    )


def choose(cases: list[Case], only: str | None) -> list[Case]:
    """Return the rows that `--only` selects; an exact label selects that row alone."""
    exact = [case for case in cases if case.label == only]
    return exact or [case for case in cases if only is None or only in case.label]


def main() -> int:
    """Run the bench; returns the exit code."""
    parser = bench_arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="slices per row (default: 400)")
    parser.add_argument(
        "--loops", type=int, help="run the chosen rows this often, without a clock, and stop"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        cases = choose(dispatch_rows.all_cases(), options.only)
        if options.loops is not None:
            for case in cases:
                repeat(case, options.loops)
            return 0
        sheet = Sheet("one eager call")
        timings = measure(cases, rounds=options.rounds)
        sheet.section("inference mode, x float32 [1,16]", timings)
    if options.only is None:
        add_goals(sheet, timings)
        kept = dispatch_scopes.bytes_kept()
        sheet.goal(Goal("bytes kept by a priority scope", kept, 0.5))
    sheet.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
