# SPDX-License-Identifier: Apache-2.0
"""Failures that users of comparable systems met: aliases, overwritten inputs, choices, batches.

Each test is named after its id in the list of cases, and covers the kind, not one input.
"""

import itertools
import random
import threading

import pytest
import torch
from norm_inputs import DTYPES, WEIGHTS, Norm, inplace_norm
from random_programs import elements_of
from torch import Tensor
from toys import new_name, new_toy, runs

import vllm_ir as ir
from vllm_ir.testing import Memory, copied, refusal

NORMS = (ir.ops.rms_norm, ir.ops.fused_add_rms_norm)
MODES = {"grad": torch.enable_grad, "no grad": torch.no_grad, "inference": torch.inference_mode}


def tuple_of(result):
    return result if isinstance(result, tuple) else (result,)


# --- batch invariance


@pytest.mark.parametrize("op", NORMS, ids=lambda op: op.name)
@pytest.mark.parametrize(("dtype", "width"), [*((d, 64) for d in DTYPES), (torch.bfloat16, 1000)])
def test_d10_a_row_does_not_depend_on_its_batch(op, dtype, width):
    ir.set_batch_invariant(True)
    args = Norm(dtype, (4096, width)).args(op.name)
    tensors, rest = args[: len(op.activations)], args[len(op.activations) :]

    def rows_of(whole, begin, end):
        return [t[begin:end] for t in whole]

    for provider in op.supported_providers():
        if refusal(op, provider, *args):
            assert not op.impls[provider].batch_invariant
            continue
        with op.set_priority([provider]):
            whole = tuple_of(op(*args))
            for size in (255, 256, 1):
                # One by one, every sixteenth row of native: it is slow.
                step = 16 if (size, provider) == (1, "native") else 1
                for begin in range(0, 4096, size * step):
                    got = tuple_of(op(*rows_of(tensors, begin, begin + size), *rest))
                    assert all(map(torch.equal, got, rows_of(whole, begin, begin + size)))


