# SPDX-License-Identifier: Apache-2.0
"""What the design document shows of the API, each block in our own words, with what it promises.

`vllm.ir` is `vllm_ir` here, and the second activation of the fused norm is `x_residual`. The ops
of the document are declared again under names of their own, since providers can't be taken back;
what has to be said of the real ones runs in a fresh process.
"""

import argparse
import ast

import pytest
import torch
from norm_inputs import Norm, inplace_norm
from processes import output_of
from torch import Tensor, nn
from toys import counts, new_name, runs

import vllm_ir
import vllm_ir as ir
from vllm_ir import (
    IrOpPriorityConfig,
    KernelConfig,
    Platform,
    cli,
    current_platform,
    register_op,
    set_platform,
)
from vllm_ir.testing import Memory

NORM = ir.ops.rms_norm.impls["native"].impl_fn
ADD_NORM = ir.ops.fused_add_rms_norm.impls["native"].impl_fn


def new_norm():
    return register_op(NORM, name=new_name("norm"))


def new_add_norm():
    """The fused norm with one in-place provider, which is the priority."""
    op = register_op(ADD_NORM, name=new_name("add_norm"), allow_inplace=True)
    op.register_impl("vllm_c", inplace=True)(inplace_norm)
    op.set_default(["vllm_c"])
    return op


def activations(*shape):
    return torch.randn(*shape or (4, 8)), torch.randn(*shape or (4, 8)), torch.randn(8)


@pytest.fixture
def platform():
    yield set_platform
    set_platform(None)


# --- declaring an op


def test_a_decorated_native_function_is_semantics_default_and_reference():
    def spec_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
        """Weighted root-mean-square normalization."""
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
        y = y.to(x.dtype)
        return y if weight is None else y * weight

    op = register_op(spec_norm)
    x, w = torch.randn(3, 8), torch.randn(8)
    assert (op.name, str(op)) == (
        "spec_norm",
        "IrOp('spec_norm') - Weighted root-mean-square normalization.",
    )
    assert ir.ops.spec_norm is op
    assert torch.equal(op(x, w, 1e-5), spec_norm(x, w, 1e-5))  # the default implementation
    fake = op(x.to("meta").t(), None, 1e-5)  # semantics: shapes and strides
    assert (fake.shape, fake.stride()) == ((8, 3), (1, 8))


def test_the_in_tree_norms_have_the_parameters_of_the_document():
    assert list(ir.ops.rms_norm.signature.parameters) == ["x", "weight", "epsilon", "variance_size"]
    names = ["x", "x_residual", "weight", "epsilon", "variance_size"]
    assert list(ir.ops.fused_add_rms_norm.signature.parameters) == names
    assert ir.ops.fused_add_rms_norm.activations == ("x", "x_residual")
    assert ir.ops.fused_add_rms_norm.allow_inplace
    assert not ir.ops.rms_norm.allow_inplace


def test_the_options_of_register_op_and_their_defaults():
    def plain(x: Tensor, y: Tensor, x_scale: float = 1.0) -> Tensor:
        return x + x_scale * y

    bare = register_op(plain, name=new_name())
    assert (bare.activations, bare.allow_inplace) == (("x",), False)
    with pytest.raises(AttributeError, match="allow_inplace=True"):
        bare.maybe_inplace  # noqa: B018

    name = new_name("chosen")
    chosen = register_op(name=name, activations=["y"], allow_inplace=True)(plain)
    assert (chosen.name, chosen.activations, chosen.allow_inplace) == (name, ("y",), True)
    assert chosen.maybe_inplace.torch_op is getattr(torch.ops.vllm_ir, name).maybe_inplace
    assert chosen.torch_op is getattr(torch.ops.vllm_ir, name).default


# --- registering implementations

rms_norm_no_var = lambda x, weight, epsilon, variance_size=None: variance_size is None  # noqa: E731


