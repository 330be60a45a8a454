# SPDX-License-Identifier: Apache-2.0
"""Whether fake tensors look alike, asked without adding a guard."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from vllm_ir.dtypes import dtype_name


def same_numbers(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two lists of sizes are known to be equal."""
    return len(a) == len(b) and all(
        statically_known_true(x == y) for x, y in zip(a, b, strict=True)
    )


def same_kind(want: Tensor, got: Tensor) -> bool:
    """Whether dtype, device and shape are known to be equal."""
    alike = got.dtype is want.dtype and got.device == want.device
    return alike and same_numbers(got.shape, want.shape)


def same_strides(want: Tensor, got: Tensor) -> bool:
    """Whether tensors of one shape are known to lie alike; strides that never count don't."""
    if any(statically_known_true(n == 0) for n in want.shape):
        return True
    return all(
        statically_known_true(n == 1) or statically_known_true(a == b)
        for n, a, b in zip(want.shape, want.stride(), got.stride(), strict=True)
    )


def shown(t: Tensor) -> str:
    """Return dtype, shape and device for messages."""
    return f"{dtype_name(t.dtype)}{list(t.shape)} on {t.device}"
