# SPDX-License-Identifier: Apache-2.0
"""Random straight-line programs of sums and norms: fused, they give the same bits."""

import random

import pytest
import torch
from fusion_graphs import Fused

import vllm_ir as ir
from vllm_ir.compile import CompileConfig

PROGRAMS, STATEMENTS, ROWS, HIDDEN = 60, 12, 4, 8
CONFIG = CompileConfig(fusions=("add_rms_norm",))


def draw(seed: int):
    """Return a program: what each statement does and to which values, and what is returned."""
    rng = random.Random(seed)
    kinds = [*["add"] * 5, *["norm"] * 5, "relu", "scaled", "split", "write"]
    statements = []
    for n in range(2, STATEMENTS):
        a, b = rng.choice([rng.randrange(n), n - 1, n - 1]), rng.randrange(n)
        statements.append((rng.choice(kinds), a, b, rng.random()))
    return statements, rng.sample(range(STATEMENTS), 4)


def run(program, x, r, w):
    """Run a program on two values and a weight."""
    statements, returned = program
    values = [x * 1, r * 1]
    for kind, a, b, chance in statements:
        one, other = values[a], values[b]
        if kind == "add":
            made = one + (other if chance < 0.9 else other[0])
        elif kind == "norm":
            weight = (None, w, other[0])[int(chance * 3)]
            made = ir.ops.rms_norm(one, weight, chance, None if chance < 0.7 else 3)
        elif kind == "scaled":
            made = torch.add(one, other, alpha=1 + int(chance * 2))
        elif kind == "split":
            left, right = one.split(HIDDEN // 2, -1)
            made = torch.cat([right, left], -1)
        elif kind == "write" and chance < 0.3:
            made = one.add_(1)
        else:
            made = torch.relu(one)
        values.append(made)
    return tuple(values[i] for i in returned)


@pytest.fixture(autouse=True)
def native_alone():
    """Providers add up in an order of their own; the fused op's needn't be that of the norm's."""
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        op.set_default(["native"])


@pytest.fixture(scope="module")
def fused_calls():
    """Count them: programs that are never fused would prove nothing."""
    found: list[int] = []
    yield found
    assert len(found) < PROGRAMS or sum(found) > PROGRAMS / 2


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_random_program_keeps_its_values(seed, fused_calls):
    program = draw(seed)
    torch.manual_seed(seed)
    args = torch.randn(ROWS, HIDDEN), torch.randn(ROWS, HIDDEN), torch.randn(HIDDEN)
    fused = Fused(lambda x, r, w: run(program, x, r, w), *args, config=CONFIG)
    fused_calls.append(fused.ops.count("fused_add_rms_norm"))
    for got, want in zip(fused(*args), run(program, *args), strict=True):
        assert torch.equal(got, want)
