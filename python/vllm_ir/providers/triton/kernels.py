# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels. They know pointers, strides and sizes; nothing of ops or of torch.

All arithmetic is float32, and each value is rounded where the native function rounds it. The
widths and the blocks are compile-time constants, and the blocks follow from the widths alone, so
that a row is summed in one order whatever stands in the other rows. Offsets between rows have 64
bits, those inside a row 32. `first` is the number of the first program of a launch: a grid has
less than 2**31.
"""

import triton
import triton.language as tl


@triton.jit
def _read(x, residual, columns, mask, HAS_RESIDUAL: tl.constexpr):
    value = tl.load(x + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + columns, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def _write(
    value,
    scale,
    weight,
    out,
    total,
    columns,
    mask,
    HAS_WEIGHT: tl.constexpr,
    HAS_TOTAL: tl.constexpr,
):
    if HAS_TOTAL:
        tl.store(total + columns, value.to(total.dtype.element_ty), mask=mask)
    y = value * scale
    if HAS_WEIGHT:
        w = tl.load(weight + columns, mask=mask, other=0.0)
        y = y.to(w.dtype).to(tl.float32) * w.to(tl.float32)
    tl.store(out + columns, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def norm_kernel(
    x,
    residual,
    weight,
    out,
    total,
    x_stride,
    residual_stride,
    first,
    epsilon,
    WIDTH: tl.constexpr,
    VARIANCE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):
    """Normalise one row: of x, or of x + residual, which then goes rounded to `total`.

    A row that fits into a block is read once, and a wider one twice. Where there is no residual or
    no weight, any pointer stands in its place.
    """
    row = tl.program_id(0).to(tl.int64) + first
    x += row * x_stride
    residual += row * residual_stride
    out += row * WIDTH
    total += row * WIDTH
    block = tl.arange(0, BLOCK)
    # The order of the sum follows from how the values lie in threads. Triton chooses that for the
    # widest access among x, residual and out; out is a new tensor, aligned as WIDTH allows. Where
    # that is less than 16 bytes, x and residual must not have more for standing alone or padded: a
    # zero that the compiler doesn't know takes from it what it knows of their alignment.
    if (WIDTH * out.dtype.element_ty.primitive_bitwidth) % 128 != 0:
        x += tl.program_id(1)
        residual += tl.program_id(1)
    if WIDTH <= BLOCK:
        mask = block < WIDTH
        value = _read(x, residual, block, mask, HAS_RESIDUAL)
        measured = tl.where(block < VARIANCE_SIZE, value, 0.0)
        squares = tl.sum(measured * measured, axis=0)
        scale = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, float(VARIANCE_SIZE)) + epsilon))
        _write(value, scale, weight, out, total, block, mask, HAS_WEIGHT, HAS_RESIDUAL)
    else:
        partial = tl.zeros([BLOCK], tl.float32)
        for start in range(0, VARIANCE_SIZE, BLOCK):
            columns = start + block
            value = _read(x, residual, columns, columns < VARIANCE_SIZE, HAS_RESIDUAL)
            partial += value * value
        squares = tl.sum(partial, axis=0)
        scale = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, float(VARIANCE_SIZE)) + epsilon))
        for start in range(0, WIDTH, BLOCK):
            columns = start + block
            mask = columns < WIDTH
            value = _read(x, residual, columns, mask, HAS_RESIDUAL)
            _write(value, scale, weight, out, total, columns, mask, HAS_WEIGHT, HAS_RESIDUAL)


@triton.jit
def _erfc(x):
    """erfc(x) as exp(-x**2) times a smooth function of |x|: digits stay where 1 - erf has none."""
    s = tl.minimum(tl.abs(x), 11.0)  # exp(-121) is zero
    # The square of 12 bits is exact, and what is left of s**2 is small.
    upper = (s.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    gauss = tl.exp(-(upper * upper)) * tl.exp(-((s - upper) * (s + upper)))
    # The fit of erfc(s) * exp(s**2) that the CPU kernel has too (cpp/kernels/cpu/activation.h).
    t = (s - 3.0) / (s + 3.0)
    fit = 5.59158689e-05 * t + 2.88801875e-05
    fit = fit * t - 0.000594569603
    fit = fit * t + 0.000715731177
    fit = fit * t + 0.00426887628
    fit = fit * t - 0.0243942309
    fit = fit * t + 0.0716658607
    fit = fit * t - 0.150115788
    fit = fit * t + 0.2456038
    fit = fit * t - 0.326233566
    fit = fit * t + 0.179001153
    tail = gauss * fit
    return tl.where(x < 0, 2.0 - tail, tail)


@triton.jit
def _activated(g, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        return g / (1.0 + tl.exp(-g))
    elif ACTIVATION == "gelu_none":
        return 0.5 * g * _erfc(g * -0.7071067811865476)
    else:
        twice_u = (g + 0.044715 * (g * g * g)) * 1.5957691216057308
        return g * (1.0 / (1.0 + tl.exp(-twice_u)))


@triton.jit
def gated_kernel(
    x, out, x_stride, first, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr
):
    """Write activation(gate) * up for one block of one row; gate and up are WIDTH wide."""
    program = tl.program_id(0).to(tl.int64) + first
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = program // blocks
    columns = (program % blocks).to(tl.int32) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    x += row * x_stride
    gate = tl.load(x + columns, mask=mask, other=0.0)
    up = tl.load(x + WIDTH + columns, mask=mask, other=0.0)
    activated = _activated(gate.to(tl.float32), ACTIVATION).to(gate.dtype)
    product = activated.to(tl.float32) * up.to(tl.float32)
    tl.store(out + row * WIDTH + columns, product.to(out.dtype.element_ty), mask=mask)
