# SPDX-License-Identifier: Apache-2.0
import inspect
import re

import pytest
import torch
from torch import Tensor
from toys import line_of, new_name, pair_native, raises_exactly, toy_native

import vllm_ir as ir
from vllm_ir import _C
from vllm_ir.errors import DuplicateError, IrTypeError, IrValueError, UnknownNameError


def torch_schemas(name):
    return torch._C._jit_get_schemas_for_operator(f"vllm_ir::{name}")


def assert_nothing_was_defined(name):
    assert name not in ir.IrOp.registry
    assert torch_schemas(name) == []
    # The name is free: the failure left no half of an op behind.
    assert ir.register_op(toy_native, name=name).name == name


# ---- what it returns -----------------------------------------------------------------------------


def test_bare_with_parentheses_and_by_call_are_the_same():
    @ir.register_op
    def bare_op(x: Tensor) -> Tensor:
        return x.clone()

    @ir.register_op()
    def parenthesised_op(x: Tensor) -> Tensor:
        return x.clone()

    called = ir.register_op(toy_native, name=new_name())
    for op, name in ((bare_op, "bare_op"), (parenthesised_op, "parenthesised_op")):
        assert isinstance(op, ir.IrOp)
        assert op.name == name
    assert isinstance(called, ir.IrOp)


def test_an_op_appears_under_its_name_everywhere():
    op = ir.register_op(toy_native, name=new_name())
    assert ir.IrOp.registry[op.name] is op
    assert getattr(ir.ops, op.name) is op
    assert op.name in dir(ir.ops)
    assert op.torch_op is getattr(torch.ops.vllm_ir, op.name).default


def test_facts_of_an_op():
    op = ir.register_op(toy_native, name=new_name())  # declared here
    assert op.activations == ("x",)
    assert op.allow_inplace is False
    assert list(op.impls) == ["native"]
    assert op.impls["native"].impl_fn is toy_native
    assert op.impls["native"].batch_invariant
    assert op.supported_providers() == ["native"]
    assert op.source == line_of("declared here", __file__)
    assert op.impls["native"].source == op.source
    assert op.__name__ == op.__qualname__ == op.name
    assert op.__module__ == "toys"
    assert op.__doc__ == toy_native.__doc__
    assert inspect.signature(op) == inspect.signature(toy_native)
    assert repr(op) == f"IrOp('{op.name}')"
    assert str(op) == f"IrOp('{op.name}') - Scale x, then add y."


def test_str_of_an_op_without_a_docstring_is_its_repr():
    def undocumented(x: Tensor) -> Tensor:
        return x.clone()

    op = ir.register_op(undocumented, name=new_name())
    assert str(op) == repr(op) == f"IrOp('{op.name}')"


def test_names_of_maybe_inplace():
    op = ir.register_op(pair_native, name=new_name(), allow_inplace=True)
    assert repr(op.maybe_inplace) == f"IrOp('{op.name}').maybe_inplace"
    assert op.maybe_inplace.__name__ == "maybe_inplace"
    assert op.maybe_inplace.__qualname__ == f"{op.name}.maybe_inplace"
    assert inspect.signature(op.maybe_inplace) == inspect.signature(pair_native)
    assert op.maybe_inplace is op.maybe_inplace
    assert op.maybe_inplace.torch_op is getattr(torch.ops.vllm_ir, op.name).maybe_inplace
    assert "donates the activations" in op.maybe_inplace.__doc__


@pytest.mark.parametrize(
    "fact", ["name", "impls", "activations", "allow_inplace", "torch_op", "signature", "source"]
)
def test_the_facts_of_an_op_are_read_only(fact):
    op = ir.register_op(toy_native, name=new_name())
    before = getattr(op, fact)
    with pytest.raises(AttributeError):
        setattr(op, fact, "another")
    assert getattr(op, fact) == before
    with pytest.raises(TypeError):
        op.impls["native"] = None


