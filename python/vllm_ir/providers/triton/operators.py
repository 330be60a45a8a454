# SPDX-License-Identifier: Apache-2.0
"""The torch operators `vllm_ir_triton::*`, which launch the kernels.

Importing this module imports Triton and defines them: the provider does so at its first call.
Inductor decomposes such an operator into the launch of its kernel. Triton's interpreter has no
launches to show, so that there they are opaque operators. Results are new, contiguous tensors; no
argument is written. An operator is right or raises: programs call it on what no rule has seen.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.library import custom_op, triton_op
from triton.runtime.interpreter import InterpretedFunction

from vllm_ir.providers.triton import checks
from vllm_ir.providers.triton.kernels import gated_kernel, norm_kernel

WIDEST_ROW = 16384  # 32 values in each of 512 threads; a wider row doesn't fit into registers
WIDEST_BLOCK = 1024  # of an activation: 8 values in each of 128 threads, 16 bytes in 16 bits
PROGRAMS = 2**31 - 1  # of one launch
_NORM, _ADD_NORM = "rms_norm", "fused_add_rms_norm"

_Functional = Callable[..., Any]
_INTERPRETED = isinstance(norm_kernel, InterpretedFunction)
_DEVICES = ("cuda", "cpu") if _INTERPRETED else ("cuda",)
# Not every torch lets kernels of the interpreter through. Torch looks for calls of this name.
wrap_triton: Any = (lambda kernel: kernel) if _INTERPRETED else torch.library.wrap_triton


def _define(name: str, fake: _Functional) -> Callable[[_Functional], _Functional]:
    define: Any = custom_op if _INTERPRETED else triton_op

    def decorate(fn: _Functional) -> _Functional:
        operator = define(f"vllm_ir_triton::{name}", fn, mutates_args=())
        operator.register_fake(fake)  # cheaper than a launch that does nothing, and free of guards
        found: _Functional = operator
        return found

    return decorate


def _norm_of(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _gated_of(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _fake_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None
) -> Tensor:
    checks.check_norm_types(_NORM, x, weight)
    return _norm_of(x)


def _fake_add_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None,
) -> tuple[Tensor, Tensor]:
    checks.check_norm_types(_ADD_NORM, x, weight)
    checks.check_residual_types(_ADD_NORM, x, x_residual)
    return _norm_of(x), _norm_of(x)


def _fake_gated(x: Tensor, activation: str) -> Tensor:
    checks.check_gated_types(x, activation)
    return _gated_of(x)


@_define("rms_norm", _fake_norm)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None) -> Tensor:
    """Launch `norm_kernel` on rows of x."""
    checks.check_norm(_NORM, x, weight, variance_size, _DEVICES)
    out = _norm_of(x)
    options = _norm_options(x, weight, variance_size, has_residual=False)
    with _launching(_NORM, x):
        for first, programs in _launches(out, _rows(x)):
            wrap_triton(norm_kernel)[(programs,)](
                *(x, x, x if weight is None else weight, out, x),
                *(_row_stride(x), 0, first, epsilon),
                **options,
            )
    return out


@_define("fused_add_rms_norm", _fake_add_norm)
def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None,
) -> tuple[Tensor, Tensor]:
    """Launch `norm_kernel` on rows of x + x_residual."""
    checks.check_norm(_ADD_NORM, x, weight, variance_size, _DEVICES)
    checks.check_residual(_ADD_NORM, x, x_residual)
    out, total = _norm_of(x), _norm_of(x)
    options = _norm_options(x, weight, variance_size, has_residual=True)
    with _launching(_ADD_NORM, x):
        for first, programs in _launches(out, _rows(x)):
            wrap_triton(norm_kernel)[(programs,)](
                *(x, x_residual, x if weight is None else weight, out, total),
                *(_row_stride(x), _row_stride(x_residual), first, epsilon),
                **options,
            )
    return out, total


@_define("act_and_mul", _fake_gated)
def act_and_mul(x: Tensor, activation: str) -> Tensor:
    """Launch `gated_kernel`; activation: "silu", "gelu_none" or "gelu_tanh"."""
    op = checks.check_gated(x, activation, _DEVICES)
    out = _gated_of(x)
    width = x.shape[-1] // 2
    block = min(WIDEST_BLOCK, triton.next_power_of_2(max(1, width)))
    options = {
        "WIDTH": width,
        "BLOCK": block,
        "ACTIVATION": activation,
        "num_warps": max(1, block // 256),
    }
    with _launching(op, x):
        for first, programs in _launches(out, _rows(x) * triton.cdiv(width, block)):
            wrap_triton(gated_kernel)[(programs,)](x, out, _row_stride(x), first, **options)
    return out


def _norm_options(
    x: Tensor, weight: Tensor | None, variance_size: int | None, *, has_residual: bool
) -> dict[str, int]:
    width = x.shape[-1]
    return {
        "WIDTH": width,
        "VARIANCE_SIZE": width if variance_size is None else variance_size,
        "HAS_RESIDUAL": has_residual,
        "HAS_WEIGHT": weight is not None,
        **_row_block(width),
    }


def _row_block(width: int) -> dict[str, int]:
    block = min(WIDEST_ROW, triton.next_power_of_2(max(1, width)))
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}


def _rows(x: Tensor) -> int:
    return math.prod(x.shape[:-1])


def _row_stride(x: Tensor) -> int:
    """Return the stride between rows: the checks have seen that they all have one."""
    leading = zip(x.shape[:-1], x.stride()[:-1], strict=True)
    several = [st for size, st in leading if not statically_known_true(size == 1)]
    return several[-1] if several else 0


def _launches(out: Tensor, programs: int) -> Iterator[tuple[int, int]]:
    """Yield the first program and the number of programs of each launch; none for nothing.

    A number that isn't known while compiling is taken for that of one launch, without a guard.
    Launching no program does nothing.
    """
    if statically_known_true(out.numel() == 0):
        return
    if not statically_known_true(programs > PROGRAMS):
        yield 0, programs
        return
    for first in range(0, programs, PROGRAMS):
        yield first, min(PROGRAMS, programs - first)


@contextlib.contextmanager
def _on_device_of(op: str, x: Tensor) -> Iterator[None]:
    device = contextlib.nullcontext() if x.device.type == "cpu" else torch.cuda.device(x.device)
    with checks.telling_what_failed(op, x), device:
        yield


def _launching(op: str, x: Tensor) -> AbstractContextManager[Any]:
    """Return the context in which Triton launches on x's device. Compiled code has its own."""
    if isinstance(x, (FakeTensor, FunctionalTensor)):
        return contextlib.nullcontext()
    return _on_device_of(op, x)
