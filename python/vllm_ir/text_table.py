# SPDX-License-Identifier: Apache-2.0
"""Text tables for the command line."""

from collections.abc import Iterable, Sequence


def render(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table with left-aligned columns, the header first.

    Example:
        >>> from vllm_ir.text_table import render
        >>> render(("provider", "supported"), [("native", "yes")])
        ['provider  supported', 'native    yes']
    """
    grid = [list(columns), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in grid]
