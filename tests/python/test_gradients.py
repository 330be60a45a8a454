# SPDX-License-Identifier: Apache-2.0
"""Where a gradient is needed native runs, so the gradient is right whatever the priority."""

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from toys import new_name, new_pair, new_toy, pair_native, runs, same_as, toy_native

import vllm_ir as ir

PRIORITIES = [["native"], ["vllm_c"], ["vllm_c", "native"]]


def leaves(*tensors):
    return [t.clone().requires_grad_() for t in tensors]


def norm_inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(3, 8, generator=generator).to(dtype) for _ in range(2))
    return x, residual, torch.randn(8, generator=generator).to(dtype)


def gradients(f, *inputs):
    outputs = f(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum((o * torch.arange(o.numel()).view_as(o)).sum() for o in outputs)
    return torch.autograd.grad(loss, [i for i in inputs if i.requires_grad])


@pytest.fixture(params=[["native"], ["alike"], ["alike", "native"], ["picky"], []], ids=str)
def toy(request):
    """A toy op with a priority list, none of which may matter to gradients."""
    op = new_toy("alike")
    op.register_impl("picky", supports_args=lambda *args: False)(same_as(toy_native))
    op.set_platform_default(["native"])
    op.set_default(request.param)
    return op


# ---- the norms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", PRIORITIES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_has_native_s_gradients(priority, dtype):
    op = ir.ops.rms_norm
    x, _, w = norm_inputs(dtype)
    with op.set_priority(priority), runs(op, native=1):
        got = gradients(lambda x, w: op(x, w, 1e-6), *leaves(x, w))
    native = op.impls["native"].impl_fn
    expected = gradients(lambda x, w: native(x, w, 1e-6), *leaves(x, w))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert all(g.abs().sum() > 0 for g in got)


@pytest.mark.parametrize("priority", PRIORITIES, ids=str)
@pytest.mark.parametrize("overload", ["default", "maybe_inplace"])
def test_fused_add_rms_norm_has_native_s_gradients(priority, overload):
    op = ir.ops.fused_add_rms_norm
    call = op if overload == "default" else op.maybe_inplace
    inputs = norm_inputs()
    mine = leaves(*inputs)
    with op.set_priority(priority), runs(op, native=1):
        got = gradients(lambda *a: call(*a, 1e-6), *mine)
    native = op.impls["native"].impl_fn
    expected = gradients(lambda *a: native(*a, 1e-6), *leaves(*inputs))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(mine, inputs, strict=True))  # out of place


def test_rms_norm_s_gradient_is_the_analytic_one():
    x, _, w = norm_inputs()
    (got,) = gradients(lambda x: ir.ops.rms_norm(x, w, 1e-6), *leaves(x))

    def float64(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w.double()

    (expected,) = gradients(float64, *leaves(x.double()))
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("needs", ["x", "w"])
def test_one_input_that_needs_a_gradient_is_enough(needs):
    op = ir.ops.rms_norm
    x, _, w = norm_inputs()
    (x if needs == "x" else w).requires_grad_()
    with op.set_priority(["vllm_c"]), runs(op, native=1):
        (got,) = gradients(lambda x, w: op(x, w, 1e-6), x, w)
    (expected,) = gradients(lambda x, w: op.impls["native"].impl_fn(x, w, 1e-6), x, w)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_input_of_maybe_inplace_is_enough(which):
    op = ir.ops.fused_add_rms_norm
    inputs = norm_inputs()
    mine = [t.clone().requires_grad_(i == which) for i, t in enumerate(inputs)]
    with op.set_priority(["vllm_c"]), runs(op, native=1):
        (got,) = gradients(lambda *a: op.maybe_inplace(*a, 1e-6), *mine)
    (expected,) = gradients(lambda *a: op.impls["native"].impl_fn(*a, 1e-6), *mine)
    assert torch.equal(got, expected)
    assert all(torch.equal(a, b) for a, b in zip(mine, inputs, strict=True))


def test_keywords_and_none_have_gradients_too():
    op = ir.ops.rms_norm
    x, _, _ = norm_inputs()
    (got,) = gradients(lambda x: op(epsilon=1e-6, weight=None, x=x, variance_size=4), *leaves(x))
    (expected,) = gradients(lambda x: op.impls["native"].impl_fn(x, None, 1e-6, 4), *leaves(x))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_gradient_is_needed_where_grad_mode_is_off(mode):
    op = ir.ops.rms_norm
    x, _, w = norm_inputs()
    with mode(), op.set_priority(["vllm_c"]), runs(op, vllm_c=1):
        result = op(x.requires_grad_(), w.requires_grad_(), 1e-6)
    assert not result.requires_grad


def test_gradient_calls_are_counted_apart():
    op = ir.ops.rms_norm
    x, _, w = norm_inputs()
    before = op.report()
    with op.set_priority(["vllm_c"]):
        op(x.requires_grad_(), w, 1e-6)
        op(x.detach(), w, 1e-6)
    after = op.report()
    assert after.gradient_calls == before.gradient_calls + 1
    assert after.calls == before.calls + 2


# ---- any op --------------------------------------------------------------------------------------


def test_gradcheck_in_float64(toy):
    x, y = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda x, y: toy(x, y, 2.5), (x, y))
    with runs(toy, native=1):
        toy(x, y)


