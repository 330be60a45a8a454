# SPDX-License-Identifier: Apache-2.0
"""Dynamo, Inductor and export see one opaque op, without this project's own backend."""

import pytest
import torch
from toys import new_pair, new_toy, runs

import vllm_ir as ir

X = torch.linspace(-1, 1, 24).view(3, 8)
W = torch.linspace(1, 2, 8)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def traced(f, *args):
    """Compile with fullgraph; return the result, and target and arguments of each op call."""
    calls = []

    def backend(graph, inputs):
        nodes = graph.graph.nodes
        calls.extend((n.target, n.args, n.kwargs) for n in nodes if n.op == "call_function")
        return graph.forward

    return torch.compile(f, backend=backend, fullgraph=True)(*args), calls


def test_a_call_becomes_the_torch_op_with_positions_in_place_of_keywords():
    op = new_toy()
    with runs(op, native=1):
        result, calls = traced(lambda x, y: op(flag=True, y=y, x=x, scale=2.0), X, X)
    assert torch.equal(result, X * 2 + X)
    ((target, args, kwargs),) = calls
    assert target is op.torch_op
    assert kwargs == {}
    assert [a for a in args if not isinstance(a, torch.fx.Node)] == [2.0, None, True]
    assert len(args) == 5


def test_defaults_are_filled_in():
    op = new_toy()
    _, ((_, args, _),) = traced(lambda x: op(x), X)
    assert args[1:] == (None, 1.0, None, False)


@pytest.mark.parametrize("overload", ["default", "maybe_inplace"])
def test_both_overloads_of_the_fused_norm(overload):
    op = ir.ops.fused_add_rms_norm

    def f(x, residual, w):
        call = op if overload == "default" else op.maybe_inplace
        return call(x, residual, weight=w, epsilon=1e-6)

    expected = op.impls["native"].impl_fn(X, X + 1, W, 1e-6)
    result, calls = traced(f, X.clone(), X + 1, W)
    targets = [c[0] for c in calls if isinstance(c[0], torch._ops.OpOverload)]
    assert targets == [getattr(torch.ops.vllm_ir.fused_add_rms_norm, overload)]
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_an_op_in_a_module_attribute_and_in_a_closure():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = ir.ops.rms_norm
            self.weight = torch.nn.Parameter(W.clone(), requires_grad=False)

        def forward(self, x):
            return self.norm(x, self.weight, 1e-6) + ir.ops.rms_norm(x, None, epsilon=1e-6)

    layer = Layer()
    result, calls = traced(layer, X)
    assert [c[0] for c in calls].count(torch.ops.vllm_ir.rms_norm.default) == 2
    torch.testing.assert_close(result, layer(X))


def test_an_epsilon_that_is_an_int_and_a_module_attribute():
    result, calls = traced(lambda x: ir.ops.rms_norm(x, None, 1), X)
    torch.testing.assert_close(result, ir.ops.rms_norm(X, None, 1))
    assert calls[0][1][2] == 1


def test_binding_errors_under_dynamo_name_the_argument():
    op = new_toy()
    for f in (lambda x: op(x, eps=1.0), lambda x: op(), lambda x: op(x, x=x)):
        with pytest.raises(Exception) as error:  # noqa: PT011
            torch.compile(f, backend="eager", fullgraph=True)(X)
        assert any(word in str(error.value) for word in ("eps", "missing", "multiple"))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # Inductor's own
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_plain_torch_compile_works(backend):
    norm, fused = ir.ops.rms_norm, ir.ops.fused_add_rms_norm

    def f(x, residual, w):
        y, total = fused(x, residual, w, 1e-6)
        return norm(y, w, 1e-5) * 2, total

    expected = f(X, X + 1, W)
    with runs(norm, vllm_c=1), runs(fused, vllm_c=1), ir.enable_torch_wrap(True):
        got = torch.compile(f, backend=backend, fullgraph=True)(X, X + 1, W)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_through_plain_torch_compile():
    op = ir.ops.rms_norm
    f = torch.compile(lambda x, w: op(x, w, 1e-6).sin(), backend="aot_eager", fullgraph=True)
    mine, theirs = (t.clone().requires_grad_() for t in (X, X))
    with op.set_priority(["vllm_c"]):
        f(mine, W).sum().backward()
    op.impls["native"].impl_fn(theirs, W, 1e-6).sin().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_one_graph_for_every_batch_size():
    compiles = []

    def backend(graph, inputs):
        compiles.append(graph)
        return graph.forward

    f = torch.compile(
        lambda x: ir.ops.rms_norm(x, None, 1e-6), backend=backend, dynamic=True, fullgraph=True
    )
    for rows in (3, 300, 301, 17):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(f(x), ir.ops.rms_norm(x, None, 1e-6))
    assert len(compiles) == 1


