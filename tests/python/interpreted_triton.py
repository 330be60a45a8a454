# SPDX-License-Identifier: Apache-2.0
"""The provider `triton` against native and against the truth, through Triton's interpreter.

`test_triton_interpreted.py` runs this file in a process of its own, with TRITON_INTERPRET=1.
"""

import itertools
import os

import numpy as np
import pytest
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from gated_inputs import GATED, x_of
from gated_inputs import truth_of as gated_truth_of
from norm_inputs import (
    DTYPES,
    EMPTY,
    LAYOUTS,
    SHAPES,
    VALUES,
    WEIGHTS,
    Norm,
    assert_near_truth,
    lay_out,
    refusal_of,
)
from toys import runs

import vllm_ir as ir
from vllm_ir.providers.triton import operators
from vllm_ir.testing import assert_matches_native, measure, refusal, truth_of

assert os.environ["TRITON_INTERPRET"] == "1", "run it through test_triton_interpreted.py"

NORMS = (ir.ops.rms_norm, ir.ops.fused_add_rms_norm)
WIDTHS = (1, 7, 64, 129, 1000, 4096)
WIDE = operators.WIDEST_ROW + 1001  # read twice
HALF = (torch.float16, torch.bfloat16)
MOVED = 1e-3  # the share of 16-bit values that another order of a sum may move
# NumPy says so where a kernel computes with infinities, as it should.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")


@pytest.fixture(autouse=True)
def bfloat16_is_converted_as_on_a_gpu(monkeypatch):
    """The interpreter cuts digits off instead of rounding, and spoils subnormal values."""

    def convert(data, source, target, mode):
        bits = torch.from_numpy(np.ascontiguousarray(data))
        if (source, target) == (tl.float32, tl.bfloat16):
            return bits.to(torch.bfloat16).view(torch.uint16).numpy()
        assert (source, target) == (tl.bfloat16, tl.float32)
        return bits.view(torch.bfloat16).float().view(torch.uint32).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert)


@pytest.fixture(params=NORMS, ids=lambda op: op.name)
def op(request):
    return request.param


