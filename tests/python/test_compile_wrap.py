# SPDX-License-Identifier: Apache-2.0
"""What Dynamo puts into a graph: the operator, the native function, or the implementation."""

import pytest
import torch
from torch._inductor.utils import run_and_get_code
from toys import counts, new_pair, new_toy, runs

import vllm_ir as ir

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

X = torch.linspace(-1, 1, 24).view(3, 8)
W = torch.linspace(1, 2, 8)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def norm(x, w):
    return ir.ops.rms_norm(x, w, 1e-6) * 2 + 1


def norm_and_sum(x, r, w):
    y, total = ir.ops.fused_add_rms_norm.maybe_inplace(x + 1, r * 2, w, 1e-6)
    return y * 2, total


def code_of(f, *args, **options):
    with torch.no_grad():
        result, code = run_and_get_code(torch.compile(f, fullgraph=True, **options), *args)
        expected = f(*args)
    torch.testing.assert_close(result, expected)
    return "\n".join(code)


def kernels(code):
    """How many generated kernels the code calls."""
    body = code[code.index("def call(") :]
    return sum(line.strip().startswith("cpp_fused") for line in body.splitlines())


@pytest.mark.parametrize(("f", "args"), [(norm, (X, W)), (norm_and_sum, (X, X + 1, W))])
def test_d31_plain_inductor_sees_native_where_nothing_else_would_run(f, args):
    assert ir.ops.rms_norm.get_priority(compiling=True) == ["native"]
    code = code_of(f, *args)
    assert "torch.ops.vllm_ir" not in code
    assert kernels(code) == 1


def test_d31_an_operator_stays_where_somebody_chose_a_provider():
    ir.ops.rms_norm.set_default(["vllm_c"])
    with runs(ir.ops.rms_norm, vllm_c=2):  # compiled and eager
        code = code_of(norm, X, W)
    assert "torch.ops.vllm_ir.rms_norm" in code


def test_d31_an_operator_stays_where_wrap_was_asked_for():
    with ir.enable_torch_wrap(True):
        code = code_of(norm, X, W)
    assert "torch.ops.vllm_ir.rms_norm" in code


def test_d31_a_change_of_priority_counts():
    compiled = torch.compile(norm, fullgraph=True)
    with torch.no_grad():
        compiled(X, W)
        before = counts(ir.ops.rms_norm)
        ir.ops.rms_norm.set_default(["vllm_c"])
        compiled(X, W)
        assert counts(ir.ops.rms_norm)["vllm_c"] == before.get("vllm_c", 0) + 1
        ir.ops.rms_norm.set_default([])
        compiled(X, W)
        assert counts(ir.ops.rms_norm)["vllm_c"] == before.get("vllm_c", 0) + 1


def test_d31_inlined_native_has_a_gradient():
    x = X.clone().requires_grad_()
    torch.compile(norm, fullgraph=True)(x, W).sum().backward()
    y = X.clone().requires_grad_()
    norm(y, W).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor", "vllm_ir"])
def test_without_wrap_the_implementation_itself_is_compiled(backend):
    op, ran = new_pair(), []

    @op.register_impl("mine", inplace=True)
    def mine(
        x: torch.Tensor, x_other: torch.Tensor, scale: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ran.append(type(x).__name__)
        x_other.mul_(scale)
        x.add_(x_other)
        return x, x_other

    def f(x, other):
        return op(x, other, scale=3.0)

    other = X * 2
    compiler = ir.compile.Backend() if backend == "vllm_ir" else backend
    with ir.enable_torch_wrap(False), op.set_priority(["mine"]), torch.no_grad():
        expected = f(X, other)
        before = other.clone()
        ran.clear()
        result = torch.compile(f, backend=compiler, fullgraph=True)(X, other)
    torch.testing.assert_close(result, expected)
    assert torch.equal(other, before)
    assert ran
    assert "Tensor" not in ran[:1]


def test_without_wrap_donation_still_computes_the_same():
    with ir.enable_torch_wrap(False):
        ir.ops.fused_add_rms_norm.set_default(["vllm_c"])
        code = code_of(norm_and_sum, X, X + 1, W)
    assert "vllm_ir_C.fused_add_rms_norm_" in code


def test_the_switch_is_part_of_the_guards():
    seen = []

    def backend(graph, inputs):
        seen.append(next(str(n.target) for n in graph.graph.nodes if n.op == "call_function"))
        return graph.forward

    compiled = torch.compile(norm, backend=backend, fullgraph=True)
    compiled(X, W)
    with ir.enable_torch_wrap(False):
        compiled(X, W)
    compiled(X, W)
    assert len(seen) == 2
    assert seen[0] == "vllm_ir.rms_norm.default"
    assert "run_in_graph" in seen[1]


def test_a_parameter_may_have_the_name_that_the_call_uses():
    def native(_how: torch.Tensor, _op: float = 1.0) -> torch.Tensor:
        return _how * _op

    op = ir.register_op(native, name=new_toy().name + "_b", activations=["_how"])
    result = torch.compile(lambda x: op(x, 2.0), backend="eager", fullgraph=True)(X)
    assert torch.equal(result, X * 2)


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_ops_and_no_donation(strict):
    class Layer(torch.nn.Module):
        def forward(self, x, r, w):
            return ir.ops.fused_add_rms_norm.maybe_inplace(x, r, w, 1e-6)

    program = torch.export.export(Layer(), (X, X + 1, W), strict=strict)
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert targets[0] == "vllm_ir.fused_add_rms_norm.default"
    x, r = X.clone(), X + 1
    ir.ops.fused_add_rms_norm.set_default(["vllm_c"])
    result = program.module()(x, r, W)
    torch.testing.assert_close(result, ir.ops.fused_add_rms_norm(X, X + 1, W, 1e-6))
    assert torch.equal(x, X)
