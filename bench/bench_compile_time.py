# SPDX-License-Identifier: Apache-2.0
"""What does compiling by vllm_ir cost beyond plain torch.compile of the native math?

Each sample compiles one program with cold caches (an empty cache folder, Dynamo forgotten) by one
first call. The contenders take turns, and the minimum counts. The C++ compiler takes most of the
time, for both alike; so the same is measured again with its products at hand, which shows what the
passes cost. CPU seconds, those of child processes included, stand beside wall time:
they hold on a busy machine.

    python bench/bench_compile_time.py [--quick] [--json FILE]
"""

import cProfile
import pstats
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from compile_contenders import Contender, contenders
from compile_subjects import Subject
from sheet import Goal, Sheet, bench_arguments
from torch._inductor.utils import fresh_cache
from tqdm import tqdm

import vllm_ir as ir

Around = Callable[[], AbstractContextManager[Any]]

LIMIT = 1.10
WAYS = ("compiled native", "lowered native", "by hand, compiled", "lowered vllm_c")
PACKAGE = str(Path(ir.__file__).parent)


@dataclass
class Times:
    """Seconds of all samples of one contender: wall time and CPU time."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def compile_once(subject: Subject, way: Contender, weights: Any) -> None:
    """Compile by a first call; nothing of Dynamo's is there from before."""
    torch._dynamo.reset()
    program = way.build(subject.program(way.norm))
    with way.scope():
        program(*subject.activations(), weights)


def sample(times: Times, subject: Subject, way: Contender, weights: Any) -> None:
    """Take one sample."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    compile_once(subject, way, weights)
    times.wall.append(time.perf_counter() - wall)
    times.cpu.append(cpu_seconds() - cpu)


@contextmanager
def without_cached_graphs() -> Iterator[None]:
    """Let Inductor make its code anew, and find the C++ compiler's products where they are."""
    with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        yield


# Of each measurement: what is around the whole, and around each sample.
STATES: dict[str, tuple[Around, Around]] = {
    "cold": (nullcontext, fresh_cache),
    "kernels at hand": (fresh_cache, without_cached_graphs),
}


def measure(
    subject: Subject, ways: dict[str, Contender], repeats: int, state: str
) -> dict[str, Times]:
    """Compile by each contender in turn, after one round that is not measured."""
    weights, times = subject.weights(), {label: Times() for label in ways}
    labels, (around_all, around_each) = list(ways), STATES[state]
    with around_all():
        for round_ in tqdm(range(-1, repeats), unit="round", disable=None, leave=False):
            for offset in range(len(labels)):
                label = labels[(round_ + offset) % len(labels)]
                with around_each():
                    sample(times[label] if round_ >= 0 else Times(), subject, ways[label], weights)
    return times


def shares(subject: Subject, way: Contender, count: int = 8) -> list[tuple[float, int, str]]:
    """Return (seconds with what they call, calls, function) of the package's slowest functions.

    Under a profiler everything is slower; the shares hold.
    """
    weights, profiler = subject.weights(), cProfile.Profile()
    with fresh_cache():
        profiler.enable()
        compile_once(subject, way, weights)
        profiler.disable()
    rows = [
        (seconds, calls, f"{Path(file).relative_to(PACKAGE)}:{name}")
        for (file, _, name), (calls, _, _, seconds, _) in pstats.Stats(profiler).stats.items()
        if file.startswith(PACKAGE)
    ]
    return sorted(rows, reverse=True)[:count]


def report(sheet: Sheet, where: str, times: dict[str, Times]) -> None:
    """Print the table of one measurement."""
    print(f"\n{where:<48} {'wall s':>8} {'± s':>7} {'CPU s':>8} {'÷ plain':>8} {'CPU ÷':>8}")
    plain = times["compiled native"]
    for label, row in times.items():
        wall, cpu = min(row.wall), min(row.cpu)
        wobble = abs(min(row.wall[::2]) - min(row.wall[1::2], default=wall))
        ratios = f"{wall / min(plain.wall):8.3f} {cpu / min(plain.cpu):8.3f}"
        print(f"  {label:<46} {wall:8.2f} {wobble:7.2f} {cpu:8.2f} {ratios}")
    sheet.facts[where] = {label: vars(row) for label, row in times.items()}


def main() -> int:
    """Run the bench; returns the exit code."""
    parser = bench_arguments(__doc__)
    parser.add_argument("--repeats", type=int, help="samples per contender (default: 5)")
    parser.add_argument("--quick", action="store_true", help="one program, 3 samples")
    options = parser.parse_args()
    repeats = options.repeats or (3 if options.quick else 5)
    sheet = Sheet("compile time, vllm_ir against plain torch.compile of the native math")
    torch.set_num_threads(1)
    ways = {label: way for label, way in contenders(1).items() if label in WAYS}
    ours = ways["lowered native"]
    with torch.inference_mode():
        for kind in ("layer",) if options.quick else ("layer", "stack"):
            subject = Subject(kind, 4, torch.bfloat16)
            for state in STATES:
                where = f"{subject}, {state}"
                if options.only is not None and options.only not in where:
                    continue
                times = measure(subject, ways, repeats, state)
                report(sheet, where, times)
                ratio = min(times["lowered native"].wall) / min(times["compiled native"].wall)
                if state == "cold":
                    sheet.goal(Goal(f"{where}: lowered ÷ compiled native", ratio, LIMIT))
            print("  where our time goes, lowered native (seconds under a profiler, calls)")
            for seconds, calls, name in shares(subject, ours):
                print(f"    {seconds:8.3f} {calls:6}  {name}")
    sheet.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
