# SPDX-License-Identifier: Apache-2.0
"""More ops for random programs: implementations that are awkward to put into a graph.

They write through views, return pieces of one buffer or each other's memory, call other ops, or
read an argument that they were not given to write. In eager calls each one is right.
"""

import opaque_kernels as kernels
import torch
from ops_for_programs import OPS
from torch import Tensor

import vllm_ir as ir
from vllm_ir import rules


def _half(x: Tensor) -> int:
    return max(1, x.shape[-1] // 2)


def _ramp() -> ir.IrOp:
    def ramp(x: Tensor, factor: float) -> Tensor:
        out = x.clone(memory_format=torch.contiguous_format)
        out.narrow(-1, 0, _half(x)).mul_(factor)
        return out

    op = ir.register_op(ramp, name="program_ramp", allow_inplace=True)
    alone = rules.no_overlap("x")

    @op.register_impl("kernel", supports_args=alone, inplace=True)
    def kernel(x: Tensor, factor: float) -> Tensor:
        kernels.ramp_(x, factor)
        return x

    @op.register_impl("through_view", supports_args=alone, inplace=True)
    def through_view(x: Tensor, factor: float) -> Tensor:
        kernels.scale_(x.narrow(-1, 0, _half(x)), factor)
        return x

    @op.register_impl("written_out", supports_args=alone, inplace=True)
    def written_out(x: Tensor, factor: float) -> Tensor:
        x.narrow(-1, 0, _half(x)).mul_(factor)
        return x

    @op.register_impl("half_written_out", supports_args=alone, inplace=True)
    def half_written_out(x: Tensor, factor: float) -> Tensor:
        """Write by torch's operators, by a kernel, and by torch's operators."""
        x.mul_(factor)
        kernels.scale_(x.narrow(-1, _half(x), x.shape[-1] - _half(x)), 1.0 / factor)
        return x.mul_(1.0)

    @op.register_impl("two_ops")
    def two_ops(x: Tensor, factor: float) -> Tensor:
        scale = OPS["scale"].op
        return torch.cat([scale(x[..., : _half(x)], factor), x[..., _half(x) :]], -1)

    @op.register_impl("donates_inside", supports_args=alone, inplace=True)
    def donates_inside(x: Tensor, factor: float) -> Tensor:
        head = OPS["scale"].op.maybe_inplace(x[..., : _half(x)], factor)
        return torch.cat([head, x[..., _half(x) :]], -1)

    return op


def _mix() -> ir.IrOp:
    def mix(x: Tensor, y: Tensor, factor: float) -> Tensor:
        return x * factor + y

    op = ir.register_op(mix, name="program_mix", activations=["x"], allow_inplace=True)
    apart = rules.no_overlap("x", "y")

    @op.register_impl("kernel", supports_args=apart, inplace=True)
    def kernel(x: Tensor, y: Tensor, factor: float) -> Tensor:
        kernels.mix_(x, y, factor)
        return x

    @op.register_impl("rows", supports_args=rules.min_dims("x", 1), inplace=True)
    def rows(x: Tensor, y: Tensor, factor: float) -> Tensor:
        kernels.mix_rows_(x, y, factor)
        return x

    @op.register_impl("written_out", supports_args=apart, inplace=True)
    def written_out(x: Tensor, y: Tensor, factor: float) -> Tensor:
        return x.mul_(factor).add_(y)

    @op.register_impl("scratch", supports_args=apart, inplace=True)
    def scratch(x: Tensor, y: Tensor, factor: float) -> Tensor:
        """Use the donated memory as scratch only: the result is another tensor."""
        out = torch.empty_like(y, memory_format=torch.contiguous_format)
        kernels.mix_into_(out, x, y, factor)
        return out

    return op


def _crossed() -> ir.IrOp:
    def crossed(x: Tensor, x_other: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return x_other * factor, x + x_other

    op = ir.register_op(
        crossed, name="program_crossed", activations=["x", "x_other"], allow_inplace=True
    )
    apart = rules.no_overlap("x", "x_other")

    @op.register_impl("swaps", supports_args=apart, inplace=True)
    def swaps(x: Tensor, x_other: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """Give each result the other one's memory."""
        kernels.crossed_(x, x_other, factor)
        return x_other, x

    @op.register_impl("written_out", supports_args=apart, inplace=True)
    def written_out(x: Tensor, x_other: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return x_other.mul_(factor), x.add_(x_other, alpha=1.0 / factor)

    @op.register_impl("one_buffer")
    def one_buffer(x: Tensor, x_other: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        both = torch.stack([x_other * factor, x + x_other])
        return both[0], both[1]

    return op


def _halves() -> ir.IrOp:
    def halves(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return x[..., : _half(x)] * factor, x[..., _half(x) :] + factor

    op = ir.register_op(halves, name="program_halves")

    @op.register_impl("one_buffer")
    def one_buffer(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        first, second = x.clone().tensor_split([_half(x)], -1)
        return first.mul_(factor), second.add_(factor)

    return op


# By the name that programs use.
IR_OPS: dict[str, ir.IrOp] = {name: under_test.op for name, under_test in OPS.items()} | {
    "ramp": _ramp(),
    "mix": _mix(),
    "crossed": _crossed(),
    "halves": _halves(),
    # The package's own: fusion passes know these.
    "norm": ir.ops.rms_norm,
    "fused_norm": ir.ops.fused_add_rms_norm,
}
OUTPUTS = dict.fromkeys(("add_norm", "fused_norm", "butterfly", "crossed", "halves"), 2)
