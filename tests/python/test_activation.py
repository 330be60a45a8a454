# SPDX-License-Identifier: Apache-2.0
"""The gated activations: what native means, and every provider against it."""

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from gated_inputs import EVERYWHERE, GATED, truth_of, x_of
from norm_inputs import DTYPES, EMPTY, LAYOUTS, VALUES, WIDTHS, assert_near_truth, lay_out
from toys import runs

import vllm_ir as ir
from vllm_ir.testing import assert_matches_native, measure, refusal

TORCH = {
    "silu_and_mul": F.silu,
    "gelu_and_mul": F.gelu,
    "gelu_and_mul-none": F.gelu,
    "gelu_and_mul-tanh": lambda g: F.gelu(g, approximate="tanh"),
}
# The largest share of values that one rounding may move, and by how many places. In 16 bits an
# activation next to a rounding boundary moves by one, and the product by up to two.
ULP = {torch.float32: (1.0, 8), torch.float16: (1e-3, 2), torch.bfloat16: (1e-3, 2)}


@pytest.fixture(params=GATED, ids=str)
def gated(request):
    return request.param


@pytest.fixture(params=EVERYWHERE, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def gated_and_provider(request):
    return request.param


# --- native


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_is_torchs_bit_for_bit(dtype):
    x = x_of(4096, dtype, rows=64) * 3
    gate, up = x.chunk(2, dim=-1)
    want = F.silu(gate) * up
    assert torch.equal(GATED[0].native(x), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gelu_is_torchs_up_to_its_error(gated, dtype):
    x = x_of(4096, dtype, rows=16) * 3
    gate, up = x.float().chunk(2, dim=-1)
    want = TORCH[str(gated)](gate).to(dtype).float() * up
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(gated.native(x).float(), want, atol=3e-5, rtol=2 * unit)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_values_are_near_the_truth(gated, dtype):
    x = x_of(4096, dtype, rows=16) * 2
    assert_near_truth(gated.native(x), truth_of(gated, x))


def test_the_activation_is_rounded_before_the_product(gated):
    x = x_of(4096, torch.bfloat16, rows=16)
    gate, up = x.chunk(2, dim=-1)
    one_up = torch.cat([gate, torch.ones_like(up)], dim=-1)
    activated = gated.native(one_up)
    assert torch.equal(gated.native(x), activated * up)
    wide = gated.native(one_up.float())
    assert torch.equal(activated, wide.bfloat16())
    assert measure((wide * up.float()).bfloat16(), gated.native(x)).share > 0.1


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_float8_result_is_clamped_and_nan_stays(gated, dtype):
    largest, nan = torch.finfo(dtype).max, float("nan")
    x = torch.tensor([[448.0, 448.0, nan, 1.0, 448.0, -448.0, 1.0, nan]]).to(dtype)
    result = gated.native(x)
    assert result.dtype == dtype
    assert result[0, :2].tolist() == [largest, -largest]
    assert result[0, 2:].float().isnan().all()


def test_gradients_are_those_of_torch(gated):
    x = x_of(8, torch.float64).float().requires_grad_()
    (got,) = torch.autograd.grad(gated.op(x, *gated.more).square().sum(), x)
    gate, up = x.chunk(2, dim=-1)
    (want,) = torch.autograd.grad((TORCH[str(gated)](gate) * up).square().sum(), x)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_gradients_are_finite_far_from_zero(gated):
    x = torch.tensor([[-1e4, -100.0, -20.0, 20.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0]])
    (got,) = torch.autograd.grad(gated.op(x.requires_grad_(), *gated.more).sum(), x)
    assert got.isfinite().all()


ERRORS = [
    (
        torch.tensor(1.0),
        ir.errors.IrValueError,
        "x must have at least one dimension, got a scalar tensor of shape ().",
    ),
    (
        torch.ones(4, 2, dtype=torch.int32),
        ir.errors.IrTypeError,
        "x must be a floating-point tensor, got int32.",
    ),
    (
        torch.ones(4, 7),
        ir.errors.IrValueError,
        "the last dimension of x must be even (gate, then up), got 7.",
    ),
]


@pytest.mark.parametrize(("x", "error", "text"), ERRORS)
def test_errors_are_the_same_by_every_route(gated_and_provider, x, error, text):
    gated, provider = gated_and_provider
    full = "^" + re.escape(f"vllm_ir.{gated.op.name}: {text}") + "$"
    with gated.op.set_priority([provider]):
        for call in (gated.op, gated.op.torch_op):
            with pytest.raises(error, match=full):
                call(x, *gated.more)


@pytest.mark.parametrize("approximate", ["", "None", "erf", "tanh ", "tänh"])
def test_an_unknown_approximation_is_the_same_error_by_every_route(approximate):
    op, x = ir.ops.gelu_and_mul, torch.ones(2, 4)
    text = f"vllm_ir.gelu_and_mul: approximate must be 'none' or 'tanh', got '{approximate}'."
    for provider, mode in itertools.product(
        op.supported_providers(), (torch.no_grad, torch.inference_mode, torch.enable_grad)
    ):
        with op.set_priority([provider]), mode():
            for call in (op, op.torch_op):
                with pytest.raises(ir.IrValueError) as raised:
                    call(x, approximate)
                assert str(raised.value) == text
                with pytest.raises(ir.IrValueError):
                    call(x, approximate=approximate)


def test_approximate_is_a_text_and_all_of_it_counts():
    for provider in ir.ops.gelu_and_mul.supported_providers():
        with ir.ops.gelu_and_mul.set_priority([provider]), pytest.raises(ir.IrValueError):
            ir.ops.gelu_and_mul(torch.ones(2, 4), "none\0")
    for provider in ir.ops.gelu_and_mul.supported_providers():
        with (
            ir.ops.gelu_and_mul.set_priority([provider]),
            pytest.raises((TypeError, RuntimeError), match="approximate"),
        ):
            ir.ops.gelu_and_mul(torch.ones(2, 4), 1)


# --- every provider


def check(gated, provider, x):
    """Return the reason when the provider refuses x, else check it against native."""
    reason = refusal(gated.op, provider, x, *gated.more)
    if reason:
        return reason
    for agreement in assert_matches_native(gated.op, provider, x, *gated.more):
        share, ulp = ULP.get(agreement.dtype, (0.0, 0))
        assert agreement.largest_ulp <= ulp, agreement
        # Of few values one may be too many.
        assert agreement.differing <= max(1, share * agreement.numel), agreement
    return ""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_provider_gives_natives_values(gated_and_provider, dtype):
    gated, provider = gated_and_provider
    for scale in (0.1, 1, 2):
        assert check(gated, provider, x_of(4096, dtype, rows=64) * scale) == ""
    # Further out erfc has few digits left, so that places count for nothing.
    assert_matches_native(gated.op, provider, x_of(4096, dtype, rows=64) * 10, *gated.more)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_widths(gated_and_provider, dtype):
    for d in (*WIDTHS, 2, 3, 31, 63, 65, 1234, 4097):
        assert check(*gated_and_provider, x_of(d, dtype)) == ""


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(gated_and_provider, dtype, kind):
    for d in (64, 100):
        assert check(*gated_and_provider, x_of(d, dtype, kind=kind)) == ""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts(gated_and_provider, dtype, layout):
    gated, provider = gated_and_provider
    reason = check(gated, provider, lay_out(x_of(32, dtype, rows=5), layout))
    refuses = LAYOUTS[layout] if provider == "vllm_c" else None
    assert bool(reason) == bool(refuses)
    assert (refuses or "") in reason


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_overlap(gated_and_provider, dtype):
    line = x_of(300, dtype, rows=1).flatten()
    for strides in ((1, 1), (16, 1), (0, 1), (65, 1)):
        assert check(*gated_and_provider, line.as_strided((4, 64), strides)) == ""


def test_no_rows_and_no_columns(gated_and_provider):
    gated, provider = gated_and_provider
    for dtype, shape in itertools.product((*DTYPES, torch.float64), EMPTY):
        x = torch.empty(shape, dtype=dtype)
        check(gated, provider, x)
        with gated.op.set_priority([provider]):
            result = gated.op(x, *gated.more)
        assert (result.shape, result.dtype) == ((*shape[:-1], shape[-1] // 2), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_the_batch_or_the_threads(gated, dtype):
    x = x_of(1000, dtype, rows=100)
    alone = torch.cat([gated.op(row, *gated.more) for row in x.split(1)])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            with runs(gated.op, vllm_c=1):
                assert torch.equal(gated.op(x, *gated.more), alone)
    finally:
        torch.set_num_threads(threads)


def test_compiled_code_calls_the_op(gated):
    x = x_of(32)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(x):
        return gated.op(x, *gated.more) + 1

    with torch.inference_mode():
        assert torch.equal(f(x), gated.op(x, *gated.more) + 1)
