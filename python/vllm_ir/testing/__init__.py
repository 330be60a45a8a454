# SPDX-License-Identifier: Apache-2.0
"""Tests for implementations, in tree and out: `assert_matches_native` and `conformance_cases`.

Nothing in the package imports this part. It needs torch only, no test framework.
"""

from vllm_ir.testing.agreement import Agreement, measure
from vllm_ir.testing.cases import Case, conformance_cases
from vllm_ir.testing.conformance import ConformanceError, assert_matches_native, refusal
from vllm_ir.testing.memory import Memory, copied
from vllm_ir.testing.truth import Truth, truth_of

__all__ = [
    "Agreement",
    "Case",
    "ConformanceError",
    "Memory",
    "Truth",
    "assert_matches_native",
    "conformance_cases",
    "copied",
    "measure",
    "refusal",
    "truth_of",
]
