# SPDX-License-Identifier: Apache-2.0
"""Failures that users of comparable systems met: dtypes, shapes, strides and values of arguments.

Each test is named after its id in the list of cases, and covers the kind, not one input. "Right"
is native on dense copies of the inputs.
"""

import itertools

import numpy as np
import pytest
import torch
from case_checks import assert_right, right, run
from norm_inputs import (
    DTYPES,
    WEIGHTS,
    WIDTHS,
    Norm,
    assert_near_truth,
    lay_out,
)

import vllm_ir as ir
from vllm_ir.testing import assert_matches_native, measure, refusal, truth_of

NORMS = (ir.ops.rms_norm, ir.ops.fused_add_rms_norm)
FLOATS = (*DTYPES, torch.float64)


def everywhere():
    """Yield each norm with each provider that can run."""
    return [(op, p) for op in NORMS for p in op.supported_providers()]


@pytest.fixture(params=everywhere(), ids=lambda pair: f"{pair[0].name}-{pair[1]}")
def op_and_provider(request):
    return request.param


@pytest.mark.parametrize("x", FLOATS, ids=str)
@pytest.mark.parametrize("weight", FLOATS, ids=str)
def test_d01_a_weight_of_another_dtype_gives_the_spec_or_a_reason(op_and_provider, x, weight):
    op, provider = op_and_provider
    args = list(Norm(x, (4, 64)).args(op.name))
    args[-3] = args[-3].to(weight)
    reason = assert_right(op, provider, args)
    assert not any(t.isnan().any() for t in run(op, provider, args))
    if "weight.dtype" in reason:
        assert all(str(d).removeprefix("torch.") in reason for d in (x, weight))
    if x is not torch.float64 and weight in (x, torch.float32):
        assert reason == ""  # the pair that models have must not fall back


@pytest.mark.parametrize(
    ("dtype", "ulp"), [(torch.bfloat16, 2), (torch.float16, 2), (torch.float32, 6)], ids=str
)
def test_d02_a_kernel_rounds_where_native_rounds(op_and_provider, dtype, ulp):
    """What is left is the order of a sum: a few float32 steps, which rarely cross a boundary.

    Then the value is one step off before the weight and up to two after it. A kernel that
    multiplies in float32 is off by a step in a fifth of the values.
    """
    op, provider = op_and_provider
    args = Norm(dtype, (64, 4096)).args(op.name)
    for agreement in assert_matches_native(op, provider, *args):
        assert agreement.largest_ulp <= ulp, agreement
        assert dtype is torch.float32 or agreement.share < 1e-3, agreement


def test_d02_the_check_would_see_a_multiplication_in_float32():
    x, w, epsilon, _ = Norm(torch.bfloat16, (64, 4096)).args("rms_norm")
    wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
    wrong = (wide * w.float()).to(x.dtype)
    assert measure(wrong, right(ir.ops.rms_norm, (x, w, epsilon, None))[0]).share > 0.1


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d03_slices_of_a_qkv_projection(op_and_provider, dtype, part):
    op, provider = op_and_provider
    qkv, other = (torch.randn(5, 96).to(dtype) for _ in range(2))
    flat = qkv.split(32, -1)[part], other.split(32, -1)[part]
    heads = tuple(t.view(5, 4, 8) for t in flat)
    count = len(op.activations)
    assert heads[0].stride() == (96, 8, 1)
    for views, width in ((flat, 32), (heads, 8)):
        weight = torch.randn(width).to(dtype)
        reason = assert_right(op, provider, (*views[:count], weight, 1e-6, None))
        # Rows of one stride need no copy; heads inside of rows do, and the reason says so.
        if provider == "vllm_c":
            copied = (
                'rejected: x does not flatten to rows without a copy; needs flattens_for_free("x")'
            )
            assert reason == ("" if width == 32 else copied)