def test_double_backward_in_float64():
    op = ir.register_op(cubed, name="cubed_of_gradients")
    op.register_impl("other")(same_as(cubed))
    op.set_default(["other"])
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(op, (x,))
    (first,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())
    with runs(op, other=1):
        op(x.detach())


def cubed(x: Tensor) -> Tensor:
    return x * x * x


def test_an_impl_that_would_have_no_gradient_is_not_run(toy):
    @toy.register_impl("raw")
    def raw(
        x: Tensor,
        y: Tensor | None = None,
        scale: float = 1.0,
        n: int | None = None,
        flag: bool = False,
    ) -> Tensor:
        return toy_native(x.detach(), y, scale)

    toy.set_default(["raw"])
    x = torch.ones(2, requires_grad=True)
    with runs(toy, native=1):
        toy(x, scale=3.0).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    with runs(toy, raw=1):
        toy(x.detach(), scale=3.0)


def test_maybe_inplace_with_a_gradient_is_out_of_place():
    op = new_pair("fast")
    x, other = leaves(torch.ones(3), torch.full((3,), 2.0))
    versions = x._version, other._version
    with runs(op, native=1):
        scaled, total = op.maybe_inplace(x, other, 2.0)
    assert (x._version, other._version) == versions
    assert (x.tolist(), other.tolist()) == ([1.0] * 3, [2.0] * 3)
    got = torch.autograd.grad((scaled * 5 + total).sum(), (x, other))
    assert [g.tolist() for g in got] == [[11.0] * 3, [11.0] * 3]


def test_donating_a_non_leaf_keeps_its_gradient():
    op = new_pair("fast")
    x = torch.ones(3, requires_grad=True)
    hidden = x * 2
    scaled, _ = op.maybe_inplace(hidden, torch.ones(3), 3.0)
    scaled.sum().backward()
    assert x.grad.tolist() == [6.0] * 3


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(toy, use_reentrant):
    x, y = leaves(torch.arange(3.0), torch.ones(3))

    def f(x, y):
        return toy(toy(x, y, 2.0), None, 3.0).sin()

    checkpoint(f, x, y, use_reentrant=use_reentrant).sum().backward()
    got = x.grad.clone(), y.grad.clone()
    expected = torch.autograd.grad(
        (toy_native(toy_native(x, y, 2.0), None, 3.0)).sin().sum(), (x, y)
    )
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_hooks_and_retain_graph(toy):
    x = torch.ones(2, requires_grad=True)
    result = toy(x, scale=3.0)
    seen = []
    result.register_hook(lambda g: seen.append(g.clone()))
    result.sum().backward(retain_graph=True)
    result.sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]
    assert len(seen) == 2


def test_a_list_of_tensors_that_need_gradients():
    def stacked(xs: list[Tensor], scale: float) -> Tensor:
        return torch.stack(xs) * scale

    op = ir.register_op(stacked, name="stacked_of_gradients", activations=[])
    op.register_impl("raw")(detached)
    op.set_default(["raw"])
    a, b = leaves(torch.ones(2), torch.ones(2))
    with runs(op, native=1):
        op([a, b], 4.0).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([4.0] * 2, [4.0] * 2)
    with runs(op, raw=1):
        op([a.detach(), b.detach()], 4.0)


def detached(xs: list[Tensor], scale: float) -> Tensor:
    return torch.stack([x.detach() for x in xs]) * scale


@pytest.mark.parametrize("wrap", [True, False])
def test_gradients_with_either_wrap(wrap):
    op = new_pair("fast")
    for call in (op, op.maybe_inplace):
        x, other = leaves(torch.ones(3), torch.ones(3))
        with ir.enable_torch_wrap(wrap), runs(op, native=1):
            scaled, total = call(x, other, 2.0)
        got = torch.autograd.grad((scaled + total).sum(), (x, other))
        assert [g.tolist() for g in got] == [[3.0] * 3] * 2
        assert torch.equal(scaled, pair_native(x, other, 2.0)[0])


def test_an_integer_weight_that_can_t_need_a_gradient(toy):
    x = torch.ones(2, requires_grad=True)
    toy(x, torch.tensor([1, 2])).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "view", [lambda x: x.to(x.dtype), lambda x: x.view(-1)], ids=["same", "view"]
)
def test_a_result_that_needs_a_gradient_is_no_alias_of_the_input(view):
    def native(x: Tensor) -> Tensor:
        return view(x)

    op = ir.register_op(native, name=new_name("alias"))
    x = torch.ones(3, requires_grad=True)
    y = op(x)
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(3))
