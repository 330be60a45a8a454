# SPDX-License-Identifier: Apache-2.0
"""What an implementation or a predicate can do wrong, and who is told."""

import gc
import re
import traceback
import weakref

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toys import new_name, new_pair, new_toy, raises_exactly, runs, same_as, toy_native

import vllm_ir as ir
from vllm_ir.errors import IrError, IrRuntimeError, IrTypeError

X = torch.ones(2)


def op_with(body, native=toy_native, **options):
    """Return an op whose first provider, `bad`, does what `body` does."""
    op = ir.register_op(native, name=new_name(), allow_inplace=native is not toy_native)

    def bad(*args):
        return body(*args)

    bad.__wrapped__ = native
    op.register_impl("bad", **options)(bad)
    op.set_default(["bad"])
    return op


def routes(op):
    return [op, op.torch_op]


def raiser(error):
    def body(*args):
        raise error

    return body


def pair(x: Tensor, x_other: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x_other + 1


# ---- the body raises -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("module 'lib' has no attribute 'rms_norm'"),
        ImportError("libkernel.so"),
        KeyError("x"),
        ValueError("a\nb"),
        TypeError("unexpected keyword"),
        AssertionError(),
        ZeroDivisionError("by zero"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_d24_an_impl_that_raises_is_named_with_the_cause(error):
    op = op_with(raiser(error))
    text = (
        f"vllm_ir.{op.name}.bad: the implementation raised {type(error).__name__}: {error}. "
        "Mend it, or remove 'bad' from the priority list."
    )
    for call in routes(op):
        with runs(op, bad=1), pytest.raises(IrRuntimeError) as raised:
            call(X)
        assert type(raised.value) is IrRuntimeError
        assert str(raised.value) == text
        assert raised.value.__cause__ is error
    assert issubclass(IrRuntimeError, RuntimeError)
    assert issubclass(IrRuntimeError, IrError)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes"),
        torch.OutOfMemoryError("no memory"),
        NotImplementedError("not yet"),
        IrTypeError("vllm_ir.x: ours"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_torch_s_own_errors_and_ours_keep_their_class_and_text(error):
    op = op_with(raiser(error))
    for call in routes(op):
        with pytest.raises(type(error), match=re.escape(str(error))) as raised:
            call(X)
        assert raised.value is error


def frames(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_the_traceback_shows_where_the_impl_failed(error):
    def fails_here(*args):
        raise error("x")

    op = op_with(fails_here)
    for call in routes(op):
        with pytest.raises(RuntimeError) as raised:
            call(X)
        assert "fails_here" in frames(raised.value.__cause__ or raised.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes(error):
    op = op_with(raiser(error()))
    for call in routes(op):
        with pytest.raises(error) as raised:
            call(X)
        assert type(raised.value) is error


def test_native_s_own_errors_are_left_alone():
    def native(x: Tensor) -> Tensor:
        raise LookupError("native says so")

    op = ir.register_op(native, name=new_name())
    op.set_default(["native"])
    for call in routes(op):
        with raises_exactly(LookupError, "native says so"):
            call(X)


def test_a_failed_call_can_be_repeated_and_others_work():
    op = op_with(raiser(AttributeError("x")))
    for _ in range(3):
        with pytest.raises(IrRuntimeError):
            op(X)
    with op.set_priority(["native"]), runs(op, native=1):
        assert torch.equal(op(X), X)


def test_a_failure_keeps_no_reference_to_the_arguments():
    def fail(*args):
        raise AttributeError("x")

    op = op_with(fail)
    for call in routes(op):
        x = torch.ones(3)
        alive = weakref.ref(x)
        with pytest.raises(IrRuntimeError):
            call(x)
        del x
        gc.collect()
        assert alive() is None


@pytest.mark.parametrize("wrap", [True, False])
def test_under_a_mode_the_provider_is_named_as_well(wrap):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    op = op_with(raiser(AttributeError("gone")))
    text = (
        f"vllm_ir.{op.name}.bad: the implementation raised AttributeError: gone. "
        "Mend it, or remove 'bad' from the priority list."
    )
    with ir.enable_torch_wrap(wrap), Mode(), raises_exactly(IrRuntimeError, text):
        op(X)


# ---- the body returns something else -------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "must return a Tensor for each output, got NoneType"),
        (5, "must return a Tensor for each output, got int"),
        ("x", "must return a Tensor for each output, got str"),
        ({"x": X}, "must return a Tensor for each output, got dict"),
        ((X, X), "must return 1 tensor(s), got 2"),
        ((), "must return 1 tensor(s), got 0"),
        ([None], "must return a Tensor for each output, got NoneType"),
    ],
    ids=str,
)
def test_wrong_results_of_an_op_with_one_output(result, problem):
    op = op_with(lambda *args: result)
    for call in routes(op):
        with raises_exactly(
            IrTypeError, f"vllm_ir.{op.name}.bad: {problem}. Mend the implementation."
        ):
            call(X)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (X, "must return 2 tensors, got Tensor"),
        (None, "must return 2 tensors, got NoneType"),
        ((X,), "must return 2 tensor(s), got 1"),
        ((X, X, X), "must return 2 tensor(s), got 3"),
        ((X, None), "must return a Tensor for each output, got NoneType"),
        ((3, X), "must return a Tensor for each output, got int"),
        (iter([X, X]), "must return 2 tensors, got list_iterator"),
    ],
    ids=str,
)
@pytest.mark.parametrize("inplace", [True, False])
def test_wrong_results_of_an_op_with_two_outputs(result, problem, inplace):
    op = op_with(lambda *args: result, pair, inplace=inplace)
    text = f"vllm_ir.{op.name}.bad: {problem}. Mend the implementation."
    for call in [*routes(op), *routes(op.maybe_inplace)]:
        with raises_exactly(IrTypeError, text):
            call(X.clone(), X.clone())


def test_a_list_and_a_tuple_of_the_right_length_are_fine():
    for kind in (list, tuple):
        op = op_with(lambda x, y, kind=kind: kind((x + 1, y + 2)), pair)
        for call in routes(op):
            got = call(X, X)
            assert isinstance(got, tuple)
            assert [g.tolist() for g in got] == [[2.0] * 2, [3.0] * 2]
    op = op_with(lambda *args: [args[0] + 1])
    for call in routes(op):
        assert call(X).tolist() == [2.0, 2.0]


def test_a_native_with_a_wrong_result_is_named():
    def native(x: Tensor) -> Tensor:
        return None

    op = ir.register_op(native, name=new_name())
    op.set_default(["native"])
    text = (
        f"vllm_ir.{op.name}.native: must return a Tensor for each output, got NoneType. "
        "Mend the implementation."
    )
    for call in routes(op):
        with raises_exactly(IrTypeError, text):
            call(X)


# ---- predicates ----------------------------------------------------------------------------------


def asked_op(answer, **options):
    op = new_toy()
    op.register_impl("asked", supports_args=answer, **options)(same_as(toy_native))
    op.set_default(["asked", "native"])
    return op


def test_a_predicate_gets_the_call_s_own_arguments_with_defaults():
    seen = []
    op = asked_op(lambda *args: seen.append(args) or True)
    x, scale = torch.ones(2), float("0.5")
    op(x, scale=scale)
    ((got_x, y, got_scale, n, flag),) = seen
    assert got_x is x
    assert got_scale is scale
    assert (y, n, flag) == (None, None, False)


def boom(*args):
    raise ValueError("boom")


MISBEHAVIOURS = {
    "raises": (boom, "supports_args raised ValueError: boom"),
    "None": (lambda *args: None, "supports_args returned NoneType, not a bool"),
    "int": (lambda *args: 1, "supports_args returned int, not a bool"),
    "a tensor": (lambda *args: args[0].sum() > 0, "supports_args returned Tensor, not a bool"),
    "numpy": (
        lambda *args: args[0].numpy().any(),
        "supports_args returned numpy.bool, not a bool",
    ),
}


@pytest.mark.parametrize("case", MISBEHAVIOURS)
def test_a_predicate_that_misbehaves_rejects_with_one_notice(case, caplog):
    answer, reason = MISBEHAVIOURS[case]
    op = asked_op(answer)
    for _ in range(2):
        for call in routes(op):
            with runs(op, native=1):
                call(X)
    assert caplog.messages == [
        f"vllm_ir.{op.name}.asked: rejected: {reason}. Strict mode raises here."
    ]
    decision = op.explain(X).decisions[0]
    assert (decision.provider, decision.status, decision.reason) == ("asked", "rejected", reason)
    assert op.dispatch(X).provider == "native"
    assert op.impls["asked"].supports_args(X) is False


@pytest.mark.parametrize("case", MISBEHAVIOURS)
def test_strict_mode_raises_where_a_predicate_misbehaves(case):
    answer, reason = MISBEHAVIOURS[case]
    op = asked_op(answer)
    ir.set_strict(True)
    text = f"vllm_ir.{op.name}.asked: strict mode: {reason}."
    for call in [*routes(op), op.explain, op.dispatch]:
        with raises_exactly(IrRuntimeError, text):
            call(X)


def test_a_plain_false_is_no_misbehaviour(caplog):
    op = asked_op(lambda *args: False)
    op(X)
    assert op.explain(X).decisions[0].reason == "supports_args returned False"
    assert caplog.messages == []


def test_different_misbehaviours_of_one_predicate_are_different_notices(caplog):
    answers = iter([1, "text", 2, "more"])
    op = asked_op(lambda *args: next(answers))
    for _ in range(4):
        op(X)
    assert [m.split("rejected: ")[1] for m in caplog.messages] == [
        "supports_args returned int, not a bool. Strict mode raises here.",
        "supports_args returned str, not a bool. Strict mode raises here.",
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_exception_passes_a_predicate(error, caplog):
    def answer(*args):
        raise error

    op = asked_op(answer)
    for call in routes(op):
        with pytest.raises(error):
            call(X)
    assert caplog.messages == []


@pytest.mark.parametrize("memoise", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_a_predicate_must_not_write_its_arguments(memoise, strict):
    op = asked_op(lambda *args: args[0].add_(1) is not None, memoise=memoise)
    ir.set_strict(strict)
    text = (
        f"vllm_ir.{op.name}.asked: supports_args modified one of its arguments in place. "
        "It may only look."
    )
    for call in [*routes(op), op.explain, op.dispatch]:
        with runs(op), raises_exactly(IrRuntimeError, text):
            call(torch.ones(2))


def test_a_predicate_that_writes_and_raises_is_caught_as_well():
    def answer(*args):
        args[0].zero_()
        raise ValueError("after writing")

    op = asked_op(answer)
    with pytest.raises(IrRuntimeError, match="modified one of its arguments"):
        op(torch.ones(2))


def test_a_predicate_of_an_in_place_op_sees_the_caller_s_tensors():
    op, seen = new_pair(), []

    def answer(x, x_other, scale=1.0):
        seen.append(x)
        return True

    @op.register_impl("fast", inplace=True, supports_args=answer)
    def fast(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return x.add_(x_other), x_other

    op.set_default(["fast"])
    x = torch.ones(2)
    with runs(op, fast=1):
        op(x, torch.ones(2))
    assert seen[0] is x
    assert x.tolist() == [1.0, 1.0]
