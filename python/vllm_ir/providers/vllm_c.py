# SPDX-License-Identifier: Apache-2.0
"""Provider `vllm_c`: this project's own C++ kernels.

For each op a rule (what the kernel takes), a traceable body over `torch.ops.vllm_ir_C`, and the
C++ entry that eager calls use. Body and entry run the same kernel; the entry leaves the checks to
the rule, so the rule must say everything that the kernel needs. The same operators run on the CPU
and on CUDA; where this process can't run the CUDA kernels, the rule says why.
"""

import torch
from torch import Tensor

from vllm_ir import cuda_kernels, ops, rules
from vllm_ir.providers.contract import FLOATS, RESIDUAL, WEIGHT

_NO_CUDA = cuda_kernels.why_unusable()
_DEVICES = ("cpu",) if _NO_CUDA else ("cpu", "cuda")
_ROWS = (
    rules.device("x", *_DEVICES, because=_NO_CUDA)
    & rules.dtype("x", *FLOATS)
    & rules.min_dims("x", 1)
    & rules.last_dim_contiguous("x")
    & rules.flattens_for_free("x")
)
_NORM = _ROWS & WEIGHT & rules.within_last_dim("variance_size", "x")
_ADD = RESIDUAL & rules.no_overlap("x", "x_residual", "weight")  # the first two are written
_GATED = _ROWS & rules.last_dim_multiple_of("x", 2)


@ops.rms_norm.register_impl(
    "vllm_c", supports_args=_NORM, batch_invariant=True, entry="vllm_ir_C::rms_norm_unchecked"
)
def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """Normalise with the fused kernel: each byte is read and written once."""
    result: Tensor = torch.ops.vllm_ir_C.rms_norm(x, weight, epsilon, variance_size)
    return result


@ops.fused_add_rms_norm.register_impl(
    "vllm_c",
    supports_args=_NORM & _ADD,
    inplace=True,
    batch_invariant=True,
    entry="vllm_ir_C::fused_add_rms_norm_unchecked_",
)
def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Overwrite x with the norm and x_residual with the sum."""
    torch.ops.vllm_ir_C.fused_add_rms_norm_(x, x_residual, weight, epsilon, variance_size)
    return x, x_residual


@ops.silu_and_mul.register_impl(
    "vllm_c",
    supports_args=_GATED,
    batch_invariant=True,
    entry="vllm_ir_C::silu_and_mul_unchecked",
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gate with the fused kernel: each byte is read and written once."""
    result: Tensor = torch.ops.vllm_ir_C.silu_and_mul(x)
    return result


# A rule can't read `approximate`: the entry checks it, in native's words.
@ops.gelu_and_mul.register_impl(
    "vllm_c",
    supports_args=_GATED,
    batch_invariant=True,
    entry="vllm_ir_C::gelu_and_mul_unchecked",
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gate with the fused kernel: each byte is read and written once."""
    result: Tensor = torch.ops.vllm_ir_C.gelu_and_mul(x, approximate)
    return result
