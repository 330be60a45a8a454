# SPDX-License-Identifier: Apache-2.0
"""What vllm_c's rules accept passes the checks of its torch ops, and who checks says the same.

Eager calls run entries that leave the checks to the rule. So a rule that accepts what the checked
torch op refuses would let a kernel read memory that isn't the tensor's.
"""

import random
import re

import pytest
import torch
from torch import Tensor

import vllm_ir as ir

C = torch.ops.vllm_ir_C
EPSILON = 1e-5
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CHECKED = {"rms_norm": C.rms_norm, "fused_add_rms_norm": C.fused_add_rms_norm_}


class Arguments:
    """Random arguments around what the rules say: most fit, many don't quite."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.dtype = self.pick(*DTYPES, torch.float64, weights=(4, 4, 4, 1))
        self.buffer = torch.randn(
            20_000, generator=torch.Generator().manual_seed(seed), dtype=torch.float32
        ).to(self.dtype)

    def pick(self, *choices, weights=None):
        return self.random.choices(choices, weights)[0]

    def for_op(self, name: str) -> tuple:
        x = self.view(self.shape())
        weight, size = self.weight(x), self.variance_size(x)
        if name == "rms_norm":
            return x, weight, EPSILON, size
        return x, self.residual(x), weight, EPSILON, size

    def shape(self) -> tuple[int, ...]:
        dims = self.pick(0, 1, 2, 3, 4, weights=(1, 4, 10, 10, 5))
        return tuple(self.pick(0, 1, 2, 3, 7, weights=(1, 4, 5, 5, 5)) for _ in range(dims))

    def view(self, shape: tuple[int, ...]) -> Tensor:
        """Lay a shape out in the buffer: dense, with gaps, broadcast or with dims swapped."""
        strides, stride = [], self.pick(1, 2, weights=(19, 1))
        for size in reversed(shape):
            strides.append(self.pick(stride, 0, 1, weights=(30, 1, 1)))
            stride = max(stride * max(size, 1) + self.pick(0, 1, 5, weights=(6, 1, 2)), 1)
        if self.pick(False, True, weights=(15, 1)):
            self.random.shuffle(strides)
        return self.buffer.as_strided(shape, strides[::-1], self.random.randrange(100))

    def residual(self, x: Tensor) -> Tensor:
        kind = self.pick("beside", "dense", "view", "other", "x", weights=(5, 5, 5, 1, 1))
        if kind == "beside":  # in the same memory: columns of one matrix, or an overlap
            offset = x.storage_offset() + self.random.randrange(40)
            return self.buffer.as_strided(x.shape, x.stride(), offset)
        if kind == "dense":
            dtype = self.pick(x.dtype, torch.float32, weights=(9, 1))
            return torch.randn(x.shape).to(dtype)
        if kind == "view":
            return self.view(tuple(x.shape))
        return x if kind == "x" else self.view(self.shape())

    def weight(self, x: Tensor) -> Tensor | None:
        width = x.shape[-1] if x.dim() else 1
        width += self.pick(0, 1, -width, weights=(20, 1, 1))
        dtype = self.pick(x.dtype, torch.float32, torch.float16, weights=(6, 3, 1))
        weight = torch.randn(2, 2 * width).to(dtype)
        return self.pick(
            None, weight[0, :width], weight[0, ::2], weight[:, :width], weights=(4, 8, 2, 1)
        )

    def variance_size(self, x: Tensor) -> int | None:
        width = x.shape[-1] if x.dim() else 1
        inside = self.random.randint(1, max(width, 1))
        return self.pick(None, inside, 0, width + 1, -1, weights=(12, 8, 1, 1, 1))


def written_by(name: str, args: tuple) -> tuple[Tensor, ...]:
    """Call the checked torch op; return its results."""
    got = CHECKED[name](*args)
    return args[:2] if got is None else (got,)


@pytest.mark.parametrize("name", CHECKED)
def test_what_the_rule_accepts_passes_the_checks(name: str) -> None:
    op, accepted = ir.IrOp.registry[name], 0
    for seed in range(1500):
        args = Arguments(seed).for_op(name)
        if not op.impls["vllm_c"].supports_args(*args):
            continue
        accepted += 1
        with op.set_priority(["vllm_c", "native"]):
            assert op.dispatch(*args).provider == "vllm_c", seed
            want = op(*args)  # through the entry, which checks nothing
        want = want if isinstance(want, tuple) else (want,)
        assert all(map(torch.equal, written_by(name, args), want)), seed
    assert 300 <= accepted <= 1200  # some of each kind


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sliding_window_is_normalised(dtype: torch.dtype) -> None:
    op, x = ir.ops.rms_norm, torch.arange(7.0).to(dtype).unfold(0, 5, 1)
    want = op.impls["native"].impl_fn(x, None, EPSILON)
    for got in (op(x, None, EPSILON), C.rms_norm(x, None, EPSILON)):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)


X, W = torch.randn(4, 32), torch.randn(32)
SCALAR = torch.tensor(1.0)


@pytest.mark.parametrize(
    ("x", "weight", "size", "text"),
    [
        (SCALAR, None, None, "x must have at least one dimension"),
        (SCALAR, W, 1, "x must have at least one dimension"),
        (X, W[None], None, "weight must have shape (hidden_size,) = (32,), got (1, 32)."),
        (X, W[:31], None, "weight must have shape (hidden_size,) = (32,), got (31,)."),
        (X, W[:1], 0, "weight must have shape (hidden_size,) = (32,), got (1,)."),
        (X, SCALAR, None, "weight must have shape (hidden_size,) = (32,), got ()."),
        (X[:, :0], W, None, "weight must have shape (hidden_size,) = (0,), got (32,)."),
        (X, W, 0, "variance_size must be between 1 and hidden_size = 32, got 0."),
        (X, None, -1, "variance_size must be between 1 and hidden_size = 32, got -1."),
        (X, W, 33, "variance_size must be between 1 and hidden_size = 32, got 33."),
        (X[:, :0], None, 1, "variance_size must be between 1 and hidden_size = 0, got 1."),
    ],
)
def test_native_and_kernel_say_the_same(
    x: Tensor, weight: Tensor | None, size: int | None, text: str
) -> None:
    says_the_same("rms_norm", (x, weight, EPSILON, size), text)
    says_the_same("fused_add_rms_norm", (x, torch.ones(x.shape), weight, EPSILON, size), text)


@pytest.mark.parametrize("shape", [(2, 32), (4, 31), (32,), (1, 4, 32), ()])
def test_native_and_kernel_say_the_same_of_the_residual(shape: tuple[int, ...]) -> None:
    text = f"x_residual must have x's shape (4, 32), got {shape}."
    says_the_same("fused_add_rms_norm", (X, torch.ones(shape), W, EPSILON), text)


def says_the_same(name: str, args: tuple, text: str) -> None:
    said = []
    for function in (ir.IrOp.registry[name].impls["native"].impl_fn, CHECKED[name]):
        with pytest.raises(ValueError, match=f"^vllm_ir.{name}: " + re.escape(text)) as error:
            function(*args)
        said.append(str(error.value))
    assert said[0] == said[1]
