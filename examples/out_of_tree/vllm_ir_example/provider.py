# SPDX-License-Identifier: Apache-2.0
"""The provider `example` for the in-tree op rms_norm."""

import torch
from torch import Tensor

import vllm_ir as ir


def whole_rows(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    """Accept calls whose variance covers the whole row. Says nothing about the batch size."""
    return variance_size is None


@ir.ops.rms_norm.register_impl("example", supports_args=whole_rows)
def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """Compute in float32 and round where native rounds: before and after the weight."""
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
    normed = wide * scale
    if weight is None:
        return normed.to(x.dtype)
    return (normed.to(weight.dtype) * weight).to(x.dtype)