@pytest.mark.parametrize("supported", [True, False])
def test_an_implementation_with_a_lambda_and_a_platform_flag(supported):
    op = new_norm()

    @op.register_impl("vllm_c", supports_args=rms_norm_no_var, supported=supported)
    def rms_norm(
        x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> Tensor:
        return torch.ops.vllm_ir_C.rms_norm(x, weight, epsilon)

    assert rms_norm is op.impls["vllm_c"]
    assert op.supported_providers() == (["native", "vllm_c"] if supported else ["native"])
    op.set_default(["vllm_c", "native"])
    x, _, w = activations()
    with runs(op, **{"vllm_c" if supported else "native": 1}):
        torch.testing.assert_close(op(x, w, 1e-5), NORM(x, w, 1e-5))
    with runs(op, native=1):
        torch.testing.assert_close(op(x, w, 1e-5, 4), NORM(x, w, 1e-5, 4))


def aiter_rms_norm_supports(x, weight, epsilon, variance_size=None):
    if x.dtype not in [torch.float16, torch.bfloat16]:
        return False
    return variance_size is None


def test_a_predicate_on_dtypes_and_optional_parameters():
    op = new_norm()
    op.register_impl("aiter", supports_args=aiter_rms_norm_supports)(NORM)
    op.set_default(["aiter"])
    for dtype, variance_size in (
        (torch.float16, None),
        (torch.bfloat16, None),
        (torch.float32, None),
        (torch.float16, 4),
    ):
        args = Norm(dtype, (2, 8), variance_size=variance_size).args("rms_norm")
        ran = "aiter" if dtype is not torch.float32 and variance_size is None else "native"
        assert op.dispatch(*args).provider == ran
        with runs(op, **{ran: 1}):
            op(*args)
        fakes = [a.to("meta") if isinstance(a, Tensor) else a for a in args]
        assert op.dispatch(*fakes).provider == ran  # the same answer for tensors without data


@pytest.mark.parametrize("name", ["vllm_c", "aiter", "xpu_kernels", "triton_fused", "my_platform"])
def test_provider_names_of_the_document(name):
    op = new_norm()
    assert op.register_impl(name)(NORM).provider == name


def test_native_is_reserved_for_the_declaration():
    with pytest.raises(ir.DuplicateError, match="native"):
        new_norm().register_impl("native")(NORM)


# --- use in a model


class RMSNorm(nn.Module):
    """The layer of the document."""

    def __init__(self, op, add_op, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size))
        self.variance_epsilon = eps
        self.op, self.add_op = op, add_op

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if residual is None:
            return self.op(x, self.weight, self.variance_epsilon)
        return self.add_op.maybe_inplace(x, residual, self.weight, self.variance_epsilon)


@pytest.mark.parametrize("in_tree", [True, False])
def test_a_layer_calls_ops_directly(in_tree):
    ops = (ir.ops.rms_norm, ir.ops.fused_add_rms_norm) if in_tree else (new_norm(), new_add_norm())
    if in_tree:
        ops[1].set_default(["vllm_c"])
    layer = RMSNorm(*ops, 8)
    x, residual, _ = activations()
    w = layer.weight.detach()
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), NORM(x, w, 1e-6))
        want = ADD_NORM(x, residual, w, 1e-6)
        with runs(ops[1], vllm_c=1):
            got = layer(x, residual)
        torch.testing.assert_close(got, want)
        assert got[0].data_ptr() == x.data_ptr()  # the memory of the inputs was used again
    x.requires_grad_()
    layer(x).sum().backward()  # and the layer can be trained
    assert layer.weight.grad is not None
    assert x.grad is not None


# --- the maybe_inplace overload


def test_the_default_overload_preserves_its_inputs():
    op = new_add_norm()
    x, residual, w = activations()
    before = Memory([x, residual, w])
    out, res_out = op(x, residual, w, 1e-6)
    assert not before.changed()
    assert len({t.data_ptr() for t in (x, residual, out, res_out)}) == 4  # new tensors
    torch.testing.assert_close((out, res_out), ADD_NORM(x, residual, w, 1e-6))


