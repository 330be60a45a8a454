# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import torch

import vllm_ir as ir
from vllm_ir.errors import IrValueError
from vllm_ir.sample_args import Sample, describe, parse_shape, sample_args

_number = itertools.count()


def described(op, **options):
    return {name: describe(value) for name, value in sample_args(op, Sample(**options)).items()}


def test_activations_get_the_shape_and_weights_its_last_size():
    assert described(ir.ops.fused_add_rms_norm, shape=(2, 8), dtype="bfloat16") == {
        "x": "bfloat16[2, 8] on cpu",
        "x_residual": "bfloat16[2, 8] on cpu",
        "weight": "bfloat16[8] on cpu",
        "epsilon": "1e-06",
        "variance_size": "None",
    }


def test_the_default_is_four_rows_of_float32():
    assert described(ir.ops.rms_norm)["x"] == "float32[4, 64] on cpu"


@pytest.mark.parametrize("op", [ir.ops.silu_and_mul, ir.ops.gelu_and_mul], ids=str)
def test_a_shape_is_the_activations_where_the_generator_counts_otherwise(op):
    for shape in ((2, 8), (4, 7)):
        assert described(op, shape=shape) == {"x": f"float32{list(shape)} on cpu"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("none", "None"),
        ("None", "None"),
        ("true", "True"),
        ("false", "False"),
        ("8", "8"),
        ("-1", "-1"),
        ("1e-5", "1e-05"),
        ("float16[3]", "float16[3] on cpu"),
        ("int64[2, 3]", "int64[2, 3] on cpu"),
        ("float32[]", "float32[] on cpu"),
        ("float8_e4m3fn[4]", "float8_e4m3fn[4] on cpu"),
    ],
)
def test_a_given_argument(text, value):
    assert described(ir.ops.rms_norm, given={"weight": text})["weight"] == value


def test_a_shape_that_the_generator_does_not_make():
    made = described(ir.ops.rms_norm, shape=(2, 3, 4), dtype="bfloat16")
    assert made == {
        "x": "bfloat16[2, 3, 4] on cpu",
        "weight": "bfloat16[4] on cpu",
        "epsilon": "1e-06",
    }


@pytest.mark.parametrize("shape", [(2, 8), (2, 3, 8)])
def test_an_optional_parameter_may_be_given(shape):
    given = {"variance_size": "4"}
    assert described(ir.ops.rms_norm, shape=shape, given=given)["variance_size"] == "4"


def test_the_op_s_own_generator_is_used_when_it_takes_sizes():
    def native(x: torch.Tensor, size: int) -> torch.Tensor:
        return x[:size].clone()

    op = ir.register_op(native, name=f"sample_op_{next(_number)}")

    @op.register_input_generator
    def generate(num_tokens, hidden_size, dtype, device):
        return torch.ones(num_tokens, hidden_size, dtype=dtype, device=device), num_tokens

    assert described(op, shape=(3, 2)) == {"x": "float32[3, 2] on cpu", "size": "3"}


def test_a_generator_with_other_sizes_is_left_alone():
    def native(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    op = ir.register_op(native, name=f"sample_op_{next(_number)}")

    @op.register_input_generator
    def generate(blocks):
        raise AssertionError("called")

    assert described(op, shape=(3, 2)) == {"x": "float32[3, 2] on cpu", "factor": "1e-06"}


def test_a_generator_without_the_other_keywords_is_called_without_them():
    def native(x: torch.Tensor, size: int) -> torch.Tensor:
        return x[:size].clone()

    op = ir.register_op(native, name=f"sample_op_{next(_number)}")

    @op.register_input_generator
    def generate(num_tokens, hidden_size):
        return torch.ones(num_tokens, hidden_size), 1

    assert described(op, shape=(3, 2)) == {"x": "float32[3, 2] on cpu", "size": "1"}


def test_a_type_error_inside_of_a_generator_is_not_swallowed():
    def native(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    op = ir.register_op(native, name=f"sample_op_{next(_number)}")

    @op.register_input_generator
    def generate(num_tokens, hidden_size):
        return len(num_tokens)

    with pytest.raises(TypeError, match="has no len"):
        sample_args(op, Sample())


def test_tensors_are_made_on_the_device():
    assert described(ir.ops.rms_norm, device="meta")["x"] == "float32[4, 64] on meta"


@pytest.mark.parametrize(("text", "shape"), [("4,64", (4, 64)), ("8", (8,)), ("0, 3", (0, 3))])
def test_parse_shape(text, shape):
    assert parse_shape(text) == shape
    assert parse_shape("") == ()


@pytest.mark.parametrize("text", ["a", "4,-1", "4,,2", "4x2", "1.5"])
def test_a_malformed_shape(text):
    with pytest.raises(IrValueError) as error:
        parse_shape(text)
    assert str(error.value) == f"vllm_ir.explain: a shape is sizes such as 4,64, got '{text}'."


BAD = [
    (
        {"given": {"wight": "none"}},
        "vllm_ir.rms_norm: --arg names a parameter of the op, got 'wight'. "
        "Known: x, weight, epsilon, variance_size. Did you mean 'weight'?",
    ),
    (
        {"given": {"weight": "abc"}},
        "vllm_ir.rms_norm: --arg weight takes none, true, false, a number or a tensor such as "
        "float32[64], got 'abc'.",
    ),
    (
        {"dtype": "bf16"},
        "vllm_ir.explain: a dtype is one of torch's, such as bfloat16, got 'bf16'. "
        "Did you mean 'bfloat16'?",
    ),
]


@pytest.mark.parametrize(("options", "text"), BAD)
def test_a_sample_without_meaning(options, text):
    with pytest.raises(IrValueError) as error:
        sample_args(ir.ops.rms_norm, Sample(**options))
    assert str(error.value) == text


def test_a_device_that_torch_refuses():
    with pytest.raises(IrValueError) as error:
        sample_args(ir.ops.rms_norm, Sample(device="nowhere"))
    assert str(error.value).startswith(
        "vllm_ir.explain: torch makes the sample tensors, got float32[4, 64] on 'nowhere': "
    )


def test_a_parameter_that_cannot_be_guessed():
    def native(x: torch.Tensor, size: int) -> torch.Tensor:
        return x[:size].clone()

    op = ir.register_op(native, name=f"sample_op_{next(_number)}")
    assert described(op, given={"size": "2"})["size"] == "2"
    with pytest.raises(IrValueError) as error:
        sample_args(op, Sample())
    assert str(error.value) == (
        f"vllm_ir.{op.name}: no sample for parameter 'size'. Give it: --arg size=..."
    )
