# SPDX-License-Identifier: Apache-2.0
"""Binding the arguments of a call: every form that Python has, and torch's own errors."""

import decimal
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from toys import new_name, new_pair, new_toy, raises_exactly, runs, toy_native

import vllm_ir as ir
from vllm_ir.errors import IrTypeError

X = torch.arange(4.0)
Y = torch.ones(4)


GOOD_CALLS = {
    "one": ((X,), {}),
    "all positional": ((X, Y, 2.0, 3, True), {}),
    "all keywords": ((), {"x": X, "y": Y, "scale": 2.0, "n": 3, "flag": True}),
    "keywords in another order": ((), {"flag": True, "n": 3, "y": Y, "x": X}),
    "mixed": ((X, Y), {"n": 3}),
    "last only": ((X,), {"flag": True}),
    "None for the optional ones": ((X, None), {"n": None}),
}


@pytest.mark.parametrize("case", GOOD_CALLS)
def test_every_form_of_a_call_gives_the_impl_all_arguments(probe, case):
    args, kwargs = GOOD_CALLS[case]
    probe.seen.clear()
    with runs(probe.op, probe=1):
        result = probe.op(*args, **kwargs)
    expected = probe.op.bind(*args, **kwargs)
    ((*seen,),) = probe.seen
    assert len(seen) == 5
    assert all(a is b for a, b in zip(seen, expected, strict=True))
    torch.testing.assert_close(result, toy_native(*args, **kwargs))


def test_a_keyword_that_is_not_interned(probe):
    name = "".join(["sc", "ale"])
    probe.seen.clear()
    with runs(probe.op, probe=1):
        assert torch.equal(probe.op(X, **{name: 2.0}), X * 2)
    assert probe.seen[0][2] == 2.0


def test_defaults_are_the_very_objects_of_the_signature(probe):
    probe.seen.clear()
    probe.op(X)
    _, y, scale, n, flag = probe.seen[0]
    assert (y, n, flag) == (None, None, False)
    assert scale is probe.op.signature.parameters["scale"].default


BAD_CALLS = {
    "nothing": ((), {}),
    "missing by keyword": ((), {"y": Y}),
    "too many": ((X, Y, 1.0, 1, True, 5), {}),
    "unknown keyword": ((X,), {"eps": 1.0}),
    "given twice": ((X,), {"x": X}),
    "a number for a Tensor": ((3,), {}),
    "an array for a Tensor": ((np.ones(4),), {}),
    "a list for a Tensor": (([1.0],), {}),
    "a number for an optional Tensor": ((X, 3), {}),
    "None for a float": ((X, None, None), {}),
    "a string for a float": ((X, None, "1"), {}),
    "a complex for a float": ((X, None, 2 + 0j), {}),
    "an int that no float holds": ((X, None, 10**400), {}),
    "a string for an int": ((X, None, 1.0, "1"), {}),
    "a float for an int": ((X, None, 1.0, 1.0), {}),
    "an int of 71 bits": ((X, None, 1.0, 2**70), {}),
    "a string for a bool": ((X, None, 1.0, 1, "no"), {}),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_gets_torch_s_own_error(probe, case):
    args, kwargs = BAD_CALLS[case]
    with pytest.raises(Exception) as ours:  # noqa: PT011
        probe.op(*args, **kwargs)
    with pytest.raises(Exception) as torchs:  # noqa: PT011
        probe.op.torch_op(*args, **kwargs)
    assert type(ours.value) is type(torchs.value)
    assert str(ours.value) == str(torchs.value)
    assert isinstance(ours.value, RuntimeError)
    assert f"vllm_ir::{probe.op.name}" in str(ours.value)


def test_none_for_a_tensor(probe):
    text = f"vllm_ir.{probe.op.name}: x must be a Tensor, got None."
    for call in (probe.op, probe.op.torch_op):
        with raises_exactly(IrTypeError, text):
            call(None)


def test_a_bad_call_counts_nothing(probe):
    with runs(probe.op), pytest.raises(RuntimeError):
        probe.op()


ODD_NUMBERS = [
    *(1, 0, True, False, np.float32(0.5), np.float64(0.5), np.float16(0.5), np.int64(3)),
    *(torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64), torch.tensor(3), np.bool_(True)),
    type("MyFloat", (float,), {})(0.5),
]


@pytest.mark.parametrize("value", ODD_NUMBERS, ids=lambda v: f"{type(v).__name__}-{v}")
def test_d44_a_float_parameter_takes_what_torch_takes(probe, value):
    with runs(probe.op, probe=1):
        assert torch.equal(probe.op(X, None, value), X * float(value))
    assert torch.equal(probe.op.torch_op(X, None, value), X * float(value))