@pytest.mark.parametrize("layout", ["transposed", "last dim strided", "expanded last dim"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d04_a_strided_last_dimension_is_right_or_rejected(op_and_provider, dtype, layout):
    op, provider = op_and_provider
    for shape, weight in itertools.product([(8, 4), (4, 16), (1, 7), (7, 1)], WEIGHTS):
        args = Norm(dtype, shape, weight, layout, layout).args(op.name)
        reason = assert_right(op, provider, args)
        assert provider != "vllm_c" or "stride(-1)" in reason or 1 in shape
    strided_weight = lay_out(torch.randn(1, 16), "last dim strided")[0].to(dtype)
    args = list(Norm(dtype, (4, 16)).args(op.name))
    args[-3] = strided_weight
    assert assert_right(op, provider, args) == ""


@pytest.mark.parametrize("width", [*WIDTHS, 2, 3, 15, 17, 31, 33, 1234, 4097])
def test_d05_every_width(op_and_provider, width):
    op, provider = op_and_provider
    for dtype, weight in itertools.product(DTYPES, WEIGHTS):
        assert assert_right(op, provider, Norm(dtype, (3, width), weight).args(op.name)) == ""


@pytest.mark.parametrize("op", NORMS, ids=lambda op: op.name)
def test_d07_every_column_is_written(op):
    """The allocator gives the freed block out again, so an unwritten column shows the sentinel."""
    x, r, w = torch.randn(2, 2049), torch.randn(2, 2049), torch.randn(2049)
    for width in range(1, 2050):
        tensors = [t[:, :width].contiguous() for t in (x, r)][: len(op.activations)]
        want = right(op, (*tensors, w[:width], 1e-6, None))
        stale = [torch.full((2, width), -7.0) for _ in want]
        del stale
        for provider in op.supported_providers():
            got = run(op, provider, (*tensors, w[:width], 1e-6, None))
            for g, e in zip(got, want, strict=True):
                torch.testing.assert_close(g, e, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d08_misaligned_bases(op_and_provider, dtype):
    op, provider = op_and_provider
    rows, width = 3, 40
    for offsets in itertools.product((0, 1, 3, 8), repeat=3):
        x, r, w = (
            torch.randn(rows * width + offset).to(dtype)[offset:].view(rows, width)
            for offset in offsets
        )
        tensors = (x, r)[: len(op.activations)]
        assert assert_right(op, provider, (*tensors, w[0], 1e-6, None)) == ""


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (0,), (0, 0), (2, 0)])
def test_d09_no_rows(op_and_provider, shape):
    op, provider = op_and_provider
    for dtype, weight in itertools.product(FLOATS, WEIGHTS):
        for result in run(op, provider, Norm(dtype, shape, weight).args(op.name)):
            assert (result.shape, result.dtype, result.device.type) == (shape, dtype, "cpu")
    assert assert_right(op, provider, Norm().args(op.name)) == ""  # a later call is fine


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d14_no_weight_is_x_over_its_root_mean_square(op_and_provider, dtype):
    op, provider = op_and_provider
    for variance_size in (None, 16):
        args = Norm(dtype, weight="none", variance_size=variance_size).args(op.name)
        assert assert_right(op, provider, args) == ""
        for got, truth in zip(run(op, provider, args), truth_of(op.name, args), strict=True):
            assert_near_truth(got, truth)


@pytest.mark.parametrize("shape", [(2, 3, 64), (64,), (1, 64), (1, 1, 1, 64), (2, 1, 3, 64)])
def test_d15_any_rank_and_the_fused_provider_where_flattening_is_free(op_and_provider, shape):
    op, provider = op_and_provider
    for dtype in DTYPES:
        dense = Norm(dtype, shape).args(op.name)
        assert assert_right(op, provider, dense) == ""
        wide = Norm(dtype, (*shape[:-1], 96)).args(op.name)
        tensors = [t[..., 8:72] for t in wide[: len(op.activations)]]
        assert assert_right(op, provider, (*tensors, *dense[-3:])) == ""


def test_d15_a_sliced_middle_dimension_is_not_read_with_the_wrong_stride(op_and_provider):
    op, provider = op_and_provider
    tensors = [torch.randn(4, 6, 64)[::2, 1:4] for _ in op.activations]
    reason = assert_right(op, provider, (*tensors, torch.randn(64), 1e-6, None))
    assert provider != "vllm_c" or "does not flatten" in reason


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e4m3fn], ids=str)
def test_d37_any_floating_dtype_is_handled(op_and_provider, dtype):
    op, provider = op_and_provider
    args = Norm(torch.float32, weight="none").args(op.name)
    args = [a.to(dtype) if isinstance(a, torch.Tensor) else a for a in args]
    reason = refusal(op, provider, *args)
    assert provider == "native" or (dtype in DTYPES) == (reason == "")
    assert reason == "" or f"x.dtype is {str(dtype).removeprefix('torch.')}" in reason
    for got, want in zip(run(op, provider, args), right(op, args), strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want.double(), atol=1e-2, rtol=2e-2)


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str
)
def test_d37_a_dtype_without_fractions_is_refused_by_the_op(op_and_provider, dtype):
    op, provider = op_and_provider
    good = Norm().args(op.name)
    for i, name in enumerate(list(op.signature.parameters)[: len(good) - 2]):
        args = [a.to(dtype) if j == i else a for j, a in enumerate(good)]
        text = f"vllm_ir.{op.name}: {name} must be a floating-point tensor, got "
        with op.set_priority([provider]), pytest.raises(ir.IrTypeError, match=text):
            op(*args)


