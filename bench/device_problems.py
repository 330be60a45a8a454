# SPDX-License-Identifier: Apache-2.0
"""What device_timings.py measures: problems, the bytes behind them, and what counts as fast."""

import torch
from contenders import Problem
from sheet import Goal

MAIN = ("rms_norm", "fused_add_rms_norm", "silu_and_mul")
# rows, width: decode and prefill mixed, so that both are there should time run out
GRID = (
    *((1, 4096), (4096, 4096), (64, 4096), (8192, 8192), (256, 8192), (16, 4096), (256, 4096)),
    *((1, 8192), (16, 8192), (64, 8192), (16384, 4096)),
)
QUICK = ((16, 4096), (256, 512))
HEADS = Problem("rms_norm", 100_000, 128, torch.bfloat16)  # a norm of each query and key
GELU = Problem("gelu_and_mul", 8192, 8192, torch.bfloat16)
BEYOND_CACHE = 1.5  # a walk in a circle over more than the cache finds nothing of the last round
GOAL, GOAL_BYTES, GOAL_WIDTH = 0.90, 32 * 2**20, 4096  # of a copy, from this size and width on

NOISY = 0.10  # a time with more noise than this part of it compares with nothing


def problems(quick: bool) -> list[Problem]:
    """Return what is measured, the most telling first."""
    if quick:
        ops = (*MAIN, GELU.op)
        return [Problem(op, *shape, torch.bfloat16) for shape in QUICK for op in ops]
    grid = [Problem(op, *shape, torch.bfloat16) for shape in GRID for op in MAIN]
    return [*grid[:6], HEADS, *grid[6:12], GELU, *grid[12:]]


def activation_bytes(problem: Problem) -> int:
    """Return the bytes of the activations of one call: what it reads, without the weight."""
    matrices = 1 if problem.op == "rms_norm" else 2
    return matrices * problem.rows * problem.width * problem.dtype.itemsize


def set_count(read_bytes: int, cache: int) -> int:
    """Return how many sets of `read_bytes` a walk needs so that none is still in the cache."""
    return max(2, int(BEYOND_CACHE * cache / max(1, read_bytes)) + 1)


def goals_of(problem: Problem, contender: str, of_copy: float) -> list[Goal]:
    """Return the goal of the design for a provider on a GPU; none but for a large norm.

    `of_copy` is NaN where the times were too noisy to tell it.
    """
    large = problem.bytes_moved >= GOAL_BYTES and problem.width >= GOAL_WIDTH
    if not large or problem.op not in MAIN[:2]:
        return []
    label = f"{problem}: {contender} ÷ copy"
    return [Goal(label, of_copy, GOAL, at_least=True, unknown="too noisy to tell")]
