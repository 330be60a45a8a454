# SPDX-License-Identifier: Apache-2.0
"""With wrap off, tracers see what the selected implementation does, and results are the same."""

import asyncio
import threading

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from toys import new_name, new_pair, new_toy, pair_native, raises_exactly, runs

import vllm_ir as ir
from vllm_ir.errors import IrTypeError
from vllm_ir.torch_wrap import torch_wrap_enabled

X = torch.arange(3.0)


def doubled(x: Tensor, scale: float = 1.0) -> Tensor:
    return x * scale


def shifted(x: Tensor, scale: float = 1.0) -> Tensor:
    return torch.mul(x, scale).add(0)


@pytest.fixture
def op():
    op = ir.register_op(doubled, name=new_name())
    op.register_impl("shifted")(shifted)
    op.set_default(["shifted"])
    return op


def targets(f, *args):
    graph = make_fx(f)(*args).graph
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def test_wrap_is_on_by_default(op):
    assert torch_wrap_enabled() is True
    assert targets(lambda x: op(x, 2.0), X) == [f"vllm_ir.{op.name}.default"]


def test_off_shows_the_selected_implementation(op):
    with ir.enable_torch_wrap(False):
        assert targets(lambda x: op(x, 2.0), X) == ["aten.mul.Tensor", "aten.add.Tensor"]
        with op.set_priority(["native"]):
            assert targets(lambda x: op(x, scale=2.0), X) == ["aten.mul.Tensor"]
    assert targets(lambda x: op(x, 2.0), X) == [f"vllm_ir.{op.name}.default"]


def test_scopes_nest_and_end_with_exceptions(op):
    with ir.enable_torch_wrap(False):
        with ir.enable_torch_wrap():
            assert torch_wrap_enabled() is True
        assert torch_wrap_enabled() is False
        with pytest.raises(ValueError, match="boom"), ir.enable_torch_wrap(True):
            raise ValueError("boom")
        assert torch_wrap_enabled() is False
    assert torch_wrap_enabled() is True


def test_the_default_is_for_the_process_and_scopes_override_it(op):
    ir.set_default_torch_wrap(False)
    assert torch_wrap_enabled() is False
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch_wrap_enabled()))
    thread.start()
    thread.join()
    assert seen == [False]
    assert targets(lambda x: op(x, 2.0), X) == ["aten.mul.Tensor", "aten.add.Tensor"]
    with ir.enable_torch_wrap(True):
        assert targets(lambda x: op(x, 2.0), X) == [f"vllm_ir.{op.name}.default"]
    ir.set_default_torch_wrap(True)
    assert targets(lambda x: op(x, 2.0), X) == [f"vllm_ir.{op.name}.default"]


def test_a_scope_belongs_to_its_thread_and_task():
    seen = []
    with ir.enable_torch_wrap(False):
        thread = threading.Thread(target=lambda: seen.append(torch_wrap_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]

    async def task(flag):
        with ir.enable_torch_wrap(flag):
            await asyncio.sleep(0)
            return torch_wrap_enabled()

    async def main():
        return await asyncio.gather(task(False), task(True), task(False))

    assert asyncio.run(main()) == [False, True, False]


def test_plain_eager_takes_the_fast_path_in_both_settings(op):
    for flag in (True, False):
        with ir.enable_torch_wrap(flag), runs(op, shifted=1):
            assert torch.equal(op(X, 2.0), X * 2)


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_results_under_a_mode_are_the_same(op):
    for flag in (True, False):
        with ir.enable_torch_wrap(flag), Mode():
            assert torch.equal(op(X, scale=2.0), X * 2)
            assert torch.equal(op(X), X)


def test_calls_with_wrap_off_are_counted(op):
    with ir.enable_torch_wrap(False), Mode(), runs(op, shifted=1):
        op(X)


def test_strict_mode_minds_calls_with_wrap_off(op):
    op.register_impl("no", supports_args=lambda x, scale=1.0: False)(shifted)
    op.set_default(["no", "native"])
    ir.set_strict(True)
    with ir.enable_torch_wrap(False), Mode(), pytest.raises(ir.IrRuntimeError, match="strict"):
        op(X)


def test_an_in_place_impl_runs_on_copies_with_wrap_off():
    op = new_pair("fast")
    x, other = torch.ones(3), torch.ones(3)
    with ir.enable_torch_wrap(False), Mode():
        scaled, total = op(x, other, 2.0)
        assert (x.tolist(), other.tolist()) == ([1.0] * 3, [1.0] * 3)
        assert (scaled.tolist(), total.tolist()) == ([4.0] * 3, [2.0] * 3)
        donated = op.maybe_inplace(x, other, 2.0)
        assert donated[0] is x
        assert donated[1] is other


def test_gradients_are_native_s_with_wrap_off():
    op = new_pair("fast")
    for call in (op, op.maybe_inplace):
        x, other = (torch.ones(3, requires_grad=True) for _ in range(2))
        with ir.enable_torch_wrap(False), Mode():
            scaled, _ = call(x, other, 2.0)
        scaled.sum().backward()
        assert x.grad.tolist() == [2.0] * 3
        assert torch.equal(scaled, pair_native(x, other, 2.0)[0])


@pytest.mark.parametrize("args", [(), (X, 1.0, 2), (3,)])
def test_errors_of_binding_with_wrap_off_are_type_errors(op, args):
    with ir.enable_torch_wrap(False), Mode(), pytest.raises((TypeError, RuntimeError)) as error:
        op(*args)
    assert op.name in str(error.value)


def test_a_graph_of_the_norm_shows_the_kernel_with_wrap_off():
    op = ir.ops.rms_norm
    with ir.enable_torch_wrap(False), op.set_priority(["vllm_c", "native"]):
        assert targets(lambda x: op(x, None, 1e-6), torch.ones(2, 8)) == [
            "vllm_ir_C.rms_norm.default"
        ]
    assert targets(lambda x: op(x, None, 1e-6), torch.ones(2, 8)) == ["vllm_ir.rms_norm.default"]


def test_a_gradient_under_make_fx_with_wrap_off():
    op = new_toy("a")
    op.set_default(["a"])
    with ir.enable_torch_wrap(False):
        x = torch.ones(2, requires_grad=True)
        names = targets(lambda x: torch.autograd.grad(op(x, None, 3.0).sum(), x)[0], x)
    assert not any("vllm_ir" in name for name in names)


@pytest.mark.parametrize(("flag", "kind"), [("off", "str"), (0, "int"), (None, "NoneType")])
def test_the_flag_is_a_bool(flag, kind):
    text = "vllm_ir.{}: flag must be a bool, got " + kind + "."
    with raises_exactly(IrTypeError, text.format("set_default_torch_wrap")):
        ir.set_default_torch_wrap(flag)
    scope = ir.enable_torch_wrap(flag)
    with raises_exactly(IrTypeError, text.format("enable_torch_wrap")), scope:
        pass
    assert torch_wrap_enabled() is True