STRIDES = {
    "contiguous": lambda t: t,
    "transpose(0, 1)": lambda t: t.transpose(0, 1),
    "t": lambda t: t[0].t(),
    "permute": lambda t: t.permute(2, 0, 1),
    "rows": lambda t: t[:, ::2],
    "columns": lambda t: t[..., ::2],
    "middle": lambda t: t[..., 2:6],
    "expand": lambda t: t[:, :1].expand(t.shape),
    "expand last": lambda t: t[..., :1].expand(t.shape),
    "new axis": lambda t: t[:, None],
}


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d38_the_fake_has_the_strides_of_every_provider(op_and_provider, dtype, weight, strides):
    op, provider = op_and_provider
    args = list(Norm(dtype, (4, 6, 8), weight).args(op.name))
    for i in range(len(op.activations)):
        args[i] = STRIDES[strides](args[i])
    if args[-3] is not None:
        args[-3] = torch.randn(args[0].shape[-1]).to(args[-3].dtype)
    reason = refusal(op, provider, *args)
    # What the provider refuses goes to native, whose strides count then.
    assert_matches_native(op, "native" if reason else provider, *args)


PAIRS = [
    (first, second)
    for first, second in itertools.product(STRIDES, repeat=2)
    if STRIDES[first](torch.empty(6, 6, 6)).shape == STRIDES[second](torch.empty(6, 6, 6)).shape
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_d38_the_fake_has_the_strides_of_two_activations_laid_out_differently(first, second):
    op = ir.ops.fused_add_rms_norm
    x, r = (STRIDES[s](torch.randn(6, 6, 6)) for s in (first, second))
    args = (x, r, torch.randn(x.shape[-1]), 1e-6, None)
    for provider in op.supported_providers():
        if not refusal(op, provider, *args):
            assert_matches_native(op, provider, *args)


EPSILONS = [
    1,
    0,
    True,
    1e-6,
    np.float32(1e-6),
    np.float64(1e-6),
    torch.tensor(1e-6),
    torch.tensor(1),
    "1e-6",
    None,
    [1e-6],
    1j,
    10**400,
    float("nan"),
    float("inf"),
    -1.0,
]


@pytest.mark.parametrize("epsilon", EPSILONS, ids=repr)
@pytest.mark.parametrize("op", NORMS, ids=lambda op: op.name)
def test_d44_epsilon_of_any_type_is_the_same_for_all_providers_and_modes(op, epsilon):
    args = list(Norm(torch.float32, values="zero row").args(op.name))
    args[-2] = epsilon

    def outcome(provider, mode):
        try:
            with mode():
                return run(op, provider, args)
        except (TypeError, RuntimeError) as error:
            return (type(error), "epsilon" in str(error))

    modes = (torch.no_grad, torch.inference_mode, torch.enable_grad)
    first, *others = [outcome(p, m) for m in modes for p in op.supported_providers()]
    for other in others:
        if isinstance(first[0], type):
            assert other == first == (first[0], True)
        else:
            torch.testing.assert_close(other, first, equal_nan=True)


def test_d44_epsilon_is_inside_of_the_root_and_a_row_of_zeros_without_it_is_nan(op_and_provider):
    op, provider = op_and_provider
    x = torch.full((2, 4), 3.0)
    zero = torch.zeros(2, 4)
    tensors = (x, zero)[: len(op.activations)]
    for epsilon in (16, 16.0):
        torch.testing.assert_close(run(op, provider, (*tensors, None, epsilon, None))[0], x / 5)
    zeros = (zero, zero.clone())[: len(op.activations)]
    assert run(op, provider, (*zeros, None, 0, None))[0].isnan().all()


MODES = {
    "grad": torch.enable_grad,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("x", FLOATS, ids=str)
@pytest.mark.parametrize("weight", [*FLOATS, None], ids=str)
def test_d46_the_dtype_of_a_result_is_x_s_in_every_provider_and_mode(
    op_and_provider, x, weight, mode
):
    op, provider = op_and_provider
    args = list(Norm(x).args(op.name))
    args[-3] = None if weight is None else args[-3].to(weight)
    for requires_grad in (False, True):
        args[0] = args[0].detach().requires_grad_(requires_grad)
        with MODES[mode](), op.set_priority([provider]):
            for call in (op, op.torch_op):
                results = call(*args)
                for result in results if isinstance(results, tuple) else (results,):
                    assert result.dtype == x
