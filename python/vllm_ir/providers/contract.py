# SPDX-License-Identifier: Apache-2.0
"""What the ops' kernels agree on, whoever writes them: parts of the providers' rules."""

import torch

from vllm_ir import rules

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

WEIGHT = (
    rules.same_device("weight", "x")
    & rules.same_dtype("weight", "x", or_in=(torch.float32,))
    & rules.matches_last_dim("weight", "x")
)
RESIDUAL = (
    rules.same_device("x_residual", "x")
    & rules.same_dtype("x_residual", "x")
    & rules.same_shape("x_residual", "x")
    & rules.last_dim_contiguous("x_residual")
    & rules.flattens_for_free("x_residual")
)