def test_maybe_inplace_may_use_the_inputs_for_its_outputs():
    op = new_add_norm()
    x, residual, w = activations()
    want = ADD_NORM(x, residual, w, 1e-6)
    out, res_out = op.maybe_inplace(x, residual, w, 1e-6)
    torch.testing.assert_close((out, res_out), want)
    assert (out.data_ptr(), res_out.data_ptr()) == (x.data_ptr(), residual.data_ptr())


def test_preserving_an_input_by_the_default_overload_or_by_a_clone():
    op = new_add_norm()
    for option in ("default", "clone"):
        x, residual, w = activations()
        want = ADD_NORM(x, residual, w, 1e-6)[0] + x
        if option == "default":
            out, _ = op(x, residual, w, 1e-6)
        else:
            out, _ = op.maybe_inplace(x.clone(), residual, w, 1e-6)
        torch.testing.assert_close(out + x, want)


def test_maybe_inplace_with_an_implementation_that_is_not_in_place_is_the_default():
    op = new_add_norm()
    x, residual, w = activations()
    before = Memory([x, residual])
    with op.set_priority(["native"]):
        assert op.maybe_inplace(x, residual, w, 1e-6)[0].data_ptr() != x.data_ptr()
    assert not before.changed()


def allocated(call):
    """Return how many bytes torch allocates in a call."""
    with torch.profiler.profile(profile_memory=True) as profile, torch.inference_mode():
        call()
    return sum(max(0, e.self_cpu_memory_usage) for e in profile.events())


def test_a_layer_with_a_residual_allocates_nothing():
    op = ir.ops.fused_add_rms_norm
    op.set_default(["vllm_c", "native"])
    x, residual, w = activations()
    assert allocated(lambda: op(x, residual, w, 1e-6)) >= 2 * x.nbytes
    assert allocated(lambda: op.maybe_inplace(x, residual, w, 1e-6)) == 0


# --- selection


def walk(op, *args):
    """Choose as the document writes it."""
    for provider in op.get_priority():
        impl = op.impls[provider]
        if not impl.supported:
            continue
        if not impl.supports_args(*args):
            continue
        return impl
    return op.impls["native"]


def run_as_written(op, donating, args):
    impl = walk(op, *args)
    if impl.inplace and not donating:
        names = zip(op.signature.parameters, args, strict=False)
        args = [a.clone() if name in op.activations else a for name, a in names]
    return impl.impl_fn(*args)


def test_an_eager_call_is_the_loop_of_the_document():
    op = new_add_norm()
    takes_bf16 = lambda x, x_residual, weight, epsilon, variance_size=None: (  # noqa: E731
        x.dtype is torch.bfloat16
    )
    op.register_impl("aiter", supported=False)(ADD_NORM)
    op.register_impl("triton_norm", supports_args=takes_bf16)(ADD_NORM)
    lists = [["aiter", "triton_norm", "vllm_c"], ["triton_norm"], ["aiter"], ["native", "vllm_c"]]
    for names in lists:
        for dtype in (torch.float32, torch.bfloat16):
            for donating in (False, True):
                args = Norm(dtype, (3, 8)).args("fused_add_rms_norm")
                copies = Norm(dtype, (3, 8)).args("fused_add_rms_norm")
                with op.set_priority(names):
                    impl = walk(op, *args)
                    assert op.dispatch(*args) is impl
                    call = op.maybe_inplace if donating else op
                    with runs(op, **{impl.provider: 1}):
                        got = call(*args)
                    want = run_as_written(op, donating, copies)
                torch.testing.assert_close(got, want, rtol=0, atol=0)
                torch.testing.assert_close(args[:2], copies[:2], rtol=0, atol=0)


# --- configuration