def test_a_priority_change_after_compiling_takes_effect():
    op = ir.ops.rms_norm
    f = torch.compile(lambda x: op(x, None, 1e-6), backend="aot_eager", fullgraph=True)
    with runs(op, vllm_c=1):
        f(X)
    with op.set_priority(["native"]), runs(op, native=1):
        f(X)


@pytest.mark.parametrize("strict", [True, False])
def test_export_keeps_the_op(strict):
    class Layer(torch.nn.Module):
        def forward(self, x, w):
            return ir.ops.rms_norm(x, weight=w, epsilon=1e-6)

    program = torch.export.export(Layer(), (X, W), strict=strict)
    targets = [n.target for n in program.graph.nodes if n.op == "call_function"]
    assert targets == [torch.ops.vllm_ir.rms_norm.default]
    torch.testing.assert_close(program.module()(X, W), ir.ops.rms_norm(X, W, 1e-6))


def test_fake_results_have_the_shape_dtype_and_strides_of_real_ones():
    layouts = [X, X.t(), X.to(torch.bfloat16), torch.ones(2, 3, 16)[:, :, ::2], X[:1].expand(4, 8)]
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in layouts]
    for x, fake in zip(layouts, fakes, strict=True):
        for provider in ir.ops.rms_norm.supported_providers():
            with ir.ops.rms_norm.set_priority([provider, "native"]):
                real = ir.ops.rms_norm(x, None, 1e-6)
            got = ir.ops.rms_norm(fake, None, 1e-6)
            assert (got.shape, got.dtype, got.stride()) == (real.shape, real.dtype, real.stride())


# ---- opcheck -------------------------------------------------------------------------------------


def opcheck(op, *args, **kwargs):
    report = torch.library.opcheck(op, args, kwargs, raise_exception=False)
    return {name: str(result) for name, result in report.items()}


def all_good(report):
    return dict.fromkeys(report, "SUCCESS")


SAMPLES = {
    "contiguous": (X, W),
    "no weight": (X, None),
    "bfloat16": (X.bfloat16(), W.bfloat16()),
    "sliced": (torch.randn(4, 3, 16)[:, :, :8], W),
}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("library", ["vllm_ir", "vllm_ir_C"])
def test_opcheck_of_rms_norm(library, sample):
    x, w = SAMPLES[sample]
    op = getattr(torch.ops, library).rms_norm.default
    for size in (None, 4):
        report = opcheck(op, x.clone(), w, 1e-6, size)
        assert report == all_good(report)
        assert len(report) >= 4


@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck_of_fused_add_rms_norm(sample):
    x, w = SAMPLES[sample]
    report = opcheck(torch.ops.vllm_ir.fused_add_rms_norm.default, x.clone(), x + 1, w, 1e-6)
    assert report == all_good(report)
    report = opcheck(torch.ops.vllm_ir_C.fused_add_rms_norm_.default, x.clone(), x + 1, w, 1e-6)
    assert report == all_good(report)


def test_opcheck_of_a_declared_op_with_gradients():
    op = new_toy("a")
    op.set_default(["a"])
    x = X.clone().requires_grad_()
    report = opcheck(op.torch_op, x, X, 2.0, 3, True)
    assert report == all_good(report)


def test_opcheck_of_maybe_inplace_with_an_in_place_impl():
    for overload, more in (
        (torch.ops.vllm_ir.fused_add_rms_norm.maybe_inplace, (W, 1e-6)),
        (new_pair("fast").maybe_inplace.torch_op, ()),
    ):
        report = opcheck(overload, X.clone(), X + 1, *more)
        assert report == all_good(report)


def test_opcheck_of_maybe_inplace_with_an_impl_that_is_not_in_place():
    op = new_pair()
    report = opcheck(op.maybe_inplace.torch_op, X.clone(), X + 1)
    assert report == all_good(report)


def test_a_compiled_graph_that_donates_gives_what_eager_gives():
    def f(x, residual, w):
        out, total = ir.ops.fused_add_rms_norm.maybe_inplace(x @ w, residual @ w, None, 1e-6)
        return out, total, (x + 1) @ w, (x + 2) @ w

    x, residual, w = (torch.randn(16, 16) for _ in range(3))
    with ir.ops.fused_add_rms_norm.set_priority(["vllm_c", "native"]), torch.no_grad():
        expected = f(x, residual, w)
        got = torch.compile(f)(x, residual, w)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
