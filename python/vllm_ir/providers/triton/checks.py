# SPDX-License-Identifier: Apache-2.0
"""What the operators ask of their arguments, in the words of `vllm_ir_C::*`.

An exported program calls an operator with tensors that no rule has seen. Of a symbolic size or
stride only what is known counts, so that no check adds a guard: the code that is generated then
asserts itself that its inputs have the strides that it was made for.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from vllm_ir.dtypes import dtype_name
from vllm_ir.errors import IrRuntimeError, IrTypeError, IrValueError
from vllm_ir.providers.contract import FLOATS

WIDEST = 2**30  # offsets inside a row have 32 bits
ACTIVATIONS = ("silu", "gelu_none", "gelu_tanh")


def check_norm_types(op: str, x: Tensor, weight: Tensor | None) -> None:
    """Raise for what is wrong whatever the sizes: the fake kernels check no more."""
    _check_x_type(op, x)
    if weight is None:
        return
    if weight.dtype not in (x.dtype, torch.float32):
        mine = dtype_name(x.dtype)
        allowed = mine if mine == "float32" else f"{mine} (x.dtype) or float32"
        raise IrTypeError(
            f"vllm_ir.{op}: weight.dtype must be {allowed}, got {dtype_name(weight.dtype)}. "
            "Cast the weight, or use the native provider."
        )
    _check_device_of(op, "weight", weight, x)


def check_norm(
    op: str, x: Tensor, weight: Tensor | None, variance_size: int | None, devices: tuple[str, ...]
) -> None:
    """Raise unless `norm_kernel` can read x and weight."""
    check_norm_types(op, x, weight)
    _check_rows_of_x(op, x, devices)
    width = x.shape[-1]
    if weight is not None:
        _check_weight_layout(op, weight, width)
    if variance_size is not None and not _within(variance_size, width):
        raise IrValueError(
            f"vllm_ir.{op}: variance_size must be between 1 and hidden_size = {width}, "
            f"got {variance_size}."
        )


def check_residual_types(op: str, x: Tensor, x_residual: Tensor) -> None:
    """Raise for what is wrong whatever the sizes."""
    if x_residual.dtype != x.dtype:
        raise IrTypeError(
            f"vllm_ir.{op}: x_residual must have x's dtype {dtype_name(x.dtype)}, "
            f"got {dtype_name(x_residual.dtype)}."
        )
    _check_device_of(op, "x_residual", x_residual, x)


def check_residual(op: str, x: Tensor, x_residual: Tensor) -> None:
    """Raise unless `norm_kernel` can read x_residual along with x."""
    check_residual_types(op, x, x_residual)
    if _differ(x_residual.shape, x.shape):
        raise IrValueError(
            f"vllm_ir.{op}: x_residual must have x's shape {tuple(x.shape)}, "
            f"got {tuple(x_residual.shape)}."
        )
    _check_rows(op, "x_residual", x_residual)


def check_gated_types(x: Tensor, activation: str) -> str:
    """Raise for what is wrong whatever the leading sizes; return the name of the op."""
    if activation not in ACTIVATIONS:
        raise IrValueError(
            "vllm_ir.act_and_mul: activation must be 'silu', 'gelu_none' or 'gelu_tanh', "
            f"got '{activation}'."
        )
    op = f"{activation.partition('_')[0]}_and_mul"
    _check_x_type(op, x)
    if _known(x.shape[-1] % 2 != 0):
        raise IrValueError(
            f"vllm_ir.{op}: the last dimension of x must be even (gate, then up), "
            f"got {x.shape[-1]}."
        )
    return op


def check_gated(x: Tensor, activation: str, devices: tuple[str, ...]) -> str:
    """Raise unless `gated_kernel` can read x; return the name of the op."""
    op = check_gated_types(x, activation)
    _check_rows_of_x(op, x, devices)
    return op


@contextmanager
def telling_what_failed(op: str, x: Tensor) -> Iterator[None]:
    """Turn Triton's error about a missing driver, say, into one that names the op."""
    try:
        yield
    except RuntimeError as error:
        raise IrRuntimeError(
            f"vllm_ir.{op}: triton's kernel for x, {dtype_name(x.dtype)} of shape "
            f"{tuple(x.shape)} on {x.device}, was not launched: {error} "
            "Use the native provider, or lower to another one."
        ) from error


def _check_x_type(op: str, x: Tensor) -> None:
    if x.dim() == 0:
        raise IrValueError(
            f"vllm_ir.{op}: x must have at least one dimension, got a scalar tensor of shape ()."
        )
    if x.dtype not in FLOATS:
        raise IrTypeError(
            f"vllm_ir.{op}: x.dtype must be float32, float16 or bfloat16, "
            f"got {dtype_name(x.dtype)}. Use the native provider."
        )


def _check_device_of(op: str, name: str, t: Tensor, x: Tensor) -> None:
    if t.device != x.device:
        raise IrValueError(
            f"vllm_ir.{op}: {name} must be on x's device {x.device}, got {t.device}."
        )


def _check_rows_of_x(op: str, x: Tensor, devices: tuple[str, ...]) -> None:
    if x.device.type not in devices:
        raise IrValueError(
            f"vllm_ir.{op}: x must be on a device that triton has a kernel for "
            f"({', '.join(devices)}), got {x.device}. "
            "Use the native provider, or lower to another one."
        )
    if _known(x.shape[-1] > WIDEST):
        raise IrValueError(
            f"vllm_ir.{op}: the last dimension of x must have at most {WIDEST} elements, "
            f"got {x.shape[-1]}. Use the native provider."
        )
    _check_rows(op, "x", x)


def _check_rows(op: str, name: str, t: Tensor) -> None:
    if _known(t.numel() == 0) or _may_be_rows(t):
        return
    raise IrValueError(
        f"vllm_ir.{op}: {name} must be contiguous in its last dimension and have one distance "
        f"between all rows, got shape {tuple(t.shape)} with strides {t.stride()}. "
        "Call .contiguous() on it."
    )


def _check_weight_layout(op: str, weight: Tensor, width: int) -> None:
    if weight.dim() != 1 or _known(weight.shape[0] != width):
        raise IrValueError(
            f"vllm_ir.{op}: weight must have shape (hidden_size,) = ({width},), "
            f"got {tuple(weight.shape)}."
        )
    if _known(width > 1) and _known(weight.stride(0) != 1):
        raise IrValueError(
            f"vllm_ir.{op}: weight must be contiguous, got shape {tuple(weight.shape)} with "
            f"strides {weight.stride()}. Call .contiguous() on it."
        )


def _may_be_rows(t: Tensor) -> bool:
    """Whether nothing known says that the last dimension has gaps or that distances differ."""
    if _known(t.shape[-1] > 1) and _known(t.stride(-1) != 1):
        return False
    count, first = 1, None
    for size, stride in list(zip(t.shape[:-1], t.stride()[:-1], strict=True))[::-1]:
        if _known(size == 1):
            continue
        if first is None:
            first = stride
        elif not _known(size > 1):
            return True  # if it is 1, then its stride may be anything
        elif _known(stride != first * count):
            return False
        count = count * size
    return True


def _within(variance_size: int, width: int) -> bool:
    return not (_known(variance_size < 1) or _known(variance_size > width))


def _differ(shape: torch.Size, other: torch.Size) -> bool:
    if len(shape) != len(other):
        return True
    return any(_known(a != b) for a, b in zip(shape, other, strict=True))


def _known(condition: bool | torch.SymBool) -> bool:
    """Whether a condition holds for certain; a symbolic one gets no guard."""
    return condition if isinstance(condition, bool) else statically_known_true(condition)