@pytest.mark.parametrize("provider", ["native", "vllm_c"])
@pytest.mark.parametrize("op", NORMS, ids=lambda op: op.name)
def test_d10_a_long_row_does_not_depend_on_its_batch(op, provider, request):
    """Torch splits the sum of a single long row between threads, and that of many rows not."""
    if provider == "native":
        why = "torch splits a mean over a single row of 65536 values or more between threads"
        request.applymarker(pytest.mark.xfail(reason=why))
    ir.set_batch_invariant(True)
    args = Norm(torch.float32, (16, 2**17)).args(op.name)
    count = len(op.activations)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with op.set_priority([provider]):
            whole = tuple_of(op(*args))
            for i in range(16):
                row = tuple_of(op(*(t[i : i + 1] for t in args[:count]), *args[count:]))
                assert all(torch.equal(r[0], w[i]) for r, w in zip(row, whole, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_d10_a_provider_that_is_not_invariant_is_skipped_with_that_reason():
    op = new_toy("varies")
    op.register_impl("steady", batch_invariant=True)(op.impls["native"].impl_fn)
    x = torch.ones(2)
    with op.set_priority(["varies", "steady"]):
        with runs(op, varies=1):
            op(x)
        ir.set_batch_invariant(True)
        with runs(op, steady=1):  # at once, in an open scope too
            op(x)
        assert "invariant" in {d.provider: d for d in op.explain(x).decisions}["varies"].reason
        ir.set_batch_invariant(False)
        with runs(op, varies=1):
            op(x)


@pytest.mark.parametrize("op", NORMS, ids=lambda op: op.name)
def test_d13_batch_invariance_and_a_variance_size_find_a_provider(op):
    """A provider that is chosen for its invariance but can't do the arguments is passed over."""
    whole_only = ir.rules.is_none("variance_size")
    narrow = ir.register_op(
        op.impls["native"].impl_fn, name=new_name("narrow"), allow_inplace=op.allow_inplace
    )
    narrow.register_impl("invariant", supports_args=whole_only, batch_invariant=True)(
        op.impls["native"].impl_fn
    )
    ir.set_batch_invariant(True)
    args = Norm(shape=(4, 16), variance_size=8).args(op.name)
    want = tuple_of(op.impls["native"].impl_fn(*args))
    for tried in (op, narrow):
        for provider in tried.supported_providers():
            with tried.set_priority([provider]):
                got = tuple_of(tried(*args))
            torch.testing.assert_close(got, want)
    with narrow.set_priority(["invariant"]), runs(narrow, native=1):
        narrow(*args)


# --- inputs that must survive


@pytest.fixture(scope="module")
def inplace_op():
    op = ir.register_op(
        ir.ops.fused_add_rms_norm.impls["native"].impl_fn,
        name=new_name("add_norm"),
        allow_inplace=True,
    )
    op.register_impl("inplace", inplace=True)(inplace_norm)
    return op


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "layout", ["contiguous", "qkv slice", "storage offset", "transposed", "broadcast row"]
)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_d17_the_default_overload_over_an_in_place_provider_keeps_its_inputs(
    inplace_op, layout, weight, mode
):
    for dtype, op in itertools.product(
        (*DTYPES, torch.float64), (inplace_op, ir.ops.fused_add_rms_norm)
    ):
        provider = "inplace" if op is inplace_op else "vllm_c"
        args = Norm(dtype, (5, 64), weight, layout, layout).args("fused_add_rms_norm")
        before = Memory(args)
        want = op.impls["native"].impl_fn(*copied(args))
        for call in (op, op.torch_op):
            with MODES[mode](), op.set_priority([provider]):
                got = call(*args)
            assert not before.changed()
            torch.testing.assert_close(got, want, atol=1e-2, rtol=2e-2)
            assert not Memory(args)._now.keys() & Memory(got)._now.keys()  # no shared memory


def test_d17_one_tensor_as_both_activations(inplace_op):
    x, w = torch.randn(4, 8), torch.ones(8)
    for op, provider in ((inplace_op, "inplace"), (ir.ops.fused_add_rms_norm, "vllm_c")):
        kept = x.clone()
        with op.set_priority([provider]):
            got = op(x, x, w, 1e-6)
        torch.testing.assert_close(got, op.impls["native"].impl_fn(x, x, w, 1e-6))
        assert torch.equal(x, kept)


@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_donated_memory_that_the_weight_shares(provider):
    """The weight is read after its memory was given away: right, whoever runs."""
    op = ir.ops.fused_add_rms_norm
    for where, base_dtype in itertools.product((0, 1, 2), DTYPES):
        x, r = torch.randn(3, 64).to(base_dtype), torch.randn(3, 64).to(base_dtype)
        weight = (x, r, x)[where][where]
        want = op.impls["native"].impl_fn(x.clone(), r.clone(), weight.clone(), 1e-6)
        with op.set_priority([provider]):
            got = op.maybe_inplace(x, r, weight, 1e-6)
        torch.testing.assert_close(got, want, atol=1e-2, rtol=2e-2)


RETURNED = {
    "itself": lambda x: x,
    "a view": lambda x: x.view(-1).view(x.shape),
    "detached": lambda x: x.detach(),
    "a slice of it": lambda x: x[:1].expand(x.shape),
    "a tensor over its storage": lambda x: torch.empty(0, dtype=x.dtype).set_(x),
}


@pytest.mark.parametrize("what", RETURNED)
@pytest.mark.parametrize("mode", MODES)
def test_d18_a_result_that_is_an_input_is_copied(what, mode, caplog):
    op = new_toy()
    returned = RETURNED[what]

    def mine(
        x: Tensor,
        y: Tensor | None = None,
        scale: float = 1.0,
        n: int | None = None,
        flag: bool = False,
    ) -> Tensor:
        return returned(x) if y is None else returned(y)

    op.register_impl("mine")(mine)
    x = torch.ones(2, 3)
    for args, call, wrap in itertools.product(
        ((x,), (torch.zeros(2, 3), x)), (op, op.torch_op), (True, False)
    ):
        with MODES[mode](), op.set_priority(["mine"]), ir.enable_torch_wrap(wrap):
            out = call(*args)
            out.add_(1)
        assert torch.equal(out, torch.full((2, 3), 2.0))
        assert torch.equal(x, torch.ones(2, 3))
    assert "shares memory with 'x'" in caplog.text  # said once, not at each call
    assert caplog.text.count("shares memory with") <= 2


def test_d18_native_may_return_its_input_and_the_caller_still_gets_another():
    def as_float(x: Tensor) -> Tensor:
        return x.to(torch.float32)

    op = ir.register_op(as_float, name=new_name("as_float"))
    op.set_default(["native"])
    x = torch.ones(2, 3)
    for call, wrap in itertools.product((op, op.torch_op), (True, False)):
        with ir.enable_torch_wrap(wrap):
            call(x).add_(1)
        assert torch.equal(x, torch.ones(2, 3))


def test_d18_a_donated_result_never_aliases_what_was_not_donated():
    def pick(x: Tensor, y: Tensor) -> Tensor:
        return y.clone()

    def aliasing(x: Tensor, y: Tensor) -> Tensor:
        return y

    op = ir.register_op(pick, name=new_name("pick"), allow_inplace=True)
    op.register_impl("aliasing", inplace=True)(aliasing)
    op.register_impl("aliasing_too")(aliasing)
    y = torch.ones(3)
    for provider in ("aliasing", "aliasing_too"):
        for call in (op, op.maybe_inplace, op.torch_op, op.maybe_inplace.torch_op):
            with op.set_priority([provider]):
                call(torch.zeros(3), y).add_(1)
            assert torch.equal(y, torch.ones(3))


def test_d18_a_result_of_a_provider_that_is_not_in_place_is_a_tensor_of_its_own():
    """Such a provider behaves as under the default overload; an expanded input shows it."""

    def double(x: Tensor) -> Tensor:
        return x * 1.0

    def same(x: Tensor) -> Tensor:
        return x

    op = ir.register_op(double, name=new_name("same"), allow_inplace=True)
    op.register_impl("same")(same)
    for call in (op.maybe_inplace, op.maybe_inplace.torch_op):
        with op.set_priority(["same"]):
            out = call(torch.ones(1, 3).expand(2, 3))
        out[0].zero_()
        assert torch.equal(out[1], torch.ones(3))


@pytest.mark.parametrize("provider", ["native", "vllm_c", "inplace"])
def test_d19_donated_views_of_one_base_leave_the_rest_of_it(inplace_op, provider):
    op = inplace_op if provider == "inplace" else ir.ops.fused_add_rms_norm
    views = [
        lambda b: (b[0], b[1]),
        lambda b: (b[1], b[0]),
        lambda b: (b[0, :, :8], b[0, :, 8:]),  # rows that interleave
        lambda b: (b[0, ::2], b[0, 1::2]),
        lambda b: (b[0:1, 1:2, 3:4], b[1:2, 0:1, 2:3]),
    ]
    for view, dtype in itertools.product(views, DTYPES):
        base = torch.randn(3, 4, 16).to(dtype)
        x, r = view(base)
        weight = torch.randn(x.shape[-1]).to(dtype)
        want = op.impls["native"].impl_fn(x.clone(), r.clone(), weight, 1e-6)
        before = Memory([base])
        with op.set_priority([provider]):
            got = op.maybe_inplace(x, r, weight, 1e-6)
        torch.testing.assert_close(got, want, atol=1e-2, rtol=2e-2)
        assert not before.changed(except_in=[x, r])


def random_view(draw, base):
    """A view of the base with any shape, strides and offset that fit."""
    shape = [draw.randint(1, 4) for _ in range(draw.randint(0, 2))] + [draw.randint(1, 8)]
    strides = [draw.choice((0, 1, 2, 4, 8, 16, 24)) for _ in shape[:-1]] + [
        draw.choice((1, 1, 1, 2))
    ]
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return base.as_strided(shape, strides, draw.randint(0, base.numel() - 1 - last))


def test_d19_what_is_accepted_for_donation_never_overlaps():
    """Random views of one base: accepted ones are disjoint, and give what copies of them give."""
    op, draw = ir.ops.fused_add_rms_norm, random.Random(0)
    accepted = 0
    for _ in range(4_000):
        base = torch.randn(256)
        x = random_view(draw, base)
        r = base.as_strided(x.shape, x.stride(), draw.randint(0, 40))
        weight = (
            base.as_strided(x.shape[-1:], (1,), draw.randint(0, 240))
            if draw.random() < 0.5
            else None
        )
        args = (x, r, weight, 0.1)
        want = op.impls["native"].impl_fn(
            *(a.clone() if isinstance(a, Tensor) else a for a in args)
        )
        if not refusal(op, "vllm_c", *args):
            accepted += 1
            views = [t for t in (x, r, weight) if t is not None]
            taken = [elements_of(t) for t in views]
            assert len(frozenset().union(*taken)) == sum(t.numel() for t in views), views
        before = Memory([base])
        with op.set_priority(["vllm_c"]):
            got = op.maybe_inplace(*args)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        assert not before.changed(except_in=[x, r])
    assert accepted > 400


# --- choices


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("no symbol 'norm'"),
        NameError("x"),
        KeyError(1),
        TypeError("three arguments"),
        AssertionError(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("overload", ["op", "maybe_inplace", "torch_op"])
def test_d24_an_implementation_that_breaks_is_named_with_its_cause(error, overload):
    def native(x: Tensor) -> Tensor:
        return x * 2

    def breaks(x: Tensor) -> Tensor:
        raise error

    op = ir.register_op(native, name=new_name("breaks"), allow_inplace=True)
    op.register_impl("mine")(breaks)
    call = op if overload == "op" else getattr(op, overload)
    with op.set_priority(["mine"]), pytest.raises(ir.IrRuntimeError) as caught:
        call(torch.ones(2))
    text = f"vllm_ir.{op.name}.mine: the implementation raised {type(error).__name__}: {error}"
    assert text in str(caught.value)
    assert caught.value.__cause__ is error


def test_d41_outside_of_a_scope_the_default_runs_with_one_notice(caplog):
    """The short form of test_priority_config.py's: here, in a thread, and after the scope."""
    op = ir.register_op(new_toy().impls["native"].impl_fn, name=new_name("unset"))
    op.register_impl("fast")(op.impls["native"].impl_fn)
    x = torch.ones(2)
    with runs(op, native=1):
        op(x)
    with op.set_priority(["fast"]):
        thread = threading.Thread(target=op, args=(x,))
        with runs(op, native=1):
            thread.start()
            thread.join()
        with runs(op, fast=1):
            op(x)
    with runs(op, native=1):
        op(x)
    assert caplog.text.count(f"Priority not set for op {op.name}") == 1


def test_d42_what_stands_behind_a_catch_all_is_said_to_be_unreachable():
    """The notice of a configured list is in test_priority_config.py."""
    op = new_toy("catch_all", "fast")
    for first, *_ in (["native", "fast"], ["catch_all", "fast", "native"]):
        with op.set_priority([first, "fast"]):
            assert op.get_priority() == [first]
            assert "unreachable" in op.dropped()["fast"]
            assert first in op.dropped()["fast"]
            decisions = {d.provider: d for d in op.explain(torch.ones(2)).decisions}
            assert decisions["fast"].status == "unreachable"
            with runs(op, **{first: 1}):
                op(torch.ones(2))