def test_maybe_inplace_needs_allow_inplace():
    op = ir.register_op(toy_native, name=new_name())
    with raises_exactly(
        AttributeError,
        f"vllm_ir.{op.name}: has no maybe_inplace. Declare the op with "
        "@register_op(allow_inplace=True).",
    ):
        op.maybe_inplace  # noqa: B018
    assert not hasattr(getattr(torch.ops.vllm_ir, op.name), "maybe_inplace")


def test_traced_schemas_carry_the_donation_and_no_more():
    op = ir.register_op(pair_native, name=new_name(), allow_inplace=True)
    assert sorted(str(s) for s in torch_schemas(op.name)) == [
        f"vllm_ir::{op.name}(Tensor x, Tensor x_other, float scale=1.) -> (Tensor, Tensor)",
        f"vllm_ir::{op.name}.donated(Tensor x, Tensor x_other, float scale=1.) -> (Tensor, Tensor)",
        f"vllm_ir::{op.name}.maybe_inplace(Tensor(a0!) x, Tensor(a1!) x_other, float scale=1.)"
        " -> (Tensor, Tensor)",
    ]


# ---- activations ---------------------------------------------------------------------------------


def three(a: Tensor, x: Tensor, xs: Tensor, x_flag: bool = True) -> tuple[Tensor, Tensor]:
    return a + x, a + xs


def test_default_activations_are_the_tensors_that_start_with_x():
    assert ir.register_op(three, name=new_name()).activations == ("x", "xs")


def test_explicit_activations_keep_the_order_of_parameters():
    op = ir.register_op(three, name=new_name(), activations=["xs", "a"], allow_inplace=True)
    assert op.activations == ("a", "xs")


def test_no_activations_at_all():
    assert ir.register_op(three, name=new_name(), activations=[]).activations == ()


def test_an_optional_tensor_may_be_an_activation():
    def native(x: Tensor | None, y: Tensor) -> Tensor:
        return y.clone()

    op = ir.register_op(native, name=new_name(), activations=["x"], allow_inplace=True)
    assert op.activations == ("x",)


def test_unknown_activation():
    name = new_name()
    with raises_exactly(
        UnknownNameError,
        f"vllm_ir.{name}: unknown activation 'xss'. Known: a, x, x_flag, xs. Did you mean 'xs'?",
    ):
        ir.register_op(three, name=name, activations=["xss"])
    assert_nothing_was_defined(name)


def test_activations_that_are_a_string():
    name = new_name()
    with raises_exactly(
        IrTypeError, f"vllm_ir.{name}: activations must be a list of names, got str."
    ):
        ir.register_op(three, name=name, activations="x")
    assert_nothing_was_defined(name)


def test_an_activation_that_is_no_tensor():
    name = new_name()
    with raises_exactly(
        IrValueError,
        f"vllm_ir.{name}: activation 'x_flag' is not a Tensor. "
        "Name the activations with activations=[...].",
    ):
        ir.register_op(three, name=name, activations=["x_flag"])
    assert_nothing_was_defined(name)


def test_allow_inplace_needs_an_output_for_each_activation():
    name = new_name()
    with raises_exactly(
        IrValueError,
        f"vllm_ir.{name}: allow_inplace=True needs one Tensor output per activation, "
        "got 2 output(s) for 1 activation(s).",
    ):
        ir.register_op(three, name=name, activations=["x"], allow_inplace=True)
    assert_nothing_was_defined(name)


def test_allow_inplace_that_is_no_bool():
    name = new_name()
    with raises_exactly(IrTypeError, f"vllm_ir.{name}: allow_inplace must be a bool, got str."):
        ir.register_op(three, name=name, allow_inplace="no")
    assert_nothing_was_defined(name)


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "Upper", "1st", "a-b", "a.b", "a b", "ä", "a\n", "\na", "a::b", "a,b"]
)
def test_invalid_op_names(name):
    with raises_exactly(
        IrValueError,
        f"vllm_ir: op name '{name}' is invalid. It must match ^[a-z_][a-z0-9_]*$.",
    ):
        ir.register_op(toy_native, name=name)
    assert name not in ir.IrOp.registry


