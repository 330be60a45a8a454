# SPDX-License-Identifier: Apache-2.0
"""Soundness of compiling, by random programs: a command line over `program_verdict`.

    python tests/python/compile_programs.py --seed 0 --count 10000
    python tests/python/compile_programs.py --depth inductor --count 500
    python tests/python/compile_programs.py --invalid --count 1000
    python tests/python/compile_programs.py --seed 100000 --forever

A program that fails is cut down to what is needed to fail, and printed as a script that runs.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import logging
import pprint
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

import torch
from program_drawing import draw_program, spoil
from program_text import InvalidProgramError, Program
from program_verdict import refusal, torch_is_wrong, verdict

Wrong = Callable[[Program], str]


def check(program: Program) -> str:
    """Return what is wrong with a program, "" for nothing or when torch gets it wrong itself."""
    try:
        wrong = judged(program)
        return wrong if wrong and not torch_is_wrong(program, wrong) else ""
    except InvalidProgramError:
        return ""


def judged(program: Program) -> str:
    """Return what is wrong with a program, "" for nothing.

    Where `as_strided` looks into a computed value, code has the last word: eager operators like
    `slice_scatter` may put a value at another offset of its memory than their fakes say.
    """
    wrong = verdict(program)
    if wrong and program.route != "inductor" and "as_strided(v" in program.source():
        return verdict(_with(program, route="inductor"))
    return wrong


def reproduce(**fields: object) -> str:
    """Return what is wrong with the program of these fields: for scripts that `script` makes."""
    program = Program(**fields)  # type: ignore[arg-type]
    print(program.source())
    return check(program)


def script(program: Program, wrong: str) -> str:
    """Return a failing program as a script to run in tests/python."""
    fields = asdict(program)
    text = ",\n".join(f"    {name}={pprint.pformat(value)}" for name, value in fields.items())
    about = "\n".join(f"# {line}" for line in f"{wrong}\n{program.source()}".splitlines())
    return f"{about}\nfrom compile_programs import reproduce\n\nprint(reproduce(\n{text},\n))\n"


# ---- cutting down --------------------------------------------------------------------------------


def shortest(program: Program, wrong: Wrong = check) -> Program:
    """Return a smaller program that is wrong in the same way."""
    kind = _kind(wrong(program))
    best = program
    again = True
    while again:
        again = False
        for smaller in _smaller(best):
            if _kind(wrong(smaller)) == kind:
                best, again = smaller, True
                break
    return best


def _kind(wrong: str) -> str:
    words = wrong.rpartition(" rows: ")[2].split()
    return words[0] if words else ""


def _smaller(program: Program) -> Iterator[Program]:
    """Yield the program with one thing less, the large things first."""
    for lists in (("inputs", 1), ("rows", 0), ("lines", 0), ("returns", 0)):
        name, first = lists
        values = list(getattr(program, name))
        for i in reversed(range(first, len(values))):
            rest = values[:i] + values[i + 1 :]
            if rest:
                yield _with(program, **{name: tuple(rest) if name == "rows" else rest})
    texts = [text.splitlines() for text in program.inputs]
    for target in dict.fromkeys(line.split(" = ")[0] for text in texts for line in text):
        less = [[line for line in text if line.split(" = ")[0] != target] for text in texts]
        yield _with(program, inputs=["\n".join(text) for text in less])
    used = {n: p for n, p in program.priorities.items() if n in program.source()}
    if used != program.priorities:
        yield _with(program, priorities=used)
    for name, value in program.options.items():
        if value:
            yield _with(program, options={**program.options, name: False})


def _with(program: Program, **changes: object) -> Program:
    smaller = copy.deepcopy(program)
    for name, value in changes.items():
        setattr(smaller, name, value)
    return smaller


# ---- many ----------------------------------------------------------------------------------------


def failures(
    seeds: Iterable[int], depth: str, counts: Counter[str], rows: int = 6
) -> Iterator[tuple[int, str]]:
    """Run programs by seed and yield those that are wrong, with what is wrong."""
    for seed in seeds:
        program = draw_program(seed, depth, rows)
        counts["programs"] += 1
        counts[program.route] += 1
        try:
            wrong = judged(program)
        except InvalidProgramError:
            counts["invalid"] += 1
            continue
        if wrong and torch_is_wrong(program, wrong):
            counts["wrong in torch itself"] += 1
        elif wrong:
            counts["failed"] += 1
            yield seed, wrong


def unrefused(seeds: Iterable[int], counts: Counter[str]) -> Iterator[tuple[int, str]]:
    """Spoil programs by seed and yield those that are not refused, with what happened."""
    for seed in seeds:
        program = draw_program(seed)
        if "graph_break()" in program.lines or not spoil(program):
            continue
        counts["programs"] += 1
        counts[program.route] += 1
        wrong = refusal(program)
        if wrong:
            counts["failed"] += 1
            yield seed, wrong


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the result is the number of failures, at most 100."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--depth", choices=("passes", "inductor"), default="passes")
    parser.add_argument("--rows", type=int, default=6, help="of most inputs (default: 6)")
    parser.add_argument("--invalid", action="store_true", help="programs that must be refused")
    parser.add_argument("--forever", action="store_true")
    chosen = parser.parse_args(arguments)
    logging.getLogger("vllm_ir").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    start, counts = time.monotonic(), Counter[str]()
    numbers = itertools.count(chosen.seed)
    seeds = numbers if chosen.forever else itertools.islice(numbers, chosen.count)
    seeds = _telling(seeds, counts, start)
    depth, rows = chosen.depth, chosen.rows
    found = unrefused(seeds, counts) if chosen.invalid else failures(seeds, depth, counts, rows)
    for seed, wrong in found:
        print(f"==== seed {seed}: {wrong}", flush=True)
        if not chosen.invalid:
            small = shortest(draw_program(seed, depth, rows))
            print(script(small, check(small)), flush=True)
    _tell(counts, start)
    return min(counts["failed"], 100)


def _telling(seeds: Iterable[int], counts: Counter[str], start: float) -> Iterator[int]:
    told = start
    for seed in seeds:
        yield seed
        if time.monotonic() > told + 60:
            told = time.monotonic()
            _tell(counts, start)


def _tell(counts: Counter[str], start: float) -> None:
    rate = counts["programs"] / (time.monotonic() - start)
    numbers = ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
    print(f"{numbers}; {rate:.1f} programs/s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
