# SPDX-License-Identifier: Apache-2.0
"""Failures that users of comparable systems met, for the gated activations.

Each test is named after its id in the list of cases. "Right" is native on dense copies of x.
"""

import pytest
import torch
from case_checks import assert_right, right, run
from gated_inputs import EVERYWHERE, GATED, x_of
from norm_inputs import DTYPES, WIDTHS

import vllm_ir as ir
from vllm_ir.testing import assert_matches_native, refusal

FLOATS = (*DTYPES, torch.float64)


@pytest.fixture(params=EVERYWHERE, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def case(request):
    return request.param


def assert_right_for(case, x):
    gated, provider = case
    return assert_right(gated.op, provider, (x, *gated.more))


@pytest.mark.parametrize("d", [*WIDTHS, 2, 3, 15, 17, 31, 33, 1234, 4097])
def test_d05_every_width(case, d):
    for dtype in DTYPES:
        assert assert_right_for(case, x_of(d, dtype)) == ""


@pytest.mark.parametrize("d", [1, 3, 4, 1234, 3420])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d06_the_second_half_may_start_anywhere(case, dtype, d):
    """The width of x is a multiple of the vector where that of a half is not."""
    x = x_of(d, dtype)
    if d == 3420 and dtype.itemsize == 2:
        assert (x.data_ptr() + d * dtype.itemsize) % 16 == 8
    assert assert_right_for(case, x) == ""
    gated, provider = case
    doubled = torch.cat([x, x], dim=-1)[:, : 2 * d]
    assert torch.equal(
        run(gated.op, provider, (doubled, *gated.more))[0],
        run(gated.op, provider, (x, *gated.more))[0],
    )


@pytest.mark.parametrize("gated", GATED, ids=str)
def test_d07_every_column_is_written(gated):
    """The allocator gives the freed block out again, so an unwritten column shows the sentinel."""
    wide = torch.randn(2, 2 * 2049)
    for d in range(1, 2050):
        x = wide[:, : 2 * d].contiguous()
        (want,) = right(gated.op, (x, *gated.more))
        stale = torch.full((2, d), -7.0)
        del stale
        for provider in gated.op.supported_providers():
            (got,) = run(gated.op, provider, (x, *gated.more))
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d08_misaligned_bases(case, dtype):
    for d in (40, 33):
        for offset in (0, 1, 3, 8):
            x = torch.randn(6 * d + offset).to(dtype)[offset:].view(3, 2 * d)
            assert assert_right_for(case, x) == ""


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (0,), (0, 0), (2, 0)])
def test_d09_no_rows(case, shape):
    gated, provider = case
    for dtype in FLOATS:
        (result,) = run(gated.op, provider, (torch.empty(shape, dtype=dtype), *gated.more))
        assert (result.shape, result.dtype) == ((*shape[:-1], shape[-1] // 2), dtype)
    assert assert_right_for(case, x_of(32)) == ""  # a later call is fine


@pytest.mark.parametrize("shape", [(2, 3, 64), (64,), (1, 64), (1, 1, 1, 64), (2, 1, 3, 64)])
def test_d15_any_rank_and_the_fused_provider_where_flattening_is_free(case, shape):
    for dtype in DTYPES:
        assert assert_right_for(case, torch.randn(shape).to(dtype)) == ""
        wide = torch.randn(*shape[:-1], 96).to(dtype)
        assert assert_right_for(case, wide[..., 8:72]) == ""


def test_d15_a_sliced_middle_dimension_is_not_read_with_the_wrong_stride(case):
    reason = assert_right_for(case, torch.randn(4, 6, 64)[::2, 1:4])
    assert case[1] != "vllm_c" or "does not flatten" in reason


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e4m3fn], ids=str)
def test_d37_any_floating_dtype_is_handled(case, dtype):
    gated, provider = case
    args = (x_of(32, torch.float32).to(dtype), *gated.more)
    reason = refusal(gated.op, provider, *args)
    assert provider == "native" or (dtype in DTYPES) == (reason == "")
    assert reason == "" or f"x.dtype is {str(dtype).removeprefix('torch.')}" in reason
    (got,), (want,) = run(gated.op, provider, args), right(gated.op, args)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want.double(), atol=1e-2, rtol=2e-2)


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str
)
def test_d37_a_dtype_without_fractions_is_refused_by_the_op(case, dtype):
    gated, provider = case
    text = f"vllm_ir.{gated.op.name}: x must be a floating-point tensor, got "
    with gated.op.set_priority([provider]), pytest.raises(ir.IrTypeError, match=text):
        gated.op(torch.ones(2, 4).to(dtype), *gated.more)


STRIDES = {
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
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d38_the_fake_has_the_strides_of_every_provider(case, dtype, strides):
    gated, provider = case
    args = (STRIDES[strides](torch.randn(4, 6, 8).to(dtype)), *gated.more)
    reason = refusal(gated.op, provider, *args)
    assert_matches_native(gated.op, "native" if reason else provider, *args)
