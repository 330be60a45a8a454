# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of the passes: every ingredient is in it, by itself."""

import operator

import pytest
import torch
from torch import Tensor
from toys import new_name, new_toy, raises_exactly, toy_native

import vllm_ir as ir
from vllm_ir.compile import CompileConfig, PostGradPass, fingerprint, fusion
from vllm_ir.compile.fusion import KeywordArg, call
from vllm_ir.selection import Request, Selection

X = torch.ones(2, 3)


def now(op, config=None):
    """Return the fingerprint of a graph that calls one op."""
    return fingerprint.of(config or CompileConfig(), Selection.in_force(), frozenset([op.name]))


def native(x: Tensor, x_other: Tensor) -> Tensor:
    return x + x_other


def same(x: Tensor, x_other: Tensor) -> Tensor:
    return x + x_other


def new_sum(**options):
    """Declare an op with a provider; its name is the only thing that differs from another one."""
    op = ir.register_op(native, name=new_name("sum"), **options)
    op.register_impl("mine")(same)
    op.set_default(["mine"])
    return op


def test_it_is_the_same_when_asked_twice():
    op = new_sum()
    assert now(op) == now(op) is not None


def test_each_choice_changes_it():
    op = new_sum()
    seen = {now(op)}
    op.set_default(["native"])
    seen.add(now(op))
    op.set_default(["mine"])
    with op.set_priority(["native"]):
        assert now(op) in seen
    ir.set_strict(True)
    seen.add(now(op))
    ir.set_batch_invariant(True)
    seen.add(now(op))
    ir.set_strict(False)
    seen.add(now(op))
    ir.set_batch_invariant(False)
    for config in (
        CompileConfig(strict_numerics=True),
        CompileConfig(donate_graph_inputs=False),
        CompileConfig(fusions=()),
    ):
        seen.add(now(op, config))
    assert len(seen) == 8
    assert now(op) in seen


def test_the_order_counts_as_far_as_it_can_run():
    op = new_sum()
    op.register_impl("absent", supported=False)(same)
    op.register_impl("picky", supports_args=accepts)(same)
    op.set_default(["mine"])
    before = now(op)
    op.set_default(["absent", "mine"])
    assert now(op) == before
    op.set_default(["mine", "picky"])  # behind one that accepts everything
    assert now(op) == before
    op.set_default(["picky", "mine"])
    assert now(op) not in (None, before)


def accepts(x, x_other):
    return True


@pytest.mark.parametrize(
    "attribute", ["_native", "_schema", "activations", "allow_inplace", "_fake", "impl"]
)
def test_each_fact_about_an_op_changes_it(attribute):
    op = new_sum()
    before = now(op)
    changed = dict(vars(op))
    if attribute == "_fake":
        op.register_fake(same)
    elif attribute == "impl":
        vars(op.impls["mine"])["inplace"] = True
    elif attribute == "_native":
        vars(op.impls["native"])["impl_fn"] = same
    else:
        other = new_sum(activations=["x"]) if attribute == "activations" else new_toy()
        vars(op)[attribute] = {"allow_inplace": True}.get(attribute, vars(other)[attribute])
    assert now(op) not in (None, before)
    vars(op).update(changed)


def test_native_counts_even_where_it_is_not_in_the_order():
    """Autograd takes native where a gradient is needed, and its result goes into caches too."""
    op = new_sum()
    assert Selection.in_force().providers(op) == ["mine"]
    before = now(op)
    vars(op.impls["native"])["impl_fn"] = toy_native
    assert now(op) not in (None, before)


def test_versions_count(monkeypatch):
    op = new_sum()
    seen = {now(op)}
    for name, value in {
        "torch.__version__": "0.0",
        "vllm_ir.compile.fingerprint.OWN_SOURCES": "edited",
        "vllm_ir.compile.fingerprint.library_digest": lambda path: "rebuilt",
        "torch.backends.cpu.get_cpu_capability": lambda: "OTHER",
    }.items():
        with monkeypatch.context() as patched:
            patched.setattr(name, value)
            seen.add(now(op))
    assert len(seen) == 5


def test_the_platform_counts():
    class Elsewhere(ir.Platform):
        name = "elsewhere_of_test"

        def get_default_ir_op_priority(self, compiling=False):
            return platform.get_default_ir_op_priority(compiling)

    op, platform = new_sum(), ir.current_platform()
    before = now(op)
    ir.set_platform(Elsewhere())
    try:
        assert now(op) not in (None, before)
    finally:
        ir.set_platform(None)
    assert now(op) == before


def test_a_selection_that_was_taken_down_is_what_counts():
    op = new_sum()
    taken = Selection.in_force()
    before = now(op)
    op.set_default(["native"])
    assert fingerprint.of(CompileConfig(), taken, frozenset([op.name])) == before != now(op)
    requests = {**taken.requests, op.name: Request(("native",), ())}
    assert fingerprint.of(CompileConfig(), Selection(requests), frozenset([op.name])) == now(op)


