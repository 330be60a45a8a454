# SPDX-License-Identifier: Apache-2.0
"""Are the kernels on this machine's GPU right, do they work in CUDA graphs, and how fast are they?

One command, under eight minutes: says what the machine and the build are, checks every provider
against native and the truth, captures and replays graphs, measures what a call costs the host and
how fast the kernels are beside the device's own copy. Prints one table, and exits with 1 when a
check failed, with 2 when there is no such device or the JSON file can't be written.

    python bench/device_check.py [--json FILE] [--seconds 420] [--expect vllm_c,triton]
    python bench/device_check.py --device cpu --quick    # a rehearsal, in half a minute
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import device_conformance
import device_graphs
import device_overhead
import device_timings
import torch
from contenders import keep_freed_memory
from device_facts import cache_bytes, describe, why_not
from device_findings import Budget, Findings, Progress, why_unwritable
from device_table import table

import vllm_ir as ir
from vllm_ir.log import logger

QUICK_CACHE = 8 * 2**20
# Of what is left when a part begins; timings get the rest.
SHARES = {"conformance": 0.4, "graphs": 0.3}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""

    def names(text: str) -> list[str]:
        return [name for name in text.split(",") if name]

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to FILE")
    parser.add_argument(
        "--seconds", type=float, default=420, help="time for all parts together (default: 420)"
    )
    parser.add_argument(
        "--expect",
        type=names,
        default=["vllm_c"],
        metavar="A,B",
        help="providers that must run every case, in time too (default: vllm_c); "
        "others may refuse some",
    )
    parser.add_argument("--quick", action="store_true", help="few cases and small tensors, for CI")
    parser.add_argument("--no-compiled", action="store_true", help="don't time compiled native")
    return parser.parse_args(argv)


def part(findings: Findings, name: str, run: Callable[[], None]) -> None:
    """Run one part and write what it found; an error in it is a failure, and the next part runs."""
    try:
        run()
    except Exception:  # of a driver, say, on the machine that this is for
        traceback.print_exc()
        error = traceback.format_exc(limit=-1).strip().splitlines()[-1]
        findings.fail(name, "the part stopped", error)
    findings.write()


def run_parts(findings: Findings, options: argparse.Namespace, cache: int, budget: Budget) -> None:
    """Run all parts, each with its share of the time."""
    device, quick = options.device, options.quick
    progress = Progress(budget)

    def conformance() -> None:
        share = budget.part(SHARES["conformance"])
        device_conformance.check_all(findings, device, quick, options.expect, share, progress)

    def graphs() -> None:
        share = budget.part(SHARES["graphs"])
        device_graphs.check_all(findings, device, options.expect, share, progress)

    def overhead() -> None:
        device_overhead.measure_all(findings, device, quick)

    def timings() -> None:
        compiled = not options.no_compiled
        device_timings.measure_all(findings, device, quick, compiled, cache, budget, progress)

    for run in (conformance, graphs, overhead, timings):
        progress(f"part: {run.__name__}")
        part(findings, run.__name__, run)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    options = parse(argv)
    budget = Budget(options.seconds)
    reason = why_not(options.device) or why_unwritable(options.json)
    if reason:
        print(reason, file=sys.stderr)
        return 2
    logger.setLevel("ERROR")  # lists of one provider are meant here
    ir.refresh_log_level()
    torch.manual_seed(0)
    if options.device == "cpu":
        keep_freed_memory()
    cache = cache_bytes(options.device)
    cache = min(cache, QUICK_CACHE) if options.quick else cache
    settings = {**vars(options), "json": str(options.json or ""), "cache_bytes": cache}
    findings = Findings(describe(options.device), settings, json_file=options.json)
    for key, value in findings.machine.items():
        print(f"  {key:18} {value}")
    findings.write()
    run_parts(findings, options, cache, budget)
    findings.finished, findings.seconds = True, budget.spent
    findings.write()
    print("\n".join(table(findings)), flush=True)
    return 0 if findings.verdict["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
