# SPDX-License-Identifier: Apache-2.0
"""Which calls take the fast path, and that every other one means what torch means by it."""

import copy

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from toys import new_name, new_pair, pair_inplace, runs, toy_native

import vllm_ir as ir
from vllm_ir import _C


class Weight(torch.nn.Parameter):
    """As weight classes are: a subclass of which nothing can see a call."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Seeing(Tensor):
    seen: list = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


# ---- plain eager ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int32],
)
def test_plain_tensors_take_the_fast_path(probe, dtype):
    assert probe.took_fast_path(torch.ones(3, dtype=dtype))


@pytest.mark.parametrize(
    "x",
    [
        *(torch.ones(3, 4).t(), torch.ones(3, 4)[:, ::2], torch.ones(1).expand(5)),
        *(torch.ones(0, 4), torch.tensor(2.0)),
        torch.ones(2, 1, 3, 1).to(memory_format=torch.channels_last),
    ],
    ids=["transposed", "strided", "expanded", "empty", "scalar", "channels last"],
)
def test_any_strides_take_the_fast_path(probe, x):
    assert probe.took_fast_path(x)


def test_grad_modes_without_a_gradient_take_the_fast_path(probe):
    x, leaf = torch.ones(3), torch.nn.Parameter(torch.ones(3))
    assert probe.took_fast_path(x)
    with torch.no_grad():
        assert probe.took_fast_path(x)
        assert probe.took_fast_path(x, leaf)
        assert probe.took_fast_path(leaf * 2)
    with torch.inference_mode():
        assert probe.took_fast_path(x)
        assert probe.took_fast_path(torch.ones(3), leaf)
    assert probe.took_fast_path(torch.nn.Parameter(torch.ones(3), requires_grad=False))
    assert probe.took_fast_path(leaf.detach())
    assert probe.took_fast_path(leaf.data)


def test_an_inference_tensor_outside_of_inference_mode_takes_the_fast_path(probe):
    with torch.inference_mode():
        x = torch.ones(3)
    assert probe.took_fast_path(x)


def test_a_default_device_stays_on_the_fast_path(probe):
    x = torch.ones(3)
    with torch.device("cpu"):
        assert probe.took_fast_path(x)
        with torch.device("meta"):
            assert probe.took_fast_path(x)
    torch.set_default_device("cpu")
    try:
        assert probe.took_fast_path(x)
    finally:
        torch.set_default_device(None)


def test_a_weight_class_takes_the_fast_path(probe):
    assert Weight.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    weight = Weight(torch.ones(3), requires_grad=False)
    assert probe.took_fast_path(torch.ones(3), weight)
    with torch.no_grad():
        assert probe.took_fast_path(torch.ones(3), Weight(torch.ones(3)))


def text(x: Tensor, mode: str, dtype: torch.dtype, scale: float) -> Tensor:
    return x.to(dtype) * scale * len(mode)


def listed(x: Tensor, sizes: list[int], scale: float) -> Tensor:
    return x.repeat(sizes) * scale


@pytest.mark.parametrize(
    ("native", "args", "fast"),
    [(text, ("ab", torch.float64), True), (listed, ([2],), False)],
    ids=["str and dtype", "list"],
)
def test_strings_and_dtypes_are_plain_and_lists_are_torch_s(native, args, fast):
    op, seen = ir.register_op(native, name=new_name()), []

    def probe(*args):
        seen.append(args)
        return native(*args)

    probe.__wrapped__ = native
    op.register_impl("probe")(probe)
    op.set_default(["probe"])
    scale, x = float("0.5"), torch.ones(2)
    with runs(op, probe=1):
        result = op(x, *args, scale)
    assert (seen[0][-1] is scale) is fast
    assert torch.equal(result, native(x, *args, scale))
    assert result.dtype == native(x, *args, scale).dtype


def test_keyword_calls_take_the_fast_path(probe):
    scale = float("0.5")
    probe.seen.clear()
    with runs(probe.op, probe=1):
        probe.op(scale=scale, x=torch.ones(3))
    assert probe.seen[0][2] is scale


def test_both_settings_of_wrap_take_the_fast_path(probe):
    for flag in (True, False):
        with ir.enable_torch_wrap(flag):
            assert probe.took_fast_path(torch.ones(3))


def test_the_python_call_of_the_class_is_never_run_in_eager(probe, monkeypatch):
    def fail(*args):
        raise AssertionError("the Python __call__ ran")

    assert type(probe.op).__dict__["__call__"].__name__ == "__call__"
    monkeypatch.setattr(type(probe.op), "__call__", fail)
    _C.use_native_call(type(probe.op))
    assert probe.took_fast_path(torch.ones(3))
    assert torch.equal(probe.op(torch.ones(3)), torch.ones(3))


def test_the_python_call_means_the_same(probe):
    x = torch.ones(3)
    with runs(probe.op, probe=1):
        assert torch.equal(type(probe.op).__call__(probe.op, x, scale=3.0), x * 3)


def test_maybe_inplace_takes_the_fast_path_too():
    op = new_pair()
    seen = []

    @op.register_impl("probe", inplace=True)
    def probe(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        seen.append(scale)
        return pair_inplace(x, x_other, scale)

    op.set_default(["probe"])
    scale = float("0.5")
    for call in (op.maybe_inplace, op):
        with runs(op, probe=1):
            first, second = call(torch.ones(3), torch.ones(3), scale)
        assert seen.pop() is scale
        assert (first.tolist(), second.tolist()) == ([1.0] * 3, [2.0] * 3)
        with Log() as mode:
            call(torch.ones(3), torch.ones(3), scale)
        assert call.torch_op in mode.seen
        assert seen.pop() is not scale


# ---- hazards -------------------------------------------------------------------------------------


def test_a_dispatch_mode_sees_the_op(probe):
    with Log() as mode:
        assert not probe.took_fast_path(torch.ones(3))
    assert probe.op.torch_op in mode.seen


def test_a_function_mode_sees_the_op(probe):
    class Mode(TorchFunctionMode):
        seen = []  # noqa: RUF012

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(func)
            return func(*args, **(kwargs or {}))

    for outer in (torch.device("cpu"), torch.no_grad()):
        Mode.seen.clear()
        with outer, Mode():
            assert not probe.took_fast_path(torch.ones(3))
        assert any(probe.op.name in str(f) for f in Mode.seen)
    with Mode(), torch.device("cpu"):
        assert not probe.took_fast_path(torch.ones(3))


def test_fake_tensors_stay_fake(probe):
    with torch._subclasses.FakeTensorMode() as mode:
        fake = torch.ones(3, 2)
        inside = probe.op(fake, scale=2)
    outside = probe.op(fake, scale=2)
    for result in (inside, outside):
        assert isinstance(result, torch._subclasses.FakeTensor)
        assert result.fake_mode is mode
        assert result.shape == (3, 2)


def test_make_fx_puts_the_op_into_the_graph(probe):
    graph = make_fx(lambda x: probe.op(x, scale=2.0))(torch.ones(3))
    calls = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert calls == [probe.op.torch_op]
    with runs(probe.op, probe=1):
        assert torch.equal(graph(torch.ones(3)), torch.full((3,), 2.0))


def test_symbolic_make_fx_puts_the_op_into_the_graph(probe):
    graph = make_fx(lambda x: probe.op(x), tracing_mode="symbolic")(torch.ones(3, 5))
    assert probe.op.torch_op in [n.target for n in graph.graph.nodes]
    assert graph(torch.ones(7, 2)).shape == (7, 2)


def test_fx_symbolic_trace_puts_the_op_into_the_graph(probe):
    graph = torch.fx.symbolic_trace(lambda x: probe.op(x, scale=2.0))
    calls = [n for n in graph.graph.nodes if n.op == "call_function"]
    assert [n.target for n in calls] == [probe.op.torch_op]
    assert torch.equal(graph(torch.ones(3)), torch.full((3,), 2.0))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace_puts_the_op_into_the_graph(probe):
    traced = torch.jit.trace(lambda x: probe.op(x, scale=2.0), torch.ones(3))
    assert f"vllm_ir::{probe.op.name}" in str(traced.graph)
    assert torch.equal(traced(torch.ones(4)), torch.full((4,), 2.0))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_is_torch_s_own(probe):
    x = torch.arange(6.0).view(2, 3)
    expected = torch.vmap(lambda row: probe.op.torch_op(row, scale=2.0))(x)
    assert torch.equal(torch.vmap(lambda row: probe.op(row, scale=2.0))(x), expected)
    assert torch.equal(expected, x * 2)


# Torch compiles its own decompositions when it first meets a tangent.
TANGENTS = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


@TANGENTS
def test_func_grad_and_jvp_and_vjp(probe):
    x = torch.arange(3.0)
    assert torch.func.grad(lambda x: probe.op(x, scale=2.0).sum())(x).tolist() == [2.0] * 3
    value, tangent = torch.func.jvp(lambda x: probe.op(x, scale=2.0), (x,), (torch.ones(3),))
    assert torch.equal(value, x * 2)
    assert tangent.tolist() == [2.0] * 3
    _, pull = torch.func.vjp(lambda x: probe.op(x, scale=2.0), x)
    assert pull(torch.ones(3))[0].tolist() == [2.0] * 3


def test_functionalize(probe):
    def f(x):
        return probe.op(x, scale=2.0) + 1

    x = torch.arange(3.0)
    assert torch.equal(torch.func.functionalize(f)(x), x * 2 + 1)


@TANGENTS
@pytest.mark.parametrize("grad_mode", [True, False])
def test_forward_mode_ad(probe, grad_mode):
    x = torch.arange(3.0)
    with torch.set_grad_enabled(grad_mode), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(3))
        primal, tangent = forward_ad.unpack_dual(probe.op(dual, scale=2.0))
        assert torch.equal(primal, x * 2)
        assert tangent.tolist() == [2.0] * 3
        assert probe.took_fast_path(x)  # no tangent


def test_a_gradient_leaves_the_fast_path(probe):
    leaf = torch.ones(3, requires_grad=True)
    before = probe.op.report().gradient_calls
    with runs(probe.op, native=1):
        assert probe.op(torch.ones(3), leaf).requires_grad
    assert probe.op.report().gradient_calls == before + 1


def test_autocast_leaves_the_fast_path(probe):
    x = torch.ones(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not probe.took_fast_path(x)
        assert probe.op(x).dtype == probe.op.torch_op(x).dtype == torch.float32
    assert probe.took_fast_path(x)


def test_the_profiler_sees_the_op(probe):
    with torch.profiler.profile() as profile:
        assert not probe.took_fast_path(torch.ones(3))
    assert f"vllm_ir::{probe.op.name}" in {e.name for e in profile.events()}
    assert probe.took_fast_path(torch.ones(3))


def test_meta_tensors_leave_the_fast_path(probe):
    with runs(probe.op):  # no implementation: torch asks the shape function
        result = probe.op(torch.ones(3, 2, device="meta"))
    assert (result.device.type, result.shape) == ("meta", (3, 2))


def test_sparse_tensors_are_torch_s_own(probe):
    x = torch.eye(3).to_sparse()
    got, expected = probe.op(x, scale=2.0), probe.op.torch_op(x, scale=2.0)
    assert got.layout is expected.layout is torch.sparse_coo
    assert torch.equal(got.to_dense(), torch.eye(3) * 2)


def test_conjugate_and_negative_views_leave_the_fast_path(probe):
    x = torch.tensor([1 + 2j, 3 - 1j])
    conj, neg = x.conj(), x.conj().imag
    assert conj.is_conj()
    assert neg.is_neg()
    for view in (conj, neg):
        assert not probe.took_fast_path(view)
        assert torch.equal(probe.op(view), view.resolve_conj().resolve_neg())


def test_a_subclass_with_torch_function_sees_the_call(probe):
    x = torch.ones(3).as_subclass(Seeing)
    Seeing.seen.clear()
    result = probe.op(x, scale=2.0)
    assert type(result) is Seeing
    assert any(probe.op.name in name for name in Seeing.seen)
    assert torch.equal(result.as_subclass(Tensor), torch.full((3,), 2.0))


def test_a_plain_subclass_is_kept_by_torch(probe):
    class Named(Tensor):
        pass

    assert type(probe.op(torch.ones(3).as_subclass(Named))) is Named


def test_a_wrapper_subclass_with_torch_dispatch_sees_the_call(probe):
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.ones(3), torch.zeros(3))
    with runs(probe.op, probe=2):
        result = probe.op(x, scale=2.0)
    assert type(result) is TwoTensor
    assert torch.equal(result.a, torch.full((3,), 2.0))
    assert torch.equal(result.b, torch.zeros(3))


def test_a_weight_class_that_starts_to_look_is_noticed(probe):
    class Changing(Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

    x = torch.ones(3).as_subclass(Changing)
    assert probe.took_fast_path(x)
    seen = []

    def see(cls, func, types, args=(), kwargs=None):
        seen.append(func)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    Changing.__torch_function__ = classmethod(see)
    probe.op(x)
    assert any(probe.op.name in str(f) for f in seen)


def test_parameters_in_grad_mode_leave_the_fast_path(probe):
    leaf = torch.nn.Parameter(torch.ones(3))
    with runs(probe.op, native=1):
        result = probe.op(torch.ones(3), leaf)
    assert result.grad_fn is not None


def test_one_odd_tensor_among_plain_ones_is_enough(probe):
    odd = torch.ones(3, dtype=torch.complex64).conj()
    assert not probe.took_fast_path(torch.ones(3), odd)
    assert not probe.took_fast_path(odd, torch.ones(3))


def test_both_routes_call_the_same_impl_with_the_same_values(probe):
    x, y = torch.randn(3), torch.randn(3)
    with runs(probe.op, probe=2):
        fast, slow = probe.op(x, y, 0.3, 2, True), probe.op.torch_op(x, y, 0.3, 2, True)
    assert torch.equal(fast, slow)
    assert torch.equal(fast, toy_native(x, y, 0.3))


def test_a_mode_that_ends_gives_the_fast_path_back(probe):
    with Log():
        assert not probe.took_fast_path(torch.ones(3))
    with torch.autocast("cpu"):
        pass
    with pytest.raises(ValueError, match="boom"), Log():
        raise ValueError("boom")
    assert probe.took_fast_path(torch.ones(3))


def test_no_leaks_on_the_fast_path(probe):
    import sys

    x, scale = torch.ones(3), float("0.5")
    probe.op(x, None, scale)
    probe.seen.clear()
    before = [sys.getrefcount(o) for o in (x, scale, probe.op, None.__class__)]
    for _ in range(500):
        probe.op(x, None, scale)
        probe.op(x, scale=scale)
        probe.seen.clear()
    with pytest.raises(RuntimeError):
        probe.op(x, eps=scale)
    assert [sys.getrefcount(o) for o in (x, scale, probe.op, None.__class__)] == before


def test_copy_of_a_module_that_holds_an_op_keeps_it_fast(probe):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.op = probe.op

    layer = copy.deepcopy(Layer())
    assert layer.op is probe.op
    assert probe.took_fast_path(torch.ones(3))
