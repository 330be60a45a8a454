# SPDX-License-Identifier: Apache-2.0
"""The ops of the random programs: each with providers that work in place, alias or refuse."""

from dataclasses import dataclass
from typing import Any

import opaque_kernels as kernels
from norm_inputs import inplace_norm
from torch import Tensor

import vllm_ir as ir
from vllm_ir import rules

EPSILON = 0.25  # large, so that a rounding error in a small value stays one
RMS, ADD = ir.ops.rms_norm.impls, ir.ops.fused_add_rms_norm.impls


@dataclass(frozen=True)
class OpUnderTest:
    """An op and what a step needs to know about it."""

    op: ir.IrOp
    outputs: int
    weight: bool

    @property
    def providers(self) -> list[str]:
        return list(self.op.impls)

    @property
    def allow_inplace(self) -> bool:
        return self.op.allow_inplace


def _again(op: ir.IrOp, provider: str, impl: ir.IrOpImpl) -> None:
    """Register an in-tree implementation, its rule and entry, for another op."""
    op.register_impl(provider, supports_args=impl.rule, inplace=impl.inplace, entry=impl.entry)(
        impl.impl_fn
    )


def _rms_norm() -> ir.IrOp:
    op = ir.register_op(RMS["native"].impl_fn, name="program_rms_norm")
    _again(op, "vllm_c", RMS["vllm_c"])
    op.register_impl("traceable", supports_args=RMS["vllm_c"].rule)(RMS["vllm_c"].impl_fn)
    return op


def _add_norm() -> ir.IrOp:
    op = ir.register_op(ADD["native"].impl_fn, name="program_add_norm", allow_inplace=True)
    _again(op, "vllm_c", ADD["vllm_c"])
    alone = rules.no_overlap("x", "x_residual", "weight")
    op.register_impl("inplace", supports_args=alone, inplace=True)(inplace_norm)
    op.register_impl("traceable", supports_args=ADD["vllm_c"].rule, inplace=True)(
        ADD["vllm_c"].impl_fn
    )
    return op


def _scale() -> ir.IrOp:
    def scale(x: Tensor, factor: float) -> Tensor:
        return x * factor

    op = ir.register_op(scale, name="program_scale", allow_inplace=True)

    @op.register_impl("returns_input", supports_args=lambda x, factor: factor == 1.0)
    def returns_input(x: Tensor, factor: float) -> Tensor:
        return x

    @op.register_impl("returns_view", supports_args=lambda x, factor: factor == 1.0)
    def returns_view(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @op.register_impl("inplace", supports_args=rules.no_overlap("x"), inplace=True)
    def inplace(x: Tensor, factor: float) -> Tensor:
        return x.mul_(factor)

    @op.register_impl("kernel", supports_args=rules.no_overlap("x"), inplace=True)
    def kernel(x: Tensor, factor: float) -> Tensor:
        kernels.scale_(x, factor)
        return x

    return op


def _butterfly() -> ir.IrOp:
    def butterfly(x: Tensor, x_other: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return x + factor * x_other, x - factor * x_other

    op = ir.register_op(butterfly, name="program_butterfly", allow_inplace=True)

    @op.register_impl("inplace", supports_args=rules.no_overlap("x", "x_other"), inplace=True)
    def inplace(x: Tensor, x_other: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        difference = x - factor * x_other
        x.add_(x_other, alpha=factor)
        return x, x_other.copy_(difference)

    @op.register_impl("first_only", supports_args=rules.no_overlap("x", "x_other"), inplace=True)
    def first_only(x: Tensor, x_other: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        difference = x - factor * x_other
        return x.add_(x_other, alpha=factor), difference

    @op.register_impl("kernel", supports_args=rules.no_overlap("x", "x_other"), inplace=True)
    def kernel(x: Tensor, x_other: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        kernels.butterfly_(x, x_other, factor)
        return x, x_other

    return op


OPS = {
    "rms_norm": OpUnderTest(_rms_norm(), 1, weight=True),
    "add_norm": OpUnderTest(_add_norm(), 2, weight=True),
    "scale": OpUnderTest(_scale(), 1, weight=False),
    "butterfly": OpUnderTest(_butterfly(), 2, weight=False),
}


def _arguments(step: Any, inputs: list[Tensor]) -> tuple[Any, ...]:
    under_test, factor = OPS[step.kind], step.detail[2]
    activations = inputs[: under_test.outputs]
    if not under_test.weight:
        return (*activations, factor)
    weight = inputs[-1] if len(inputs) > under_test.outputs else None
    return (*activations, weight, EPSILON)


def call_ir(step: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Run an op's step through the op, under the step's priority."""
    overload, priority, _ = step.detail
    op = OPS[step.kind].op
    with op.set_priority(list(priority)):
        call = op.maybe_inplace if overload == "donate" else op
        result = call(*_arguments(step, inputs))
    return list(result) if isinstance(result, tuple) else [result]


def call_native(step: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Run an op's step as its native function, out of place."""
    result = OPS[step.kind].op.impls["native"].impl_fn(*_arguments(step, inputs))
    return list(result) if isinstance(result, tuple) else [result]