def test_a_lambda_has_no_name_of_its_own():
    with pytest.raises(IrValueError):
        ir.register_op(lambda x: x)


def test_an_op_name_that_is_no_string():
    with raises_exactly(IrTypeError, "vllm_ir: an op name must be a string, got int."):
        ir.register_op(toy_native, name=5)


@pytest.mark.parametrize("name", ["_a", "a1", "a_b_2", "lambda"])
def test_valid_op_names(name):
    op = ir.register_op(toy_native, name=f"{name}_{new_name()}")
    op.set_default(["native"])
    assert torch.equal(op(torch.ones(2)), torch.ones(2))


@pytest.mark.parametrize("name", ["name", "__init__", "__getattr__", "__class__"])
def test_a_name_that_torch_ops_can_t_show_is_refused_before_anything_is_defined(name):
    with pytest.raises(IrValueError, match=re.escape(f"vllm_ir: op name '{name}' is invalid.")):
        ir.register_op(toy_native, name=name)
    assert name not in ir.IrOp.registry
    assert torch_schemas(name) == []


def test_duplicate_op():
    first = ir.register_op(toy_native, name=new_name())  # first declaration
    text = (
        f"vllm_ir.{first.name}: the op is already registered at "
        f"{line_of('first declaration', __file__)}; the second registration is at "
        f"{line_of('second declaration', __file__)}. Import the module once, or choose another "
        "name."
    )
    with raises_exactly(DuplicateError, text):
        ir.register_op(pair_native, name=first.name)  # second declaration
    assert issubclass(DuplicateError, ValueError)
    assert issubclass(DuplicateError, AssertionError)
    assert ir.IrOp.registry[first.name] is first
    first.set_default(["native"])
    assert torch.equal(first(torch.ones(2), scale=3.0), torch.full((2,), 3.0))


@pytest.mark.parametrize("overload", ["", ".maybe_inplace"])
def test_a_name_that_another_library_took_in_torch(overload):
    name = new_name()
    library = torch.library.Library("vllm_ir", "FRAGMENT")
    library.define(f"{name}{overload}(Tensor x) -> Tensor")
    with pytest.raises(DuplicateError) as error:
        ir.register_op(pair_native, name=name, allow_inplace=True)
    text = str(error.value)
    assert text.startswith(
        f"vllm_ir.{name}: torch already has an operator of this name, registered at "
    )
    assert text.endswith(". Another package defines it; choose another op name.")
    assert name not in ir.IrOp.registry
    library._destroy()
    op = ir.register_op(pair_native, name=name, allow_inplace=True)
    op.set_default(["native"])
    assert torch.equal(op(torch.ones(2), torch.ones(2))[0], torch.full((2,), 2.0))


def test_unknown_op_by_attribute_and_by_key():
    with pytest.raises(AttributeError) as error:
        ir.ops.rmsnorm  # noqa: B018
    assert str(error.value).startswith("vllm_ir.ops: unknown op 'rmsnorm'. Known: ")
    assert str(error.value).endswith(" Did you mean 'rms_norm'?")
    with pytest.raises(KeyError) as missing:
        ir.IrOp.registry["rmsnorm"]
    assert str(missing.value).startswith("vllm_ir: unknown op 'rmsnorm'. Known: ")
    assert str(missing.value).endswith(" Did you mean 'rms_norm'?")


# ---- signatures ----------------------------------------------------------------------------------


def refused(native, text):
    name = new_name()
    with raises_exactly(IrValueError, f"vllm_ir.{name}: {text}"):
        ir.register_op(native, name=name)
    assert_nothing_was_defined(name)


def test_keyword_only_parameters():
    def native(x: Tensor, *, scale: float) -> Tensor:
        return x * scale

    refused(
        native,
        "keyword-only arguments are not supported, got 'scale'. Remove the * from the signature.",
    )


def test_positional_only_parameters():
    def native(x: Tensor, /) -> Tensor:
        return x

    refused(native, "every parameter must be positional-or-keyword, got 'x: torch.Tensor'.")


