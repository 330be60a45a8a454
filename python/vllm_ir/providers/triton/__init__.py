# SPDX-License-Identifier: Apache-2.0
"""Provider `triton`: kernels for NVIDIA and AMD GPUs, written in Triton.

For each op a rule (what the kernel takes) and a traceable body over `torch.ops.vllm_ir_triton`,
which is defined at the first call: Triton is imported then, and never by `import vllm_ir`. No
argument is written, so that nothing needs a copy. The blocks follow from the width alone.

With TRITON_INTERPRET=1 in the environment Triton runs its kernels on the CPU, in NumPy, for tests:
slow, and its conversion to bfloat16 cuts digits off where a GPU rounds.
"""

import importlib.util
from types import ModuleType
from typing import Any

from torch import Tensor

from vllm_ir import envs, ops, rules
from vllm_ir.ops.activation import check_approximate
from vllm_ir.platforms import CudaPlatform, RocmPlatform
from vllm_ir.providers.contract import FLOATS, RESIDUAL, WEIGHT
from vllm_ir.providers.triton.lookup import define_when_asked


def why_unsupported() -> str:
    """Return why Triton can't run in this process, "" when it can."""
    try:
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
    except (ImportError, ValueError) as error:  # a module that somebody put in its place
        return f"triton is not usable: {error}"
    if not (
        envs.triton_interprets() or CudaPlatform().is_available() or RocmPlatform().is_available()
    ):
        return "Triton needs a GPU that torch can use"
    return ""


_REASON = why_unsupported()
_FACTS: dict[str, Any] = {
    "supported": not _REASON,
    "unsupported_reason": _REASON,
    "batch_invariant": True,
}
_DEVICES = ("cuda", "cpu") if envs.triton_interprets() else ("cuda",)

_ROWS = (
    rules.device("x", *_DEVICES)
    & rules.dtype("x", *FLOATS)
    & rules.min_dims("x", 1)
    & rules.last_dim_at_most("x", 2**30)  # also asks for a width that is known when compiling
    & rules.last_dim_contiguous("x")
    & rules.flattens_for_free("x")
    & rules.no_overlap("x")  # native's result then need not be contiguous, and theirs is
)
_NORM = (
    _ROWS
    & WEIGHT
    & rules.last_dim_contiguous("weight")
    & rules.within_last_dim("variance_size", "x")
)
_ADD = RESIDUAL & rules.no_overlap("x_residual")
_GATED = _ROWS & rules.last_dim_multiple_of("x", 2)


define_when_asked()


def _operators() -> ModuleType:
    from vllm_ir.providers.triton import operators

    return operators


@ops.rms_norm.register_impl("triton", supports_args=_NORM, **_FACTS)
def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """Normalise in one kernel; each byte is read and written once, up to a width of 16384."""
    result: Tensor = _operators().rms_norm(x, weight, epsilon, variance_size)
    return result


@ops.fused_add_rms_norm.register_impl("triton", supports_args=_NORM & _ADD, **_FACTS)
def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Add and normalise in one kernel, into new tensors: both activations stay as they are."""
    norm, total = _operators().fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
    return norm, total


@ops.silu_and_mul.register_impl("triton", supports_args=_GATED, **_FACTS)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gate in one kernel: each byte is read and written once."""
    result: Tensor = _operators().act_and_mul(x, "silu")
    return result


# A rule can't read `approximate`.
@ops.gelu_and_mul.register_impl("triton", supports_args=_GATED, **_FACTS)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gate in one kernel: each byte is read and written once."""
    check_approximate(approximate)
    result: Tensor = _operators().act_and_mul(x, f"gelu_{approximate}")
    return result
