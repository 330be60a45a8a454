# SPDX-License-Identifier: Apache-2.0
"""The backend under Inductor's options, in threads, nested, and around graph breaks."""

import threading

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import vllm_ir as ir

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

NORM, FUSED = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
X = torch.linspace(-1, 1, 64).view(4, 16)


@pytest.fixture(autouse=True)
def vllm_c_first():
    torch._dynamo.reset()
    for op in (NORM, FUSED):
        op.set_default(["vllm_c"])
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class Layer(torch.nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(1, 2, 16))
        self.linear = torch.nn.Linear(16, 16)
        self.breaks = breaks

    def forward(self, x, residual):
        x, residual = FUSED.maybe_inplace(x, residual, self.weight, 1e-6)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.linear(x).relu(), residual


class Net(torch.nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Layer(breaks) for _ in range(3))

    def forward(self, x):
        x, residual = x * 2, x + 1
        for layer in self.layers:
            x, residual = layer(x, residual)
        return x, residual


def kept(report):
    return [c.reason for n in report.nodes for c in n.clones if c.kept]


@pytest.mark.parametrize(
    "options",
    [
        {"reorder_for_locality": False},
        {"memory_planning": True},
        {"allow_buffer_reuse": False},
        {"freezing": True},
        {"pattern_matcher": False},
        {"dce": True},
        {"force_disable_caches": True},
        {"inplace_buffers": False},
        pytest.param({"cpp_wrapper": True}, marks=pytest.mark.slow),
    ],
    ids=lambda o: next(iter(o)),
)
def test_inductor_s_options_change_nothing(options):
    net = Net()
    compiled = ir.compile(net, fullgraph=True, options=options)
    before = X.clone()
    torch.testing.assert_close(compiled(X), net(X))
    assert torch.equal(X, before)
    report = ir.explain(compiled)
    assert [n.selected for n in report.nodes] == ["vllm_c"] * 3
    assert kept(report) == []


def test_graph_breaks():
    net = Net(breaks=True)
    compiled = ir.compile(net)
    before = X.clone()
    torch.testing.assert_close(compiled(X), net(X))
    assert torch.equal(X, before)
    report = ir.explain(compiled)
    assert [n.selected for n in report.nodes] == ["vllm_c"]  # one graph serves all layers
    assert kept(report) == []  # what crosses a break is an input of the next graph, and donated


def test_a_compiled_function_inside_a_compiled_function():
    inner = ir.compile(lambda x: NORM(x, None, 1e-6) + 1)

    def outer(x):
        return inner(x * 2) * 3

    torch.testing.assert_close(ir.compile(outer)(X), (NORM(X * 2, None, 1e-6) + 1) * 3)


def test_a_nested_region():
    @torch.compiler.nested_compile_region
    def region(x, r):
        return FUSED.maybe_inplace(x * 2, r * 2, None, 1e-6)

    def f(x, r):
        y, total = region(x, r)
        return region(y, total)

    x, r = X.clone(), X + 1
    torch.testing.assert_close(ir.compile(f, fullgraph=True)(x, r), f(X, X + 1))
    assert torch.equal(x, X)


def test_several_threads_compile_and_run_at_once():
    nets = [Net() for _ in range(3)]
    expected = [net(X) for net in nets]
    results, errors = {}, []

    def work(i):
        try:
            with torch.no_grad():
                compiled = ir.compile(nets[i], fullgraph=True)
                for _ in range(3):
                    results[i] = compiled(X)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    for i in range(3):
        torch.testing.assert_close(results[i], expected[i])


def test_two_threads_with_priorities_of_their_own_share_one_function():
    counter = CompileCounterWithBackend(ir.compile.Backend())
    compiled = torch.compile(lambda x: NORM(x, None, 1e-6), backend=counter, fullgraph=True)

    def run(provider):
        with torch.no_grad(), NORM.set_priority([provider]):
            for _ in range(3):
                compiled(X)

    for provider in ("vllm_c", "native", "vllm_c"):
        thread = threading.Thread(target=run, args=(provider,))
        thread.start()
        thread.join()
    assert counter.frame_count == 2
    selected = [n.selected for n in ir.explain(compiled).nodes]
    assert selected == ["vllm_c", "native"]


def test_dynamic_shapes_by_flag():
    net = Net()
    compiled = ir.compile(net, fullgraph=True, dynamic=True)
    for rows in (3, 5, 8, 1, 0, 2):
        x = torch.linspace(-1, 1, rows * 16).view(rows, 16)
        torch.testing.assert_close(compiled(x), net(x))


def test_an_unused_result_and_an_unused_call():
    def f(x):
        NORM(x, None, 1e-6)
        y, _ = FUSED(x + 1, x * 2, None, 1e-6)
        return y

    compiled = ir.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(X), f(X))
    assert [n.op for n in ir.explain(compiled).nodes] == ["fused_add_rms_norm"]


def test_a_graph_without_ops():
    compiled = ir.compile(lambda x: x * 2, fullgraph=True)
    torch.testing.assert_close(compiled(X), X * 2)
    assert ir.explain(compiled).nodes == []
