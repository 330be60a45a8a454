# SPDX-License-Identifier: Apache-2.0
"""Compiled code holds while ops select as they did when it was made, and comes back with that."""

import contextlib
import sys
import threading

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from toys import new_name, toy_native

import vllm_ir as ir
from vllm_ir import log
from vllm_ir.guards import guard_selection

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    """Return how many graphs were compiled in this test."""
    return counters["stats"]["unique_graphs"]


def answering(number: float):
    """Return an implementation that answers with a number, so that results tell who ran."""

    def implementation(
        x: Tensor, y: Tensor | None = None, scale: float = 1.0, n: int | None = None,
        flag: bool = False,
    ) -> Tensor:  # fmt: skip
        return torch.full_like(x, number)

    return implementation


def new_op(**numbers: float) -> ir.IrOp:
    """Declare an op whose native scales by 1, with providers that answer with their numbers."""
    op = ir.register_op(toy_native, name=new_name("guarded"))
    for provider, number in numbers.items():
        op.register_impl(provider, batch_invariant=provider == "steady")(answering(number))
    op.set_default(["native"])
    return op


def compiled(f, **options):
    function = torch.compile(f, fullgraph=True, **(options or {"backend": "vllm_ir"}))

    def call(x=X):
        with torch.no_grad():
            values = set(function(x).unique().tolist())
        (value,) = values
        return value

    return call


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("by", ["default", "scope"])
def test_going_back_uses_the_code_that_is_there(by, raw):
    op = new_op(c=7.0)
    call = compiled(lambda x: (op.torch_op if raw else op)(x))
    answers = []
    for provider in ("c", "native", "c", "native", "c"):
        if by == "default":
            op.set_default([provider])
            answers.append(call())
        else:
            with op.set_priority([provider]):
                answers.append(call())
    assert answers == [7.0, 1.0, 7.0, 1.0, 7.0]
    assert graphs() == 2


@pytest.mark.parametrize("wrapped", [None, True])
def test_inductor_with_our_pass_is_guarded_too(wrapped):
    op = new_op(c=7.0)
    options = {"post_grad_custom_post_pass": ir.compile.PostGradPass()}
    call = compiled(lambda x: op(x), options=options)
    with ir.enable_torch_wrap(True) if wrapped else contextlib.nullcontext():
        answers = []
        for provider in ("c", "native", "c"):
            op.set_default([provider])
            answers.append(call())
    assert answers == [7.0, 1.0, 7.0]
    assert graphs() == 2


def test_another_op_of_the_process_counts_too():
    """A graph may come to call any op that was declared: an implementation or a fusion may."""
    op, other = new_op(c=7.0), new_op(c=8.0)
    call = compiled(lambda x: op(x))
    call()
    other.set_default(["c"])
    call()
    assert graphs() == 2


def test_an_op_that_is_declared_later_changes_nothing():
    op = new_op(c=7.0)
    op.set_default(["c"])
    call = compiled(lambda x: op(x))
    assert call() == 7.0
    later = new_op(c=8.0)
    later.set_default(["c"])
    assert call() == 7.0
    assert graphs() == 1


def test_a_provider_that_registers_later_counts_once_it_is_asked_for():
    op = new_op()
    call = compiled(lambda x: op(x))
    assert call() == 1.0
    op.register_impl("late")(answering(9.0))
    assert call() == 1.0
    assert graphs() == 1
    op.set_default(["late"])
    assert call() == 9.0
    assert graphs() == 2


def test_two_threads_each_see_their_own_choice():
    op = new_op(a=5.0, b=6.0)
    call = compiled(lambda x: op(x))
    start, answers, errors = threading.Barrier(2), {}, []

    def work(provider):
        try:
            with op.set_priority([provider]):
                start.wait(30)
                answers[provider] = {call() for _ in range(20)}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(p,)) for p in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert answers == {"a": {5.0}, "b": {6.0}}
    assert call() == 1.0
    assert graphs() == 3


def test_batch_invariance_recompiles_and_goes_back():
    op = new_op(quick=5.0, steady=6.0)
    op.set_default(["quick", "steady"])
    call = compiled(lambda x: op(x))
    assert call() == 5.0
    ir.set_batch_invariant(True)
    assert call() == 6.0
    ir.set_batch_invariant(False)
    assert call() == 5.0
    assert graphs() == 2


def test_batch_invariance_recompiles_where_the_same_implementation_runs():
    """It decides how code is generated too."""
    op = new_op()
    call = compiled(lambda x: op(x))
    for on in (False, True, False, True):
        ir.set_batch_invariant(on)
        assert call() == 1.0
    assert graphs() == 2


def test_strict_mode_recompiles_and_raises_where_eager_does():
    op = ir.register_op(toy_native, name=new_name("guarded"))

    def never(x, y=None, scale=1.0, n=None, flag=False):
        return False

    op.register_impl("picky", supports_args=never)(answering(5.0))
    op.set_default(["picky", "native"])
    call = compiled(lambda x: op(x))
    assert call() == 1.0
    ir.set_strict(True)
    with pytest.raises(Exception, match="strict mode"):
        call()
    ir.set_strict(False)
    assert call() == 1.0
    assert graphs() == 1


def test_a_change_in_the_middle_of_a_compilation_is_an_error():
    """Another thread changes the priority while Inductor runs: no code must outlive that."""
    op = new_op(c=7.0)
    op.set_default(["c"])

    def meddle(graph):
        thread = threading.Thread(target=op.set_default, args=(["native"],))
        thread.start()
        thread.join()

    function = torch.compile(
        lambda x: op(x) + 1,
        backend="vllm_ir",
        options={"post_grad_custom_post_pass": meddle},
    )
    text = (
        "vllm_ir.compile: priorities must stay as they are while code is compiled, got a change by "
        "another thread. Call the function again."
    )
    with torch.no_grad(), pytest.raises(Exception) as error:  # noqa: PT011
        function(X)
    assert text in str(error.value)


# ---- without torch's private interface -----------------------------------------------------------


def test_without_the_interface_it_says_what_to_do(monkeypatch, caplog):
    monkeypatch.delattr("torch._dynamo.source.ImportSource")
    log.forget_once()
    op = new_op(c=7.0)
    call = compiled(lambda x: op(x))
    assert call() == 1.0
    file = sys.modules["torch._dynamo.source"].__file__
    cause = f"cannot import name 'ImportSource' from 'torch._dynamo.source' ({file})"
    assert [m for m in caplog.messages if "no place" in m] == [
        f"vllm_ir.compile: this torch has no place for a guard on {what} ({cause}). Call "
        "torch.compiler.reset() after changing it."
        for what in ("torch wrap", "priorities")
    ]
    op.set_default(["c"])
    assert call() == 1.0  # nobody has noticed
    torch.compiler.reset()
    assert call() == 7.0
    assert len([m for m in caplog.messages if "no place" in m]) == 2


def test_outside_of_dynamo_there_is_nothing_to_guard():
    guard_selection()  # an engine calls the backend itself
