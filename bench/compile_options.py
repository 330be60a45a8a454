# SPDX-License-Identifier: Apache-2.0
"""The command line that the benches of the compiler share: which cells of a grid to run."""

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from sheet import bench_arguments

Grid = Mapping[str, Sequence[Any]]


class Cell(NamedTuple):
    """One program at one size."""

    threads: int
    dtype: torch.dtype
    kind: str
    tokens: int


def compile_arguments(description: str | None, kinds: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the options of a grid.

    Args:
        description: as for `bench_arguments`.
        kinds: programs that the bench knows; all of them by default.
    """

    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(part) for part in words(text)]

    parser = bench_arguments(description)
    parser.add_argument("--quick", action="store_true", help="few cells: bfloat16, one thread")
    parser.add_argument(
        "--kinds", type=words, default=list(kinds), metavar="K,K", help=f"of {', '.join(kinds)}"
    )
    parser.add_argument("--tokens", type=numbers, metavar="N,N", help="numbers of tokens")
    parser.add_argument("--dtypes", type=words, metavar="T,T", help="dtypes")
    parser.add_argument("--threads", type=numbers, metavar="N,N", help="numbers of threads")
    return parser


def cells(options: argparse.Namespace, full: Grid, quick: Grid) -> Iterator[Cell]:
    """Yield what was asked for.

    Args:
        options: as parsed by `compile_arguments`.
        full: values of `threads`, `dtypes` and `tokens` that were not given.
        quick: such values for `--quick`.
    """
    defaults = quick if options.quick else full
    names = ("threads", "dtypes", "tokens")
    threads, dtypes, tokens = (getattr(options, name) or defaults[name] for name in names)
    for n, dtype, kind, count in itertools.product(threads, dtypes, options.kinds, tokens):
        yield Cell(n, getattr(torch, dtype), kind, count)
