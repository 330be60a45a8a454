# SPDX-License-Identifier: Apache-2.0
"""Every registered implementation of every op against native, and of the norms against the truth.

A case fails when another implementation ran. What a provider refuses must be refused with the
expected reason, and then native's values must come out all the same.
"""

import itertools
import random
from collections import Counter

import pytest
import torch
from norm_inputs import (
    DTYPES,
    EMPTY,
    LAYOUTS,
    SHAPES,
    VALUES,
    WEIGHTS,
    WIDTHS,
    Norm,
    assert_near_truth,
    refusal_of,
)

import vllm_ir as ir
from vllm_ir.testing import (
    Agreement,
    Memory,
    assert_matches_native,
    conformance_cases,
    copied,
    refusal,
    truth_of,
)

NORMS = (ir.ops.rms_norm, ir.ops.fused_add_rms_norm)
IMPLS = [impl for op in NORMS for impl in op.impls.values()]

ran: Counter[tuple[str, str]] = Counter()
refused: Counter[tuple[str, str]] = Counter()
largest_ulp: Counter[tuple[str, str, str]] = Counter()
values: Counter[tuple[str, str, str]] = Counter()
differing: Counter[tuple[str, str, str]] = Counter()


@pytest.fixture(params=IMPLS, ids=lambda impl: f"{impl.op.name}-{impl.provider}")
def impl(request):
    if not request.param.supported:
        pytest.skip(request.param.unsupported_reason)
    return request.param


def check(impl, norm, refuses=None):
    """Check one case. `refuses` is a part of vllm_c's reason, None when it must run."""
    op, provider = impl.op, impl.provider
    args = norm.args(op.name)
    reason = refusal(op, provider, *args)
    if provider == "vllm_c":
        assert bool(reason) == bool(refuses), f"{norm}: {reason or 'not refused'}"
        assert (refuses or "") in reason, norm
    if reason:
        refused[op.name, provider] += 1
        assert_native_runs_instead(op, provider, args)
        return
    if provider != "native" or is_a_layout(norm):
        count(impl, assert_matches_native(op, provider, *args, donating=op.allow_inplace))
    if norm.values not in ("nan", "inf", "overflow") and norm.dtype is not torch.float64:
        with op.set_priority([provider]):
            results = op(*args)
        results = results if isinstance(results, tuple) else (results,)
        for got, truth in zip(results, truth_of(op.name, args), strict=True):
            assert_near_truth(got, truth)


def is_a_layout(norm):
    """Whether native itself is worth more than a look at its values: at its strides, its fake."""
    return len(norm.shape) != 2 or norm.layout != "contiguous"


def count(impl, agreements: tuple[Agreement, ...]):
    ran[impl.op.name, impl.provider] += 1
    for agreement in agreements:
        key = (impl.op.name, impl.provider, str(agreement.dtype))
        largest_ulp[key] = max(largest_ulp[key], agreement.largest_ulp)
        values[key] += agreement.numel
        differing[key] += agreement.differing


def assert_native_runs_instead(op, provider, args):
    want = op.impls["native"].impl_fn(*copied(args))
    before = Memory(args)
    with op.set_priority([provider]):
        got = op(*args)
    assert not before.changed()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


# --- from the registry: any op with an input generator


@pytest.mark.parametrize("case", conformance_cases(), ids=str)
def test_registered_implementation_matches_native(case):
    if case.refusal():
        pytest.skip(case.refusal())
    count(case.impl, case.check())