def parse(*options):
    parser = argparse.ArgumentParser(prog="serve")
    parser.add_argument("model")
    cli.add_arguments(parser)
    return cli.from_args(parser.parse_args(["a/model", *options]))


@pytest.mark.parametrize(
    ("options", "lists"),
    [
        (["--ir-op-priority.rms_norm=vllm_c"], {"rms_norm": "vllm_c"}),
        (["--ir-op-priority.rms_norm=vllm_c,native"], {"rms_norm": "vllm_c,native"}),
        (
            ["--ir-op-priority.rms_norm=vllm_c", "--ir-op-priority.fused_add_rms_norm=vllm_c"],
            {"rms_norm": "vllm_c", "fused_add_rms_norm": "vllm_c"},
        ),
    ],
)
def test_command_line_options_are_one_list_an_op(options, lists):
    """More of it in test_cli.py."""
    assert parse(*options) == IrOpPriorityConfig(**lists)


def test_the_kernel_configuration_in_python():
    config = KernelConfig(
        ir_op_priority={
            "rms_norm": ["vllm_c", "native"],
            "fused_add_rms_norm": ["vllm_c", "native"],
        }
    )
    config.apply()
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        assert op.get_priority() == ["vllm_c", "native"]
        assert op.dispatch(*op.generate_inputs()).provider == "vllm_c"


def test_platform_defaults_when_compiling_and_in_eager():
    for compiling, names in ((False, ["vllm_c", "native"]), (True, ["native"])):
        defaults = current_platform().get_default_ir_op_priority(compiling=compiling)
        for op in ("rms_norm", "fused_add_rms_norm"):
            assert list(defaults[op]) == names


class Chooses(Platform):
    """A platform with one list."""

    def __init__(self, **lists):
        self.lists = lists

    def get_default_ir_op_priority(self):
        return IrOpPriorityConfig(**self.lists)


def test_the_user_s_list_is_prepended_to_the_platform_s(platform):
    op = new_norm()
    never = lambda x, weight, epsilon, variance_size=None: False  # noqa: E731
    for provider in ("aiter", "vllm_c", "custom"):
        op.register_impl(provider, supports_args=never)(NORM)
    platform(Chooses(**{op.name: ["aiter", "vllm_c", "native"]}))
    assert op.get_priority() == ["aiter", "vllm_c", "native"]
    IrOpPriorityConfig(**{op.name: ["custom"]}).apply()
    assert op.get_priority() == ["custom", "aiter", "vllm_c", "native"]
    IrOpPriorityConfig(**{op.name: ["vllm_c"]}).apply()  # only what is out of order
    assert op.get_priority() == ["vllm_c", "aiter", "native"]


def test_batch_invariant_implementations_are_selected_by_the_environment():
    script = """
        import torch, vllm_ir as ir
        op = ir.ops.rms_norm
        op.register_impl("fast")(op.impls["native"].impl_fn)
        op.register_impl("steady", batch_invariant=True)(op.impls["native"].impl_fn)
        op.set_default(["fast", "steady"])
        print(op.dispatch(torch.ones(2, 4), None, 1e-6).provider)
    """
    assert output_of(script, env={"VLLM_BATCH_INVARIANT": "1"}).split() == ["steady"]
    assert output_of(script).split() == ["fast"]


# --- out of tree


