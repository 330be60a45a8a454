# SPDX-License-Identifier: Apache-2.0
"""An op of our own, `example_scale`, with a provider for it."""

import torch
from torch import Tensor

import vllm_ir as ir


def example_scale(x: Tensor, factor: float) -> Tensor:
    """Multiply in float32, round once to x's dtype."""
    return (x.to(torch.float32) * factor).to(x.dtype)


def scale_in_place_of_a_copy(x: Tensor, factor: float) -> Tensor:
    """Multiply into one new float32 tensor."""
    return x.to(torch.float32, copy=True).mul_(factor).to(x.dtype)


def register() -> None:
    """Declare the op and its provider; `vllm_ir` calls this when it is imported."""
    op = ir.register_op(example_scale)
    op.register_impl("example")(scale_in_place_of_a_copy)