def test_variable_parameters():
    def native(x: Tensor, *rest: Tensor) -> Tensor:
        return x

    refused(native, "every parameter must be positional-or-keyword, got '*rest: torch.Tensor'.")


def test_a_parameter_without_annotation():
    def native(x, y: Tensor) -> Tensor:
        return x

    refused(native, "'x' has no annotation. Annotate it, x: Tensor say.")


def test_a_result_without_annotation():
    def native(x: Tensor):
        return x

    refused(native, "'return' has no annotation. Annotate it, x: Tensor say.")


@pytest.mark.parametrize(
    ("result", "shown"), [(int, "int"), (None, "None"), (list[Tensor], "list"), (tuple, "tuple")]
)
def test_a_result_that_is_no_tensor(result, shown):
    def native(x: Tensor):
        return x

    native.__annotations__["return"] = result
    refused(
        native,
        f"must return a Tensor or a tuple of Tensors, got '{shown}'. "
        "Annotate the result, -> Tensor or -> tuple[Tensor, Tensor].",
    )


def test_a_type_that_no_schema_has():
    def native(x: Tensor, mode: dict) -> Tensor:
        return x

    name = new_name()
    with pytest.raises(IrValueError) as error:
        ir.register_op(native, name=name)
    start = f"vllm_ir.{name}: torch can't make a schema of the signature. "
    assert str(error.value).startswith(start)
    assert "mode" in str(error.value)
    assert_nothing_was_defined(name)


def test_what_is_no_function():
    with pytest.raises(IrValueError, match=r"^vllm_ir\.toy.*a function with a signature is needed"):
        ir.register_op(5, name=new_name())


def test_too_many_parameters():
    params = ", ".join(f"p{i}: Tensor" for i in range(17))
    scope = {"Tensor": Tensor}
    exec(f"def native({params}) -> Tensor:\n    return p0.clone()", scope)
    refused(scope["native"], "takes 17 parameters. At most 16 are possible.")


def test_sixteen_parameters():
    params = ", ".join(f"p{i}: Tensor" for i in range(16))
    scope = {"Tensor": Tensor}
    exec(f"def native({params}) -> Tensor:\n    return p0 + p15", scope)
    op = ir.register_op(scope["native"], name=new_name())
    op.set_default(["native"])
    assert torch.equal(op(*[torch.ones(1)] * 16), torch.full((1,), 2.0))


def outputs(n):
    scope = {"Tensor": Tensor}
    result = ", ".join(["Tensor"] * n)
    exec(f"def native(x: Tensor) -> tuple[{result}]:\n    return (x + 1,) * {n}", scope)
    return scope["native"]


def test_too_many_outputs():
    refused(outputs(9), "returns 9 tensors. At most 8 are possible.")


def test_eight_outputs():
    op = ir.register_op(outputs(8), name=new_name())
    op.set_default(["native"])
    results = op(torch.ones(1))
    assert [r.item() for r in results] == [2.0] * 8


def test_a_parameter_named_self():
    def native(self: Tensor, other: Tensor) -> Tensor:
        return self - other

    op = ir.register_op(native, name=new_name())
    op.set_default(["native"])
    assert op(torch.ones(1), torch.ones(1)).item() == 0
    assert op(other=torch.ones(1), self=torch.full((1,), 3.0)).item() == 2


def test_no_parameters_at_all():
    def native() -> Tensor:
        return torch.ones(3)

    op = ir.register_op(native, name=new_name())
    op.set_default(["native"])
    assert torch.equal(op(), torch.ones(3))


# ---- fakes, sample inputs, tolerances ------------------------------------------------------------


def test_register_fake_replaces_native_for_every_overload():
    op = ir.register_op(pair_native, name=new_name(), allow_inplace=True)
    shapes = []

    @op.register_fake
    def fake(x, x_other, scale=1.0):
        shapes.append(tuple(x.shape))
        return x.new_empty(7), x.new_empty(8)

    with torch._subclasses.FakeTensorMode():
        x = torch.empty(3)
        for overload in (op, op.maybe_inplace):
            a, b = overload(x, torch.empty(3))
            assert (a.shape, b.shape) == ((7,), (8,))
    assert shapes == [(3,), (3,)]
    assert fake.__name__ == "fake"