def test_an_external_package_registers_and_its_platform_prefers_it(platform):
    op = new_norm()
    is_my_platform = True

    @op.register_impl("my_platform", supported=is_my_platform)
    def rms_norm(
        x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> Tensor:
        return NORM(x, weight, epsilon, variance_size)

    class MyPlatform(Platform):
        def get_default_ir_op_priority(self):
            return IrOpPriorityConfig(**{op.name: ["my_platform", "native"]})

    platform(MyPlatform())
    x, _, w = activations()
    with runs(op, my_platform=1):
        op(x, w, 1e-6)
    op.register_impl("custom_oot_kernel")(NORM)  # users override it in the same way
    KernelConfig(ir_op_priority=IrOpPriorityConfig(**{op.name: ["custom_oot_kernel"]})).apply()
    with runs(op, custom_oot_kernel=1):
        op(x, w, 1e-6)


def test_the_same_on_the_in_tree_op_in_a_process_of_its_own():
    """Without annotations, as the document writes it, the missing piece is named."""
    printed = output_of(
        """
        import torch, vllm_ir as ir
        from torch import Tensor

        try:
            @ir.ops.rms_norm.register_impl("my_platform")
            def rms_norm(x, weight, epsilon, variance_size=None):
                return x
        except ValueError as error:
            print("annotate" in str(error).lower())

        @ir.ops.rms_norm.register_impl("my_platform", supported=True)
        def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float,
                     variance_size: int | None = None) -> Tensor:
            return torch.full_like(x, 7)

        class MyPlatform(ir.Platform):
            def get_default_ir_op_priority(self):
                return ir.IrOpPriorityConfig(rms_norm=["my_platform", "native"])

        ir.set_platform(MyPlatform())
        print(ir.ops.rms_norm(torch.ones(1), None, 1e-6).item())
        print(ir.ops.fused_add_rms_norm.dispatch(torch.ones(1), torch.ones(1), None, 0.1).provider)
        ir.KernelConfig(ir_op_priority=ir.IrOpPriorityConfig(rms_norm=["vllm_c"])).apply()
        print(ir.ops.rms_norm.get_priority()[0])
        """
    )
    assert printed.split() == ["True", "7.0", "native", "vllm_c"]


# --- seeing it


def test_debug_logging_shows_the_choice_and_the_reasons():
    printed = output_of(
        """
        import logging, sys, torch, vllm_ir as ir
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        op = ir.ops.rms_norm
        op.register_impl("aiter", supported=False, unsupported_reason="no ROCm")(
            op.impls["native"].impl_fn
        )
        op.set_default(["aiter", "vllm_c", "native"])
        for dtype in (torch.float32, torch.float64, torch.float32):
            op(torch.ones(2, 4, dtype=dtype), None, 1e-6)
        """,
        env={"VLLM_LOGGING_LEVEL": "DEBUG"},
    )
    assert "DEBUG vllm_ir.rms_norm: vllm_c runs" in printed
    assert "DEBUG vllm_ir.rms_norm: native runs" in printed
    assert "rejected: x.dtype is float64" in printed
    assert "unsupported: no ROCm" in printed
    assert printed.count("vllm_c runs") == 1  # each decision once


def test_the_choice_can_be_asked_for_after_the_fact():
    op = new_norm()
    op.register_impl("mine", supports_args=rms_norm_no_var)(NORM)
    op.set_default(["mine", "native"])
    x, _, w = activations()
    op(x, w, 1e-6)
    op(x, w, 1e-6, 2)
    assert counts(op) == {"native": 1, "mine": 1}
    assert f"{op.name}: 2 calls" in str(vllm_ir.report())
    explanation = op.explain(x, w, 1e-6, 2)
    assert explanation.selected == "native"
    assert "mine    rejected: supports_args returned False" in str(explanation)
    assert ast.literal_eval(repr(explanation.to_dict()))["selected"] == "native"


def test_traced_graphs_show_the_operators_of_the_library():
    """Dynamo's graphs are in test_dynamo_basics.py; here make_fx, which needs no compiler."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def model(x, residual, w):
        x1 = ir.ops.rms_norm(x, w, 1e-5)
        return ir.ops.fused_add_rms_norm.maybe_inplace(x1, residual, w, 1e-5)

    graph = make_fx(model, tracing_mode="fake")(*activations())
    targets = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert torch.ops.vllm_ir.rms_norm.default in targets
    assert any("vllm_ir.fused_add_rms_norm" in str(t) for t in targets)
    assert not any("aten.rsqrt" in str(t) for t in targets)  # opaque: nothing decomposed