@pytest.fixture(params=GATED, ids=str)
def gated(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


def results_of(op, args):
    with op.set_priority(["triton"]), runs(op, triton=1):
        results = op(*args)
    return results if isinstance(results, tuple) else (results,)


def check(op, norm, refuses=""):
    """Check one case; `refuses` is a part of the reason, "" when it must run."""
    args = norm.args(op.name)
    reason = refusal(op, "triton", *args)
    assert bool(reason) == bool(refuses), f"{norm}: {reason or 'not refused'}"
    assert refuses in reason, norm
    if reason:
        return
    assert_matches_native(op, "triton", *args, donating=op.allow_inplace)
    if norm.values not in ("nan", "inf", "overflow"):
        for got, truth in zip(results_of(op, args), truth_of(op.name, args), strict=True):
            assert_near_truth(got, truth)


# --- the norms


@pytest.mark.parametrize("weight", WEIGHTS)
def test_widths(op, dtype, weight):
    for width in WIDTHS:
        for variance_size in {None, (width + 1) // 2}:
            check(op, Norm(dtype, (2, width), weight, variance_size=variance_size))


def test_wide_rows(op, dtype):
    for weight, variance_size in zip(WEIGHTS, (None, 5000, operators.WIDEST_ROW + 1), strict=True):
        check(op, Norm(dtype, (2, WIDE), weight, variance_size=variance_size))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_few_of_many_values_differ(op, dtype, weight):
    """Many rows: in one of bfloat16 all values with one significand may lie next to a boundary."""
    norm = Norm(dtype, (64, 1000), weight)
    for agreement in assert_matches_native(op, "triton", *norm.args(op.name)):
        assert agreement.largest_ulp <= (8 if dtype is torch.float32 else 2), agreement
        assert agreement.share < (1 if dtype is torch.float32 else MOVED), agreement


def test_ranks(op, dtype):
    for shape in SHAPES:
        check(op, Norm(dtype, shape))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(op, dtype, layout):
    for weight, other in itertools.product(("same", "none"), {"contiguous", layout}):
        norm = Norm(dtype, (5, 64), weight, layout)
        if op.name == "rms_norm":
            check(op, norm, refusal_of("triton", layout) or "")
        elif layout != "swapped leading dims" or other == layout:  # else another shape
            check(op, norm.but(residual_layout=other), refusal_of("triton", layout) or "")


def test_rows_that_overlap(op, dtype):
    line = Norm(dtype, (300,)).args("rms_norm")[0]
    for row_stride in (0, 1, 16, 64, 65):
        x = line.as_strided((4, 64), (row_stride, 1))
        activations = (x,) if op.name == "rms_norm" else (x, x)
        if row_stride >= 64:
            assert_matches_native(op, "triton", *activations, None, 1e-6)
            continue
        assert "elements share memory" in refusal(op, "triton", *activations, None, 1e-6)
        if op.name != "rms_norm":
            other = refusal(op, "triton", torch.ones_like(x).contiguous(), x, None, 1e-6)
            assert 'needs no_overlap("x_residual")' in other


@pytest.mark.parametrize("kind", VALUES)
def test_values(op, dtype, kind):
    for weight, epsilon in itertools.product(WEIGHTS, (1e-6, 0.0)):
        if epsilon == 0.0 and kind in ("tiny", "zeros", "zero row"):
            continue  # the squares are zero in float32, and the truth is another formula
        check(op, Norm(dtype, (4, 100), weight, values=kind, epsilon=epsilon))


def test_a_row_of_zeros_without_epsilon_is_nan(op, dtype):
    zeros = Norm(dtype, values="zeros", epsilon=0.0).args(op.name)
    assert_matches_native(op, "triton", *zeros)
    assert results_of(op, zeros)[0].isnan().all()


def test_dtypes_that_are_refused(op):
    check(op, Norm(torch.float64), "x.dtype is float64")
    check(op, Norm(torch.float16, weight="bfloat16"), "weight.dtype is bfloat16")
    check(op, Norm(torch.float32, weight="float16"), "weight.dtype is float16")
    x, residual, *rest = Norm(torch.float16).args("fused_add_rms_norm")
    fused = ir.ops.fused_add_rms_norm
    reason = refusal(fused, "triton", x, residual.float(), *rest)
    assert "x_residual.dtype is float32" in reason
    strided = torch.ones(128, dtype=torch.float16)[::2]
    assert "weight.stride(-1)" in refusal(ir.ops.rms_norm, "triton", x, strided, 1e-6)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_count_of_values_sees_each_rounding_point(dtype):
    """What the kernels must not do moves many more values than the tests allow."""
    x, residual, weight, *rest = Norm(dtype, (16, 4096)).args("fused_add_rms_norm")
    norm, total = results_of(ir.ops.fused_add_rms_norm, (x, residual, weight, *rest))
    of_rounded_sum = ir.ops.rms_norm.impls["native"].impl_fn(total, weight, *rest)
    assert measure(norm, of_rounded_sum).share > 10 * MOVED
    (norm,) = results_of(ir.ops.rms_norm, (x, weight, *rest))
    rounded_once = ir.ops.rms_norm.impls["native"].impl_fn(x, weight.float(), *rest)
    assert measure(norm, rounded_once).share > 10 * MOVED


# --- the activations


def check_gated(gated, x):
    for agreement in assert_matches_native(gated.op, "triton", x, *gated.more):
        if agreement.dtype in HALF:
            assert agreement.largest_ulp <= 2, agreement
            assert agreement.differing <= max(1, MOVED * agreement.numel), agreement


def test_widths_of_activations(gated, dtype):
    for d in (1, 2, 7, 129, 1000, 1025):
        check_gated(gated, x_of(d, dtype))


def test_few_of_many_activations_differ(gated, dtype):
    for scale in (0.1, 1, 2):
        check_gated(gated, x_of(4096, dtype, rows=4) * scale)


def test_activations_are_near_the_truth(gated, dtype):
    x = x_of(4096, dtype, rows=2) * 2
    (got,) = results_of(gated.op, (x, *gated.more))
    assert_near_truth(got, gated_truth_of(gated, x))


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_activations(gated, dtype, kind):
    check_gated(gated, x_of(100, dtype, kind=kind))


def test_the_far_ends_of_activations(gated, dtype):
    gate = torch.tensor([float("-inf"), -1e4, -200.0, -15.0, -11.5, -9.0, 9.0, 12.0, 1e4])
    gate = torch.cat([gate, torch.tensor([float("inf"), float("nan"), -0.0])]).to(dtype)
    check_gated(gated, torch.cat([gate, torch.ones_like(gate)]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_activations(gated, dtype, layout):
    x = lay_out(x_of(32, dtype, rows=5), layout)
    reason = refusal(gated.op, "triton", x, *gated.more)
    refuses = refusal_of("triton", layout) or ""
    assert refuses in reason
    if not reason:
        check_gated(gated, x)
    assert bool(reason) == bool(refuses)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_activation_is_rounded_before_the_product(gated, dtype):
    x = x_of(4096, dtype)
    gate, up = x.chunk(2, dim=-1)
    one_up = torch.cat([gate, torch.ones_like(up)], dim=-1)
    (activated,) = results_of(gated.op, (one_up, *gated.more))
    (product,) = results_of(gated.op, (x, *gated.more))
    assert torch.equal(product, activated * up)
    (wide,) = results_of(gated.op, (x.float(), *gated.more))
    assert measure(product, wide.to(dtype)).share > 10 * MOVED


def test_an_unknown_approximation_is_natives_error():
    op = ir.ops.gelu_and_mul
    text = "^vllm_ir.gelu_and_mul: approximate must be 'none' or 'tanh', got 'erf'.$"
    with op.set_priority(["triton"]), pytest.raises(ir.IrValueError, match=text):
        op(torch.ones(2, 4), "erf")


# --- launches


def calls():
    """Yield each op with arguments for a shape."""
    for op in NORMS:
        yield op, lambda dtype, shape, op=op: Norm(dtype, shape).args(op.name)
    for gated in GATED:
        yield (
            gated.op,
            lambda dtype, shape, gated=gated: (torch.ones(shape, dtype=dtype), *gated.more),
        )


def test_nothing_is_launched_for_no_rows_or_no_columns(monkeypatch, dtype):
    for (op, args_of), shape in itertools.product(calls(), EMPTY):
        assert_matches_native(op, "triton", *args_of(dtype, shape))
    monkeypatch.delattr(operators, "wrap_triton")
    for (op, args_of), shape in itertools.product(calls(), EMPTY):
        results_of(op, args_of(dtype, shape))
    with pytest.raises(ir.IrRuntimeError, match="wrap_triton"):
        results_of(ir.ops.silu_and_mul, (torch.ones(1, 2),))


def test_more_programs_than_a_launch_may_have(monkeypatch, dtype):
    monkeypatch.setattr(operators, "PROGRAMS", 4)
    wrap, launches = operators.wrap_triton, []
    monkeypatch.setattr(operators, "wrap_triton", lambda k: launches.append(k) or wrap(k))
    for op, args_of in calls():
        for rows in (4, 9):
            assert_matches_native(op, "triton", *args_of(dtype, (rows, 2200)))
    assert len(launches) > 2 * 2 * len(list(calls()))


def test_a_row_does_not_depend_on_the_batch(dtype):
    for (op, args_of), width in itertools.product(calls(), (130, 1000)):
        args = args_of(dtype, (5, width))
        together = results_of(op, args)
        for i in range(5):
            alone = results_of(op, [a[i : i + 1] if is_matrix(a) else a for a in args])
            assert all(torch.equal(t[i : i + 1], a) for t, a in zip(together, alone, strict=True))


def is_matrix(argument):
    return isinstance(argument, torch.Tensor) and argument.dim() == 2


@pytest.mark.parametrize("op_and_args", list(calls()), ids=lambda pair: pair[0].name)
def test_operators_keep_torchs_rules(op_and_args):
    """Schema, fake kernels and functionalization, as torch checks them."""
    op, args_of = op_and_args
    x, *rest = args_of(torch.float16, (3, 130))
    if op in NORMS:
        torch.library.opcheck(getattr(operators, op.name)._opoverload, (x, *rest))
    else:
        torch.library.opcheck(operators.act_and_mul._opoverload, (x, "silu"))


# --- compiled


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_compiled_code_gives_eagers_bits():
    def layer(x, residual, weight):
        x, residual = ir.ops.fused_add_rms_norm(x, residual, weight, 1e-6)
        x = ir.ops.rms_norm(x, None, 1e-6, 100)
        return ir.ops.silu_and_mul(x), ir.ops.gelu_and_mul(x, "tanh"), residual

    for op in (*NORMS, *{gated.op for gated in GATED}):
        op.set_default(["triton"])
    compiled = ir.compile(layer)
    args = Norm(torch.float32, (5, 130)).args("fused_add_rms_norm")[:3]
    with torch.inference_mode():
        assert all(map(torch.equal, compiled(*args), layer(*args)))
    report = ir.explain(compiled)
    assert {node.selected for node in report.nodes} == {"triton"}
    assert [clone for node in report.nodes for clone in node.clones] == []
