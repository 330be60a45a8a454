# SPDX-License-Identifier: Apache-2.0
"""What does `import vllm_ir` cost beyond `import torch`, and what does it drag in?

Each sample is a fresh process that imports torch, then reads the clock around `import vllm_ir`. The
processes run one after the other; the minimum is the number, and the modules that took longest come
from one run with `-X importtime`.

    python bench/bench_import.py [--samples 15] [--json FILE]
"""

import json
import re
import statistics
import subprocess
import sys

from sheet import Goal, Sheet, bench_arguments
from tqdm import tqdm

LIMIT_MS = 100.0
FORBIDDEN = ("triton", "torch._inductor")  # heavy, and needed only by those who compile

SAMPLE = """
import json, sys, time
import torch
before = set(sys.modules)
begin = time.perf_counter()
import vllm_ir
seconds = time.perf_counter() - begin
new = sorted(set(sys.modules) - before)
print(json.dumps({"ms": seconds * 1e3, "new": new, "cuda": torch.cuda.is_initialized()}))
"""


def sample() -> dict[str, object]:
    """Import the package in a fresh process."""
    result = subprocess.run([sys.executable, "-c", SAMPLE], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"import vllm_ir failed:\n{result.stderr}")
    facts: dict[str, object] = json.loads(result.stdout)
    return facts


def slowest_modules(count: int = 8) -> list[tuple[float, str]]:
    """Return (own milliseconds, module) of the imports below `vllm_ir`, the slowest first."""
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-c",
        "import torch; import sys; sys.stderr.write('MARK\\n'); import vllm_ir",
    ]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr.partition(
        "MARK\n"
    )[2]
    rows = re.findall(r"import time:\s+(\d+) \|\s+\d+ \| +(\S+)", log)
    return sorted(((int(micros) / 1e3, name) for micros, name in rows), reverse=True)[:count]


def main() -> int:
    """Run the bench; returns the exit code."""
    parser = bench_arguments(__doc__)
    parser.add_argument("--samples", type=int, default=15, help="number of processes (default: 15)")
    options = parser.parse_args()
    sheet = Sheet("import vllm_ir, after import torch")
    facts = [
        sample() for _ in tqdm(range(options.samples), unit="process", disable=None, leave=False)
    ]
    times = [float(str(fact["ms"])) for fact in facts]
    new = list(facts[0]["new"])  # type: ignore[call-overload]
    middle = statistics.median(times)
    text = f"\nminimum {min(times):.1f} ms, median {middle:.1f} ms, {len(new)} new modules"
    sheet.fact("import_ms", times, text)
    slow = slowest_modules()
    sheet.fact("slowest", slow, "\n".join(f"  {ms:8.2f} ms  {name}" for ms, name in slow))
    sheet.goal(Goal("import vllm_ir beyond import torch", min(times), LIMIT_MS, unit=" ms"))
    heavy = [name for name in new if name.split(".")[0] in FORBIDDEN or name.startswith(FORBIDDEN)]
    sheet.goal(Goal("modules of Triton or Inductor that it imports", len(heavy), 0))
    sheet.goal(Goal("CUDA initialised by it", int(any(fact["cuda"] for fact in facts)), 0))
    sheet.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
