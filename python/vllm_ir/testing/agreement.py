# SPDX-License-Identifier: Apache-2.0
"""How far two tensors are from each other, in units of the last place."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_ir.dtypes import dtype_name

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Agreement:
    """How far one result is from native's.

    Attributes:
        dtype: Of the result.
        numel: How many values were compared.
        differing: How many of them differ; two NaN are the same, and so are the two zeros.
        largest_ulp: The largest distance between two values in units of the last place: how many
            steps lead from one to the other through the values of the dtype.
    """

    dtype: torch.dtype
    numel: int
    differing: int
    largest_ulp: int

    @property
    def share(self) -> float:
        """The share of values that differ, 0 to 1."""
        return self.differing / self.numel if self.numel else 0.0

    def __str__(self) -> str:
        return (
            f"{dtype_name(self.dtype)}: {self.differing} of {self.numel} values differ "
            f"({self.share:.3%}), the largest distance is {self.largest_ulp} ULP"
        )


def measure(got: Tensor, want: Tensor) -> Agreement:
    """Compare two tensors of one dtype and shape, value by value.

    Example:
        >>> import torch
        >>> from vllm_ir.testing import measure
        >>> measure(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002]))
        Agreement(dtype=torch.float32, numel=2, differing=1, largest_ulp=1)
    """
    steps = _steps_between(got.detach().contiguous(), want.detach().contiguous())
    largest = int(steps.max()) if steps.numel() else 0
    return Agreement(got.dtype, got.numel(), int((steps != 0).sum()), largest)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of one dtype and shape hold the same bits, NaN included."""
    as_integers = _INTEGERS.get(a.element_size())
    a, b = a.detach().contiguous(), b.detach().contiguous()
    return torch.equal(a, b) if as_integers is None else _equal_as(as_integers, a, b)


def _equal_as(integers: torch.dtype, a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(integers), b.view(integers))


def _steps_between(got: Tensor, want: Tensor) -> Tensor:
    a, b = _ordered(got), _ordered(want)
    # The difference of two int64 may not fit; their halves' does, and is exact enough there.
    wide = (a.bitwise_right_shift(1) - b.bitwise_right_shift(1)).abs() > 2**61
    steps = torch.where(wide, 2**62, (a - b).abs())
    if got.is_floating_point():
        both_nan = _is_nan(got) & _is_nan(want)
        steps = steps.masked_fill(both_nan, 0)
    return steps


def _ordered(t: Tensor) -> Tensor:
    """Number the values of a dtype so that neighbours differ by one and both zeros are 0."""
    if not t.is_floating_point():
        return t.to(torch.int64)
    bits = t.view(_INTEGERS[t.element_size()]).to(torch.int64)
    magnitude = bits & (2 ** (8 * t.element_size() - 1) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def _is_nan(t: Tensor) -> Tensor:
    return (t.to(torch.float32) if t.element_size() == 1 else t).isnan()
