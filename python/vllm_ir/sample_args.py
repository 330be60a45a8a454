# SPDX-License-Identifier: Apache-2.0
"""Arguments to ask an op about from the command line: shapes and dtypes in, tensors out."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from vllm_ir import dtypes
from vllm_ir.errors import IrValueError, nearest
from vllm_ir.op import IrOp

_TENSOR = re.compile(r"(\w+)\[([\d,\s]*)\]")
_EPSILON = 1e-6
# Out of memory, a device that isn't there, a torch without CUDA, a size above 2**63.
_TORCH_REFUSES = (RuntimeError, AssertionError, TypeError, OverflowError)


@dataclass(frozen=True)
class Sample:
    """What the arguments shall look like.

    Args:
        shape: Of the activations; other tensors get its last size.
        dtype: Of every tensor.
        device: Of every tensor.
        given: Parameter → text: `none`, `true`, a number, or a tensor as `float32[64]`.
    """

    shape: tuple[int, ...] = (4, 64)
    dtype: str = "float32"
    device: str = "cpu"
    given: Mapping[str, str] = field(default_factory=dict)


def parse_shape(text: str) -> tuple[int, ...]:
    """Read `4,64`; empty text is the shape of a scalar.

    Raises:
        IrValueError: A size is not a whole number ≥ 0.
    """
    try:
        sizes = tuple(int(part) for part in text.split(",") if text.strip())
    except ValueError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise IrValueError(f"vllm_ir.explain: a shape is sizes such as 4,64, got {text!r}.")
    return sizes


def sample_args(op: IrOp, sample: Sample) -> dict[str, object]:
    """Make one argument for each parameter that needs one or is given.

    Raises:
        IrValueError: A name or a text of `sample` has no meaning, or a parameter can't be guessed.
    """
    parameters = op.signature.parameters
    for name in sample.given:
        if name not in parameters:
            raise IrValueError(
                f"vllm_ir.{op.name}: --arg names a parameter of the op, got {name!r}. "
                f"Known: {', '.join(parameters)}.{nearest(name, parameters)}"
            )
    made = _generated(op, sample) or {
        name: _guess(op, parameter, sample)
        for name, parameter in parameters.items()
        if name not in sample.given and parameter.default is inspect.Parameter.empty
    }
    given = {name: _given(op, name, sample) for name in sample.given}
    return {name: {**made, **given}[name] for name in parameters if name in made or name in given}


def describe(value: object) -> str:
    """Return a short text: `float32[4, 64] on cpu` for a tensor, else the repr."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{dtypes.dtype_name(value.dtype)}{list(value.shape)} on {value.device}"


def _generated(op: IrOp, sample: Sample) -> dict[str, object]:
    """Return the arguments of the op's own generator; empty when it has none for such a shape."""
    if not op.has_input_generator or len(sample.shape) != 2:
        return {}
    sizes = dict(zip(("num_tokens", "hidden_size"), sample.shape, strict=True))
    if op.generator_takes(sizes) != sizes:
        return {}  # it takes sizes of another kind
    # What torch refuses, it refuses here; an error of the generator itself passes as it is.
    _tensor(sample, sample.shape, sample.dtype)
    args = op.sample_inputs(**sizes, dtype=_dtype(sample.dtype), device=sample.device)
    made = dict(zip(op.signature.parameters, args, strict=False))
    shapes = {tuple(getattr(made.get(name), "shape", ())) for name in op.activations}
    return made if shapes == {sample.shape} else {}  # its sizes have another meaning


def _guess(op: IrOp, parameter: inspect.Parameter, sample: Sample) -> object:
    kind = str(parameter.annotation)
    if "Tensor" in kind:
        activation = parameter.name in op.activations
        return _tensor(sample, sample.shape if activation else sample.shape[-1:], sample.dtype)
    if "float" in kind:
        return _EPSILON
    raise IrValueError(
        f"vllm_ir.{op.name}: no sample for parameter {parameter.name!r}. "
        f"Give it: --arg {parameter.name}=..."
    )


def _given(op: IrOp, name: str, sample: Sample) -> object:
    text = sample.given[name].strip()
    words: dict[str, object] = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    if match := _TENSOR.fullmatch(text):
        return _tensor(sample, parse_shape(match[2]), match[1])
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    raise IrValueError(
        f"vllm_ir.{op.name}: --arg {name} takes none, true, false, a number or a tensor such as "
        f"float32[64], got {text!r}."
    )


def _tensor(sample: Sample, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    try:
        return torch.ones(shape, device=sample.device).to(_dtype(dtype))
    except _TORCH_REFUSES as error:
        raise _refused(sample, shape, dtype, error) from error


def _dtype(name: str) -> torch.dtype:
    if name not in dtypes.BY_NAME:
        raise IrValueError(
            f"vllm_ir.explain: a dtype is one of torch's, such as bfloat16, "
            f"got {name!r}.{nearest(name, dtypes.BY_NAME)}"
        )
    return dtypes.BY_NAME[name]


def _refused(sample: Sample, shape: tuple[int, ...], dtype: str, error: Exception) -> IrValueError:
    cause = str(error).partition("\n")[0]
    return IrValueError(
        f"vllm_ir.explain: torch makes the sample tensors, got {dtype}{list(shape)} "
        f"on {sample.device!r}: {cause}"
    )