@pytest.mark.parametrize("value", [1, True, np.int64(2), np.int32(2), torch.tensor(2)])
def test_an_int_parameter_takes_what_torch_takes(probe, value):
    for call in (probe.op, probe.op.torch_op):
        probe.seen.clear()
        with runs(probe.op, probe=1):
            call(X, None, 1.0, value)
        assert int(probe.seen[0][3]) == int(value)


@pytest.mark.parametrize("value", [1, 0, None, np.bool_(True), torch.tensor(True)])
def test_a_bool_parameter_takes_what_torch_takes(probe, value):
    for call in (probe.op, probe.op.torch_op):
        probe.seen.clear()
        with runs(probe.op, probe=1):
            call(X, None, 1.0, 1, value)
        assert probe.seen[0][4] is bool(value)


EPSILONS = [
    *(1, 0, True, 0.0, 1e-6, np.float32(1e-6), np.float64(1e-6), np.float16(0.5)),
    *(torch.tensor(1e-6), torch.tensor(1e-6, dtype=torch.float64), torch.tensor(1)),
    decimal.Decimal("1e-6"),
]
BAD_EPSILONS = ["1e-6", None, 1j, 10**400, [1e-6], torch.ones(2)]
NORMS = {
    "rms_norm": (torch.linspace(-1, 1, 24).view(3, 8), torch.linspace(1, 2, 8)),
    "fused_add_rms_norm": (
        *(torch.linspace(-1, 1, 24).view(3, 8), torch.linspace(0, 3, 24).view(3, 8)),
        torch.linspace(1, 2, 8),
    ),
}


def results(op, provider, *args):
    with op.set_priority([provider]), runs(op, **{provider: 1}):
        out = op(*args)
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("epsilon", EPSILONS, ids=lambda v: f"{type(v).__name__}-{v}")
def test_d44_every_provider_takes_the_same_epsilons(name, epsilon):
    op, tensors = getattr(ir.ops, name), NORMS[name]
    exact = results(op, "native", *tensors, float(epsilon))
    for provider in op.supported_providers():
        got = results(op, provider, *tensors, epsilon)
        for mine, native in zip(got, exact, strict=True):
            torch.testing.assert_close(mine, native)
        plain = results(op, provider, *tensors, float(epsilon))
        assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("epsilon", BAD_EPSILONS, ids=lambda v: type(v).__name__)
def test_d44_every_provider_refuses_the_same_epsilons(name, epsilon):
    op, tensors = getattr(ir.ops, name), NORMS[name]
    errors = set()
    for provider in op.supported_providers():
        with op.set_priority([provider]), runs(op), pytest.raises(RuntimeError) as error:
            op(*tensors, epsilon)
        errors.add((type(error.value), str(error.value)))
    assert len(errors) == 1


@pytest.mark.parametrize("name", NORMS)
def test_d44_a_row_of_zeros_without_epsilon_is_nan_in_every_provider(name):
    op = getattr(ir.ops, name)
    tensors = [torch.zeros_like(t) for t in NORMS[name]]
    for provider in op.supported_providers():
        assert results(op, provider, *tensors, 0)[0].isnan().all()
        assert not results(op, provider, *tensors, 1)[0].isnan().any()


def test_maybe_inplace_binds_as_the_op_does():
    op = new_pair("fast")
    expected = torch.full((4,), 4.0), torch.full((4,), 2.0)
    for args, kwargs in [
        ((Y.clone(), Y.clone(), 2.0), {}),
        ((Y.clone(),), {"scale": 2.0, "x_other": Y.clone()}),
        ((), {"scale": 2, "x_other": Y.clone(), "x": Y.clone()}),
    ]:
        with runs(op, fast=1):
            got = op.maybe_inplace(*args, **kwargs)
        assert isinstance(got, tuple)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    for args, kwargs in [((), {}), ((Y,), {}), ((Y, Y, 1.0, 1), {}), ((Y, Y), {"scael": 1.0})]:
        with pytest.raises(RuntimeError) as ours:
            op.maybe_inplace(*args, **kwargs)
        with pytest.raises(RuntimeError) as torchs:
            op.maybe_inplace.torch_op(*args, **kwargs)
        assert str(ours.value) == str(torchs.value)


def mixed(x: Tensor, sizes: list[int], mode: str, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).repeat(sizes) * len(mode)


@pytest.fixture(scope="module")
def mixed_op():
    op = ir.register_op(mixed, name=new_name())
    op.set_default(["native"])
    return op


def test_lists_strings_and_dtypes_reach_the_impl(mixed_op):
    with runs(mixed_op, native=1):
        got = mixed_op(Y, [2], "abc", torch.float64)
    assert torch.equal(got, torch.full((8,), 3.0, dtype=torch.float64))


def test_lists_strings_and_dtypes_reach_the_impl_through_torch(mixed_op):
    with runs(mixed_op, native=1):
        got = mixed_op.torch_op(Y, [2], "abc", torch.float64)
    assert torch.equal(got, torch.full((8,), 3.0, dtype=torch.float64))