def test_native_is_the_fake_until_then():
    op = ir.register_op(toy_native, name=new_name())
    with torch._subclasses.FakeTensorMode():
        assert op(torch.empty(3, 1), torch.empty(4)).shape == (3, 4)


def test_input_generator():
    op = ir.register_op(toy_native, name=new_name())
    assert not op.has_input_generator
    with raises_exactly(
        ir.IrRuntimeError,
        f"vllm_ir.{op.name}: No input generator registered. Use @op.register_input_generator.",
    ):
        op.generate_inputs(rows=3)
    with raises_exactly(
        ir.IrRuntimeError,
        f"vllm_ir.{op.name}: No input generator registered. Use @op.register_input_generator.",
    ):
        op.sample_inputs(rows=3)

    @op.register_input_generator
    def inputs(rows=1):
        return (torch.ones(rows),)

    assert op.has_input_generator
    assert op.generate_inputs(rows=3)[0].shape == (3,)
    assert op.sample_inputs(rows=3, dtype=torch.float16)[0].shape == (3,)
    with pytest.raises(TypeError, match="unexpected keyword argument 'dtype'"):
        op.generate_inputs(rows=3, dtype=torch.float16)
    assert inputs()[0].shape == (1,)


def test_an_input_generator_that_takes_any_keyword_gets_all():
    op = ir.register_op(toy_native, name=new_name())

    @op.register_input_generator
    def inputs(**kwargs):
        return tuple(kwargs.items())

    assert op.sample_inputs(rows=3, dtype=None) == (("rows", 3), ("dtype", None))


def test_tolerances():
    op = ir.register_op(toy_native, name=new_name())
    defaults = {
        torch.float64: (1e-8, 1e-8),
        torch.float32: (1e-5, 1.3e-6),
        torch.float16: (1e-3, 1e-3),
        torch.bfloat16: (1e-3, 1.6e-2),
        torch.float8_e4m3fn: (1e-1, 1e-1),
        torch.float8_e5m2: (2e-1, 2e-1),
        torch.int8: (1, 0),
    }
    for dtype, expected in defaults.items():
        got = op.get_tolerance(dtype)
        assert (got.atol, got.rtol) == expected
    op.override_tolerance(torch.int64, atol=2, rtol=0.5)
    assert op.get_tolerance(torch.int64) == (2, 0.5)
    op.override_tolerance(torch.float32, atol=0, rtol=0)
    assert op.get_tolerance(torch.float32) == (0, 0)
    with raises_exactly(
        IrValueError,
        f"vllm_ir.{op.name}: No tolerance defined for dtype bool. Use op.override_tolerance.",
    ):
        op.get_tolerance(torch.bool)


@pytest.mark.parametrize("op", [ir.ops.rms_norm, ir.ops.fused_add_rms_norm])
def test_the_norms_override_the_tolerance_of_float16(op):
    assert op.get_tolerance(torch.float16) == (1e-2, 2e-3)
    assert op.get_tolerance(torch.bfloat16) == (1e-3, 1.6e-2)


def test_a_parameter_may_have_any_name():
    def native(_op: Tensor, self: Tensor, cls: Tensor) -> Tensor:
        return _op + self + cls

    op = ir.register_op(native, name=new_name("names"))
    one = torch.ones(2)
    assert torch.equal(op(one, self=one, cls=one), 3 * one)
    assert torch.equal(type(op).__call__(op, one, one, cls=one), 3 * one)


def test_an_object_without_its_init_says_so():
    bare = _C.IrOpBase.__new__(_C.IrOpBase)
    text = "vllm_ir: internal error, please report: op before __init__"
    for use in (lambda: bare.set_priority([]), lambda: bare._explain((), False)):
        with raises_exactly(ir.IrRuntimeError, text):
            use()
