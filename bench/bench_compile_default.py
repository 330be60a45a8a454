# SPDX-License-Identifier: Apache-2.0
"""Which implementation should norms become while compiling on this machine: native or vllm_c?

Lowered to native, the compiler fuses a norm with what is around it; lowered to vllm_c, a norm is
one call of a kernel, which works in place. Both are compiled and timed against each other for
a decoder layer and for the model of the demo (SmolLM2's shape, random weights), with few and many
tokens, by dtype and number of threads. Eager vllm_c stands beside them.

    python bench/bench_compile_default.py [--quick] [--json FILE]
    python bench/bench_compile_default.py --kinds model --layers 30 --tokens 1 --dtypes float32
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from compile_contenders import Contender, contenders
from compile_options import Cell, cells, compile_arguments
from compile_subjects import Subject
from sheet import Sheet
from stopwatch import Case, Timing, measure
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from llama.model import KVCache, Llama, LlamaConfig

WAYS = ("eager vllm_c", "lowered native", "lowered vllm_c")
FULL = {"tokens": (1, 16, 512), "dtypes": ("bfloat16", "float32"), "threads": (1, 2)}
QUICK = {"tokens": (1, 512), "dtypes": ("bfloat16",), "threads": (1,)}
CAPACITY = 128  # positions of the cache, for steps of one token


def smollm2(layers: int) -> LlamaConfig:
    """Return the shape of SmolLM2-135M, which has 30 layers."""
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        layers=layers,
        heads=9,
        kv_heads=3,
        head_dim=64,
        max_positions=2048,
        rope_base=100000.0,
        epsilon=1e-5,
    )


def layer_case(way: Contender, cell: Cell) -> Case:
    """Return the decoder layer as one statement."""
    subject = Subject("layer", cell.tokens, cell.dtype)
    x, residual = subject.activations()
    names = {"x": x, "residual": residual, "weights": subject.weights()}
    program = way.build(subject.program(way.norm))
    return Case(way.label, "f(x, residual, weights)", {"f": program} | names, way.scope)


def model_case(way: Contender, cell: Cell, layers: int) -> Case:
    """Return one step of the model as one statement; a single token has a cache before it."""
    torch.manual_seed(0)
    config = smollm2(layers)
    model = Llama(config).to(cell.dtype).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.02)
    names: dict[str, Any] = {
        "tokens": torch.arange(cell.tokens)[None],
        "positions": None,
        "cache": None,
    }
    if cell.tokens == 1:
        cache = KVCache(config, CAPACITY, cell.dtype)
        cache.advance(CAPACITY // 2)
        names |= {"positions": cache.advance(1), "cache": cache}
    program: Callable[..., Any] = way.build(model)
    return Case(way.label, "f(tokens, positions, cache)", {"f": program} | names, way.scope)


def print_cell(where: str, timings: dict[str, Timing]) -> None:
    """Print the times of one cell, and which of the lowered ones is faster."""
    micros = "".join(f"{timings[label].minimum / 1e3:16.1f}" for label in WAYS)
    ratio = timings["lowered native"].minimum / timings["lowered vllm_c"].minimum
    wobble = max(t.wobble / t.minimum for t in timings.values())
    print(f"{where:<40}{micros} {ratio:16.3f} {wobble:7.3f}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    parser = compile_arguments(__doc__, ("layer", "model"))
    parser.add_argument("--layers", type=int, default=6, help="of the model (default: 6)")
    parser.add_argument("--rounds", type=int, default=60, help="slices per row (default: 60)")
    options = parser.parse_args(argv)
    sheet = Sheet("while compiling: native or vllm_c?")
    columns = "".join(f"{label:>16}" for label in WAYS)
    print(f"\n{'us':<40}{columns} {'native ÷ vllm_c':>16} {'±':>7}")
    grid = list(cells(options, FULL, QUICK))
    with torch.inference_mode():
        for cell in tqdm(grid, unit="cell", disable=None, leave=False):
            dtype = str(cell.dtype).removeprefix("torch.")
            where = f"{cell.kind}, {dtype}, {cell.tokens} tokens, threads {cell.threads}"
            if options.only is not None and options.only not in where:
                continue
            sheet.timings[where] = run_cell(cell, options.layers, options.rounds)
            print_cell(where, sheet.timings[where])
    sheet.finish(options.json)
    return 0


def run_cell(cell: Cell, layers: int, rounds: int) -> dict[str, Timing]:
    """Compile what is to be compiled, and time the ways against each other."""
    torch.set_num_threads(cell.threads)
    torch._dynamo.reset()
    ways = contenders(cell.threads)
    cases = [
        layer_case(ways[label], cell)
        if cell.kind == "layer"
        else model_case(ways[label], cell, layers)
        for label in WAYS
    ]
    return measure(cases, rounds)


if __name__ == "__main__":
    sys.exit(main())