# --- the norms in all their arguments


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_widths(impl, dtype, weight):
    for width in WIDTHS:
        for variance_size in (None, width, (width + 1) // 2):
            check(impl, Norm(dtype, (3, width), weight, variance_size=variance_size))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ranks(impl, dtype):
    for shape, weight in itertools.product(SHAPES, WEIGHTS):
        check(impl, Norm(dtype, shape, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_rows_and_no_columns(impl, dtype):
    for shape, weight in itertools.product(EMPTY, WEIGHTS):
        check(impl, Norm(dtype, shape, weight))
        op = impl.op
        with op.set_priority([impl.provider]):
            results = op(*Norm(dtype, shape, weight).args(op.name))
        for result in results if isinstance(results, tuple) else [results]:
            assert (result.shape, result.dtype) == (shape, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts(impl, dtype, layout):
    for weight in WEIGHTS:
        norm = Norm(dtype, (5, 64), weight, layout)
        if impl.op.name == "rms_norm":
            check(impl, norm, refusal_of(impl.provider, layout))
            continue
        for residual_layout in {"contiguous", layout}:
            case = norm.but(residual_layout=residual_layout)
            if layout == "swapped leading dims" and residual_layout == "contiguous":
                continue  # another shape
            check(impl, case, overwriting_refuses(layout))


def overwriting_refuses(layout):
    return "elements share memory" if layout == "broadcast row" else LAYOUTS[layout]


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(impl, dtype, kind):
    for weight, epsilon, width in itertools.product(WEIGHTS, (1e-6, 0.0, 1.0), (64, 100)):
        if epsilon == 0.0 and kind == "tiny":
            continue  # the squares are zero in float32, and the truth is another formula
        case = Norm(dtype, (4, width), weight, values=kind, epsilon=epsilon)
        if "zero" in kind and epsilon == 0.0:
            case = case.but(values="nan") if kind == "zeros" else case
        check(impl, case)


def test_a_row_of_a_million(impl):
    for dtype in DTYPES:
        check(impl, Norm(dtype, (1, 2**20)))


@pytest.mark.parametrize("x", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("weight", ["float64", "float32", "float16", "bfloat16"])
def test_dtype_pairs(impl, x, weight):
    """The result has x's dtype for every pair; a provider that can't do one names both dtypes."""
    refuses = None
    if x is torch.float64:
        refuses = "x.dtype is float64"
    elif weight not in ("float32", str(x).removeprefix("torch.")):
        refuses = f"weight.dtype is {weight}, x.dtype is {str(x).removeprefix('torch.')}"
    norm = Norm(x, (4, 64), weight)
    check(impl, norm, refuses)
    with impl.op.set_priority([impl.provider]):
        results = impl.op(*norm.args(impl.op.name))
    assert {r.dtype for r in (results if isinstance(results, tuple) else [results])} == {x}


@pytest.mark.parametrize("x", DTYPES, ids=str)
@pytest.mark.parametrize("residual", DTYPES, ids=str)
def test_residual_dtypes(x, residual):
    op = ir.ops.fused_add_rms_norm
    a, r, w, *rest = Norm(x).args(op.name)
    args = (a, r.to(residual), w, *rest)
    for provider in op.supported_providers():
        reason = refusal(op, provider, *args)
        if provider == "vllm_c":
            assert ("x_residual.dtype is" in reason) == (x is not residual)
        if reason:
            assert_native_runs_instead(op, provider, args)
        else:
            count(op.impls[provider], assert_matches_native(op, provider, *args, donating=True))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_everything_with_everything(impl, dtype, weight, layout):
    """A seeded draw: all combinations would take half an hour."""
    draw = random.Random(f"{impl.op.name} {dtype} {weight} {layout}")
    fused = impl.op.name == "fused_add_rms_norm"
    refuses = overwriting_refuses(layout) if fused else refusal_of(impl.provider, layout)
    for _ in range(8):
        width, rows = draw.choice(WIDTHS), draw.choice((1, 2, 5, 33))
        norm = Norm(dtype, (rows, width), weight, layout, layout, draw.choice(VALUES))
        norm = norm.but(
            variance_size=draw.choice((None, 1, max(1, width // 3), width)),
            epsilon=draw.choice((1e-6, 1e-5, 1)),
        )
        # A single row, or a row of one value, may have any strides.
        any_strides = not refusal(impl.op, impl.provider, *norm.args(impl.op.name))
        check(impl, norm, None if any_strides and not rows > 1 < width else refuses)


# --- summary


def test_summary_every_provider_was_exercised(record_property):
    """Runs last: a provider that everything refuses would pass each case by itself."""
    if not ran:
        pytest.skip("the cases did not run")
    for impl in IMPLS:
        name = (impl.op.name, impl.provider)
        if not impl.supported:
            assert impl.unsupported_reason, f"{name}: unsupported without a reason"
            continue
        assert ran[name] > 0, f"{name} never ran; refused {refused[name]} times"
    for (op, provider, dtype), ulp in sorted(largest_ulp.items()):
        share = differing[op, provider, dtype] / max(1, values[op, provider, dtype])
        text = f"{ran[op, provider]} cases; at most {ulp} ULP; {share:.4%} of the values differ"
        record_property(f"{op}.{provider}.{dtype}", text)
        print(f"{op}.{provider} {dtype}: {text}")
