# SPDX-License-Identifier: Apache-2.0
"""Conformance cases from the registry: registering an implementation is what has it tested."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from vllm_ir.dtypes import dtype_name
from vllm_ir.impl import IrOpImpl
from vllm_ir.op import IrOp
from vllm_ir.testing.agreement import Agreement
from vllm_ir.testing.conformance import assert_matches_native, refusal

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = ((1, 64), (4, 64), (3, 7), (17, 768), (2, 4096), (0, 64))


@dataclass(frozen=True)
class Case:
    """One implementation and sample arguments for it.

    Attributes:
        impl: The implementation.
        dtype: Of the sample arguments.
        num_tokens: Rows of the activations.
        hidden_size: Their width.
        device: Where the arguments lie.
    """

    impl: IrOpImpl
    dtype: torch.dtype
    num_tokens: int
    hidden_size: int
    device: str = "cpu"

    def __str__(self) -> str:
        sizes = f"{self.num_tokens}x{self.hidden_size}"
        return f"{self.impl.op.name}-{self.impl.provider}-{dtype_name(self.dtype)}-{sizes}"

    def args(self) -> tuple[Any, ...]:
        """Return the op's sample arguments, the same ones each time."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.impl.op.sample_inputs(
                num_tokens=self.num_tokens,
                hidden_size=self.hidden_size,
                dtype=self.dtype,
                device=self.device,
            )

    def refusal(self) -> str:
        """Return why the implementation would not run, "" when it would: a reason to skip."""
        return refusal(self.impl.op, self.impl.provider, *self.args())

    def check(self) -> tuple[Agreement, ...]:
        """Call `assert_matches_native`, donating too where the op allows it."""
        op = self.impl.op
        return assert_matches_native(
            op, self.impl.provider, *self.args(), donating=op.allow_inplace
        )


def conformance_cases(
    *ops: IrOp,
    dtypes: Iterable[torch.dtype] = DTYPES,
    sizes: Iterable[tuple[int, int]] = SIZES,
    device: str = "cpu",
) -> list[Case]:
    """Return a case for each registered implementation of each op that has an input generator.

    A generator that doesn't take one of the keywords `num_tokens`, `hidden_size`, `dtype` and
    `device` is called without it.

    Args:
        *ops: None given: all registered ops.
        dtypes: Of the sample arguments.
        sizes: Pairs (num_tokens, hidden_size).
        device: Where the arguments lie.

    Example:
        >>> import pytest, vllm_ir as ir
        >>> from vllm_ir.testing import conformance_cases
        >>> @pytest.mark.parametrize("case", conformance_cases(ir.ops.rms_norm), ids=str)
        ... def test_rms_norm(case):
        ...     if case.refusal():
        ...         pytest.skip(case.refusal())
        ...     case.check()
    """
    dtypes, sizes = tuple(dtypes), tuple(sizes)
    return [
        Case(impl, dtype, num_tokens, hidden_size, device)
        for op in ops or tuple(IrOp.registry.values())
        if op.has_input_generator
        for impl in op.impls.values()
        for dtype in dtypes
        for num_tokens, hidden_size in sizes
    ]
