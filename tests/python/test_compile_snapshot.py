# SPDX-License-Identifier: Apache-2.0
"""A graph is lowered by the selection that was in force when it was handed over, wherever it is."""

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from toys import new_name, new_toy, raises_exactly, runs, toy_native

import vllm_ir as ir
from vllm_ir.compile import sink
from vllm_ir.selection import Request, Selection

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def with_an_op_in_its_backward_graph(op, **options):
    """Return a compiled function of (x, constant); its backward graph calls the op again."""

    def product(x, constant):
        return op(constant, None, 2.0) * x

    def f(x, constant):
        return checkpoint(product, x.sin(), constant, use_reentrant=False).sum()

    return torch.compile(f, fullgraph=True, **(options or {"backend": "vllm_ir"}))


def selected(report: ir.compile.CompileReport) -> dict[str, list[str]]:
    return {g.kind: [n.selected for n in g.nodes] for g in report.graphs}


def leaf() -> Tensor:
    return X.clone().requires_grad_()


@pytest.mark.parametrize("where", ["same thread", "another thread"])
def test_a_backward_graph_that_is_compiled_later(where):
    op = new_toy("a", "b")
    f, x = with_an_op_in_its_backward_graph(op), leaf()
    with op.set_priority(["a"]):
        loss = f(x, X)
    assert selected(ir.explain(f)) == {"forward": ["a"]}
    with op.set_priority(["b"]):
        if where == "same thread":
            loss.backward()
        else:
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
    assert selected(ir.explain(f)) == {"forward": ["a"], "backward": ["a"]}
    torch.testing.assert_close(x.grad, 2 * X.cos())


def test_a_switch_that_changed_before_the_backward_graph_was_compiled_is_an_error():
    """The graph would be kept with the forward graph, under the switches of that one."""
    op = new_toy("a")
    op.set_default(["a"])
    for name, switch in {
        "strict": ir.set_strict,
        "batch_invariant": ir.set_batch_invariant,
    }.items():
        f = with_an_op_in_its_backward_graph(op)
        loss = f(leaf(), X)
        switch(True)
        text = (
            f"vllm_ir.compile: {name} must stay as it was when the compilation began, False, got "
            "True. Set it back, or call torch.compiler.reset()."
        )
        with pytest.raises(Exception) as error:  # noqa: PT011
            loss.backward()
        assert text in str(error.value)
        switch(False)
        torch._dynamo.reset()


def test_a_selection_pickles_and_compares():
    op = new_toy("a")
    with op.set_priority(["a"]):
        taken = Selection.in_force()
    assert taken.requests[op.name] == Request(("a",), ())
    assert taken.providers(op) == ["a"]
    assert pickle.loads(pickle.dumps(taken)) == taken
    assert copy.deepcopy(taken) == taken
    assert taken != Selection.in_force()


def test_a_selection_is_right_for_the_switches_that_were_on():
    op = new_toy("a")
    taken = Selection.in_force()
    ir.set_batch_invariant(True)
    text = (
        "vllm_ir.compile: batch_invariant must stay as it was when the compilation began, False, "
        "got True. Set it back, or call torch.compiler.reset()."
    )
    for ask in (lambda: taken.providers(op), lambda: taken.select(op, (X, None, 1.0, None, False))):
        with raises_exactly(ir.IrRuntimeError, text):
            ask()
    assert Selection.in_force().batch_invariant


def test_an_op_that_a_selection_does_not_know_is_asked_about_when_it_is_met():
    taken = Selection.in_force()
    op = ir.register_op(toy_native, name=new_name())
    op.set_default(["native"])
    assert taken.providers(op) == ["native"]


# ---- the pass that carries it --------------------------------------------------------------------


@pytest.mark.parametrize(
    "made", [lambda p: p, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_a_copy_of_the_pass_does_the_same_and_reports_to_the_same_place(made):
    op = new_toy("a", "b")
    with op.set_priority(["a"]):
        lowering = ir.compile.PostGradPass(selection=Selection.in_force())
    copied = made(lowering)
    assert copied.uuid() == lowering.uuid()
    f = torch.compile(
        lambda x: op(x) * 3, options={"post_grad_custom_post_pass": copied}, fullgraph=True
    )
    with torch.no_grad(), op.set_priority(["b"]), runs(op):
        torch.testing.assert_close(f(X), X * 3)
    for one in (lowering, copied):
        assert [list(n.values()) for n in one.selected_impls.values()] == [["a"]]


def test_a_pass_without_a_selection_lowers_both_graphs_by_the_same():
    op = new_toy("a", "b")
    lowering = ir.compile.PostGradPass()
    f = with_an_op_in_its_backward_graph(op, options={"post_grad_custom_post_pass": lowering})
    for scope, other in (("a", "b"), ("b", "a")):
        torch._dynamo.reset()
        sink.open_entry(lowering.key)
        x = leaf()
        with op.set_priority([scope]):
            loss = f(x, X)
        with op.set_priority([other]):
            loss.backward()
        assert [(r.kind, r.nodes[0].selected) for r in lowering.reports] == [
            ("forward", scope),
            ("backward", scope),
        ]
        torch.testing.assert_close(x.grad, 2 * X.cos())


def test_a_pass_without_a_selection_uses_what_is_in_force():
    op = new_toy("a", "b")
    lowering = ir.compile.PostGradPass()
    with op.set_priority(["a"]):
        first = lowering.uuid()
    with op.set_priority(["b"]):
        assert lowering.uuid() != first


def test_the_pass_tells_of_every_graph():
    op = new_toy("a")
    lowering = ir.compile.PostGradPass()
    f = torch.compile(lambda x: op(x) * 3, options={"post_grad_custom_post_pass": lowering})
    with torch.no_grad():
        for dtype, provider in ((torch.float32, "a"), (torch.float64, "native")):
            with op.set_priority([provider]):
                f(X.to(dtype))
    assert lowering.selected_impls == {op.name: {op.name: "a", f"{op.name}@1": "native"}}


def test_two_passes_keep_their_reports_apart():
    first, second = ir.compile.PostGradPass(), ir.compile.PostGradPass()
    assert first.key != second.key
