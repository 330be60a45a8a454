# SPDX-License-Identifier: Apache-2.0
"""Who runs a program of `compile_subjects`: eager, plain `torch.compile`, `vllm_ir`, by hand."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from compile_subjects import Norm, Program
from torch import Tensor

import vllm_ir as ir

NORMS = ("rms_norm", "fused_add_rms_norm")
OP = ir.ops.fused_add_rms_norm


def by_hand(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Call the kernel itself, in place, as one would without ops."""
    torch.ops.vllm_ir_C.fused_add_rms_norm_(x, residual, weight, epsilon, None)
    return x, residual


def native(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Call the function that is the op's meaning, as one would without kernels."""
    result: tuple[Tensor, Tensor] = OP.impls["native"].impl_fn(x, residual, weight, epsilon)
    return result


@dataclass(frozen=True)
class Contender:
    """One way to run a program.

    Attributes:
        label: names the row.
        norm: what the program calls; the op donates its activations.
        compiler: `plain`, `ours`, or "" for eager.
        provider: what norms must run; "" for a program without ops.
        options: Inductor's, for those who compile.
    """

    label: str
    norm: Norm
    compiler: str = ""
    provider: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context in which all norms run `provider`."""
        if not self.provider:
            return nullcontext()
        names = list(dict.fromkeys([self.provider, "native"]))
        return ir.IrOpPriorityConfig.from_dict(dict.fromkeys(NORMS, names)).scoped()

    def build(self, program: Program) -> Program:
        """Wrap a program in the compiler."""
        if not self.compiler:
            return program
        compile_it: Callable[..., Program] = (
            ir.compile if self.compiler == "ours" else torch.compile
        )
        return compile_it(program, fullgraph=True, dynamic=False, options=dict(self.options))


def contenders(threads: int) -> dict[str, Contender]:
    """Return all ways by label; the number of threads goes into generated code."""
    options = {"cpp.threads": threads}
    op: Norm = OP.maybe_inplace
    ways = [
        Contender("eager native", op, provider="native"),
        Contender("eager vllm_c", op, provider="vllm_c"),
        Contender("compiled native", native, "plain", options=options),
        Contender("lowered native", op, "ours", "native", options),
        Contender("lowered vllm_c", op, "ours", "vllm_c", options),
        Contender("by hand", by_hand),
        Contender("by hand, compiled", by_hand, "plain", options=options),
    ]
    return {way.label: way for way in ways}
