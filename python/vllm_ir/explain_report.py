# SPDX-License-Identifier: Apache-2.0
"""What `vllm-ir explain` shows: the decision for each implementation on sample arguments."""

from dataclasses import dataclass

from vllm_ir.explanation import Explanation
from vllm_ir.op import IrOp
from vllm_ir.sample_args import Sample, describe, sample_args


@dataclass(frozen=True)
class ExplainReport:
    """An explanation with the arguments that it is about."""

    args: dict[str, str]
    explanation: Explanation

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON data."""
        return {"args": self.args, **self.explanation.to_dict()}

    def __str__(self) -> str:
        args = ", ".join(f"{name}={text}" for name, text in self.args.items())
        return f"Arguments: {args}\n{self.explanation}"


def explain_report(op: IrOp, sample: Sample) -> ExplainReport:
    """Explain a call of `op` with sample arguments."""
    args = sample_args(op, sample)
    described = {name: describe(value) for name, value in args.items()}
    return ExplainReport(described, op.explain(**args))