def test_a_selection_with_a_name_that_is_unknown_here_is_an_error():
    op = new_sum()
    selection = Selection({**Selection.in_force().requests, op.name: Request(("nobody",), ())})
    text = f"vllm_ir.{op.name}: unknown provider 'nobody'. Known: mine, native."
    with raises_exactly(ir.UnknownNameError, text):
        fingerprint.of(CompileConfig(), selection, frozenset([op.name]))


# ---- which ops count -----------------------------------------------------------------------------


class Scale:
    factor = 2.0


def with_state(x: Tensor, x_other: Tensor) -> Tensor:
    return x * _scale.factor


_scale = Scale()


def test_an_op_that_has_no_identity_matters_where_it_may_occur(caplog):
    op, other = new_sum(), new_sum()
    before = now(op)
    other.register_impl("stateful")(with_state)
    other.set_default(["stateful"])
    assert now(op) == before
    assert caplog.messages == []
    assert now(other) is None
    assert fingerprint.of(CompileConfig(), Selection.in_force()) is None
    assert caplog.messages == [
        f"vllm_ir.{other.name}.stateful: compile caches need to know what decides the result, got "
        "the state of a Scale object ('_scale.factor' in with_state()). They are bypassed: each "
        "process compiles anew. Use functions in files, plain values and frozen dataclasses."
    ]
    other.set_default(["mine"])
    assert fingerprint.of(CompileConfig(), Selection.in_force()) is not None


def test_an_op_that_an_implementation_calls_counts():
    inner, outer = new_sum(), new_sum()

    def calls(x: Tensor, x_other: Tensor) -> Tensor:
        return inner(x, x_other)

    outer.register_impl("calls")(calls)
    outer.set_default(["calls"])
    before = now(outer)
    inner.set_default(["native"])
    assert now(outer) not in (None, before)


def test_an_op_that_a_fusion_makes_counts():
    inner, outer = new_sum(), new_sum()
    pattern = call(torch.ops.aten.mul.Tensor, call(outer, KeywordArg("x"), KeywordArg("y")), 2.0)

    @fusion.register_fusion("fingerprint_of_test", pattern)
    def fused(x, y):
        return inner(x, y)

    try:
        before = now(outer)
        inner.set_default(["native"])
        assert now(outer) not in (None, before)
    finally:
        fusion.unregister("fingerprint_of_test")


def test_a_fusion_without_an_identity_bypasses_caches(caplog):
    op = new_sum()

    @fusion.register_pass("stateful_of_test")
    def stateful(rewriter):
        return _scale.factor

    try:
        assert now(op) is None
        assert now(op, CompileConfig(fusions=())) is not None
    finally:
        fusion.unregister("stateful_of_test")
    assert caplog.messages == [
        "vllm_ir.fusion.stateful_of_test: compile caches need to know what decides the result, got "
        "the state of a Scale object ('_scale.factor' in test_a_fusion_without_an_identity_bypasses"
        "_caches.<locals>.stateful()). They are bypassed: each process compiles anew. Use functions"
        " in files, plain values and frozen dataclasses."
    ]


def test_this_package_s_own_ops_always_count():
    op = new_sum()
    before = now(op)
    with ir.ops.rms_norm.set_priority(["vllm_c", "native"]):
        assert now(op) not in (None, before)


def graph_of(*calls):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for target in calls:
        x = graph.call_function(target, (x,))
    graph.output(x)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def somebody_s(x):
    return x


def test_the_ops_of_a_graph():
    op, norm = new_toy(), ir.ops.rms_norm
    torchs = (operator.neg, torch.sin, torch.ops.aten.cos.default, torch.ops.aten.cos)
    gm = graph_of(op.torch_op, *torchs, norm.torch_op)
    assert fingerprint.ops_called(gm) == {op.name, "rms_norm"}
    gm.add_submodule("body", graph_of(ir.ops.fused_add_rms_norm.torch_op))
    assert fingerprint.ops_called(gm) == {op.name, "rms_norm", "fused_add_rms_norm"}
    assert fingerprint.ops_called(graph_of(somebody_s)) is None
    assert fingerprint.ops_called(graph_of(torch.ops.vllm_ir_C.rms_norm.default)) is None


def test_batch_invariance_defines_the_operators_that_cached_code_calls():
    """Each pair of op and provider has its own, whatever underscores their names have."""
    impls = []
    for name, provider in (("of_test", "a__b"), ("of_test__a", "b")):
        op = ir.register_op(native, name=name)
        impls.append(op.register_impl(provider, batch_invariant=True)(same))
        op.set_default([provider])
    ir.set_batch_invariant(True)
    assert PostGradPass(ops=frozenset(i.op.name for i in impls)).uuid() is not None
    for impl in impls:
        for provider in (impl.provider, "native"):
            made = getattr(torch.ops.vllm_ir_eager, f"{impl.op.name}_BY_{provider}")
            assert torch.equal(made(X, X), X + X)


def test_it_costs_little_when_asked_again():
    import time

    config, selection = CompileConfig(), Selection.in_force()
    shipped = frozenset(["rms_norm", "fused_add_rms_norm"])
    fingerprint.of(config, selection, shipped)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        fingerprint.of(config, selection, shipped)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.02  # 0.4 ms on an idle machine
