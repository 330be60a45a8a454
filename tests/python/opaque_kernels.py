# SPDX-License-Identifier: Apache-2.0
"""Torch operators that stand for kernels: a compiler sees what they write, and no further.

Most in-place implementations call such an operator. What is written in torch's own in-place
operators becomes new values in a graph.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("vllm_ir_tests", "FRAGMENT")  # holds what it has defined


def kernel(name: str, schema: str, body: Callable[..., None]) -> Any:
    """Define a torch operator over a function that writes its arguments and returns nothing.

    Args:
        name: Of the operator.
        schema: Its parameters, "(Tensor(a!) x, float factor)" say.
        body: Runs on real tensors.
    """
    _library.define(f"{name}{schema} -> ()")
    _library.impl(name, body, "CPU")
    _library.impl(name, lambda *args: None, "Meta")
    return getattr(torch.ops.vllm_ir_tests, name).default


def _scale(x: Tensor, factor: float) -> None:
    x.mul_(factor)


def _butterfly(x: Tensor, other: Tensor, factor: float) -> None:
    difference = x - factor * other
    x.add_(other, alpha=factor)
    other.copy_(difference)


def _ramp(x: Tensor, factor: float) -> None:
    x.narrow(-1, 0, max(1, x.shape[-1] // 2)).mul_(factor)


def _mix(x: Tensor, y: Tensor, factor: float) -> None:
    x.mul_(factor).add_(y)


def _mix_rows(x: Tensor, y: Tensor, factor: float) -> None:
    """Write row by row, in whatever layout: elements that are there twice come out wrong."""
    for i in range(x.shape[0]):
        row = x.select(0, i)
        row.copy_(row * factor + y.select(0, i))


def _mix_into(out: Tensor, x: Tensor, y: Tensor, factor: float) -> None:
    """Use the memory of x as scratch: what is left in it is garbage."""
    out.copy_(x * factor + y)
    x.fill_(-77.0)


def _crossed(x: Tensor, other: Tensor, factor: float) -> None:
    """Each result lies in the other argument's memory."""
    other.mul_(factor)
    x.add_(other, alpha=1.0 / factor)


scale_ = kernel("scale_", "(Tensor(a!) x, float factor)", _scale)
butterfly_ = kernel("butterfly_", "(Tensor(a!) x, Tensor(b!) other, float factor)", _butterfly)
ramp_ = kernel("ramp_", "(Tensor(a!) x, float factor)", _ramp)
mix_ = kernel("mix_", "(Tensor(a!) x, Tensor y, float factor)", _mix)
mix_rows_ = kernel("mix_rows_", "(Tensor(a!) x, Tensor y, float factor)", _mix_rows)
mix_into_ = kernel("mix_into_", "(Tensor(a!) out, Tensor(b!) x, Tensor y, float factor)", _mix_into)
crossed_ = kernel("crossed_", "(Tensor(a!) x, Tensor(b!) other, float factor)", _crossed)