@pytest.mark.parametrize(
    "args",
    [(Y, "2", "a", torch.float64), (Y, [2], 5, torch.float64), (Y, [1.5], "a", torch.float64)],
    ids=["str for list", "int for str", "floats for ints"],
)
def test_other_types_are_checked_by_torch_too(mixed_op, args):
    with pytest.raises(RuntimeError) as ours:
        mixed_op(*args)
    with pytest.raises(RuntimeError) as torchs:
        mixed_op.torch_op(*args)
    assert str(ours.value) == str(torchs.value)


# ---- binding without a call ----------------------------------------------------------------------


def test_bind_and_apply_arg_defaults():
    op = new_toy()
    assert op.bind(X, n=3) == (X, None, 1.0, 3, False)
    assert op.apply_arg_defaults((X, Y)) == (X, Y, 1.0, None, False)
    assert op.apply_arg_defaults(op.bind(X)) == op.bind(X)


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((X,), {"x": X}, "multiple values for argument 'x'"),
        ((X,), {"eps": 1}, "got an unexpected keyword argument 'eps'"),
        ((X,) * 6, {}, "too many positional arguments"),
    ],
)
def test_binding_errors(args, kwargs, problem):
    op = new_toy()
    text = (
        f"vllm_ir.{op.name}: {problem}. It takes (x: torch.Tensor, y: Optional[torch.Tensor] = "
        "None, scale: float = 1.0, n: Optional[int] = None, flag: bool = False) -> torch.Tensor."
    )
    asks = [op.bind, op.dispatch, op.explain, op.impls["native"].supports_args]
    for ask in asks:
        with raises_exactly(IrTypeError, text):
            ask(*args, **kwargs)
    if not kwargs:
        with raises_exactly(IrTypeError, text):
            op.apply_arg_defaults(args)
    assert issubclass(IrTypeError, TypeError)


def test_asking_about_what_is_no_tensor():
    op = new_toy()
    for ask in (op.dispatch, op.explain, op.impls["native"].supports_args):
        with raises_exactly(IrTypeError, f"vllm_ir.{op.name}: x must be a Tensor, got list."):
            ask([1.0])
    with raises_exactly(IrTypeError, f"vllm_ir.{op.name}: scale must be a float, got str."):
        op.dispatch(X, None, "not a float")


def test_the_norms_check_their_arguments_whatever_the_provider():
    x, w = torch.ones(2, 8), torch.ones(8)
    op = ir.ops.rms_norm
    cases = [
        (
            (torch.tensor(1.0), None, 1e-6),
            ValueError,
            "vllm_ir.rms_norm: x must have at least one dimension, "
            "got a scalar tensor of shape ().",
        ),
        (
            (x.to(torch.int32), None, 1e-6),
            TypeError,
            "vllm_ir.rms_norm: x must be a floating-point tensor, got int32.",
        ),
        (
            (x, w.to(torch.int64), 1e-6),
            TypeError,
            "vllm_ir.rms_norm: weight must be a floating-point tensor, got int64.",
        ),
        (
            (x, w[:7], 1e-6),
            ValueError,
            "vllm_ir.rms_norm: weight must have shape (hidden_size,) = (8,), got (7,).",
        ),
        (
            (x, x, 1e-6),
            ValueError,
            "vllm_ir.rms_norm: weight must have shape (hidden_size,) = (8,), got (2, 8).",
        ),
        (
            (x, w, 1e-6, 0),
            ValueError,
            "vllm_ir.rms_norm: variance_size must be between 1 and hidden_size = 8, got 0.",
        ),
        (
            (x, w, 1e-6, 9),
            ValueError,
            "vllm_ir.rms_norm: variance_size must be between 1 and hidden_size = 8, got 9.",
        ),
    ]
    for provider in op.supported_providers():
        for args, kind, text in cases:
            for call in (op, op.torch_op):
                with op.set_priority([provider, "native"]), pytest.raises(kind) as error:
                    call(*args)
                assert isinstance(error.value, ir.IrError)
                assert str(error.value) == text


def test_the_fused_norm_checks_its_residual_whatever_the_provider():
    x = torch.ones(2, 8)
    op = ir.ops.fused_add_rms_norm
    cases = [
        (
            x.to(torch.int32),
            TypeError,
            "vllm_ir.fused_add_rms_norm: x_residual must be a floating-point tensor, got int32.",
        ),
        (
            x[:1],
            ValueError,
            "vllm_ir.fused_add_rms_norm: x_residual must have x's shape (2, 8), got (1, 8).",
        ),
    ]
    for provider in op.supported_providers():
        for residual, kind, text in cases:
            for call in (op, op.maybe_inplace, op.torch_op):
                with op.set_priority([provider, "native"]), pytest.raises(kind) as error:
                    call(x.clone(), residual, None, 1e-6)
                assert str(error.value) == text
    assert math.isfinite(op(x, x, None, 1e-6)[0].sum())
