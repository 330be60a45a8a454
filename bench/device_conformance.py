# SPDX-License-Identifier: Apache-2.0
"""Does every provider on this device do what native means, and is that near the truth?

Each provider of each op is called with the matrix of device_cases.py. It must be the one that runs;
its results must be native's within the op's tolerance, and within the bounds of float64 arithmetic.
What it refuses must come out as native's, to the bit.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from device_cases import DTYPES, FULL, OPS, QUICK, Case, Shape, cases_of
from device_findings import NO_TIME, Budget, Findings, Progress
from torch import Tensor

import vllm_ir as ir
from vllm_ir.dtypes import dtype_name
from vllm_ir.testing import Agreement, assert_matches_native, copied, refusal, truth_of
from vllm_ir.testing.agreement import same_bits

PART = "conformance"
SHOWN = 3  # failures of a row that are told in full
MORE_TIME = "give more with --seconds"


@dataclass
class Conformed:
    """What one provider of one op did in one dtype.

    Attributes:
        op: the op's name.
        provider: the provider's.
        dtype: of the activations.
        atol: how far the op lets a value be from native's.
        rtol: the same, in parts of the value.
        cases: calls that it ran.
        failed: those of them that were wrong.
        refused: calls that it would not run, by reason.
        values: how many values were compared.
        differing: how many of them are not native's.
        largest_ulp: the largest distance from native in units of the last place.
        of_bound: the largest distance from the truth; above 1 it is wrong.
        skipped: calls for which no time was left.
    """

    op: str
    provider: str
    dtype: str
    atol: float
    rtol: float
    cases: int = 0
    failed: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    values: int = 0
    differing: int = 0
    largest_ulp: int = 0
    of_bound: float = 0.0
    skipped: int = 0

    def add(self, agreements: Sequence[Agreement], of_bound: float) -> None:
        """Count the results of one call."""
        for agreement in agreements:
            self.values += agreement.numel
            self.differing += agreement.differing
            self.largest_ulp = max(self.largest_ulp, agreement.largest_ulp)
        self.of_bound = max(self.of_bound, of_bound)


def check_all(
    findings: Findings,
    device: str,
    quick: bool,
    expected: Sequence[str],
    budget: Budget,
    progress: Progress,
) -> None:
    """Check every provider of every op in `OPS`; each expected one must be among them."""
    pairs = [impl for name in OPS for impl in ir.IrOp.registry[name].impls.values()]
    for provider in expected:
        if all(impl.provider != provider for impl in pairs):
            findings.fail(PART, provider, "expected here, but registered for no op")
    for number, impl in enumerate(pairs):
        reason = absence(impl, device)
        if reason:
            tell = findings.fail if impl.provider in expected else findings.skip
            tell(PART, f"{impl.op.name}.{impl.provider}", f"did not run: {reason}")
            continue
        progress(f"checking {impl.op.name}.{impl.provider}")
        share = budget.part(1 / (len(pairs) - number))
        check_provider(findings, impl, device, QUICK if quick else FULL, expected, share)
        findings.write()  # a kernel may take the whole process with it


def absence(impl: ir.IrOpImpl, device: str) -> str:
    """Return why a provider has nothing to check on a device, "" when it has.

    A callable doesn't tell which devices it is for: what it refuses counts as refused.
    """
    if not impl.supported:
        return f"unsupported: {impl.unsupported_reason or 'registered with supported=False'}"
    clauses = impl.rule.clauses if impl.rule is not None else ()
    if all(device in devices for kind, _, devices, *_ in clauses if kind == "device"):
        return ""
    args = next(cases_of(impl.op, DTYPES[0], (Shape(4, 64),))).args(device)
    return refusal(impl.op, impl.provider, *args)


def check_provider(
    findings: Findings,
    impl: ir.IrOpImpl,
    device: str,
    shapes: tuple[Shape, ...],
    expected: Sequence[str],
    budget: Budget,
) -> None:
    """Check one provider of one op; cases take turns between dtypes, should time run out."""
    rows = {dtype: new_row(impl, dtype) for dtype in DTYPES}
    cases = [case for dtype in DTYPES for case in cases_of(impl.op, dtype, shapes)]
    random.Random(0).shuffle(cases)
    for case in cases:
        if budget.left <= 0:
            rows[case.dtype].skipped += 1
        else:
            check_case(findings, rows[case.dtype], impl, case, device)
    for row in rows.values():
        name = f"{row.op}.{row.provider} {row.dtype}"
        findings.conformance.append(row)
        must = row.provider in expected
        if row.skipped and row.cases and must:
            findings.fail(PART, name, cut_off(row))
        elif row.skipped:
            findings.skip(PART, f"{name}: {row.skipped} cases", NO_TIME)
        if row.failed > SHOWN:
            findings.fail(PART, name, f"{row.failed - SHOWN} more cases failed")
        reasons = "; ".join(f"{reason} ({n} cases)" for reason, n in row.refused.items())
        if not row.cases:
            findings.fail(PART, name, f"never ran: {reasons or NO_TIME}")
        elif row.refused:
            tell = findings.fail if must else findings.skip
            tell(PART, name, f"did not run in some cases: {reasons}")


def cut_off(row: Conformed) -> str:
    """Say how many cases of an expected provider the end of the time left out."""
    total = row.cases + sum(row.refused.values()) + row.skipped
    return f"expected, but {row.skipped} of {total} cases did not run: {NO_TIME}; {MORE_TIME}"


def new_row(impl: ir.IrOpImpl, dtype: torch.dtype) -> Conformed:
    """Return a row with nothing counted."""
    tolerance = impl.op.get_tolerance(dtype)
    return Conformed(impl.op.name, impl.provider, dtype_name(dtype), *tolerance)


def check_case(
    findings: Findings, row: Conformed, impl: ir.IrOpImpl, case: Case, device: str
) -> None:
    """Check one call and count it; whatever it raises is a failure, and the next case follows."""
    try:
        args = case.args(device)
        reason = refusal(impl.op, impl.provider, *args)
        if reason:
            row.refused[reason] = row.refused.get(reason, 0) + 1
            wrong = native_instead(impl, args)
        else:
            row.cases += 1
            donating = impl.op.allow_inplace
            agreements = assert_matches_native(impl.op, impl.provider, *args, donating=donating)
            of_bound = distance_from_truth(impl, args)
            row.add(agreements, of_bound)
            wrong = f"{of_bound:.3g} times the bound from the truth" if of_bound > 1 else ""
    except Exception as error:  # a kernel may fail in any way; the run must go on and tell
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        row.failed += 1
        if row.failed <= SHOWN:
            findings.fail(PART, f"{impl.op.name}.{impl.provider}", f"{case}: {wrong}")


def distance_from_truth(impl: ir.IrOpImpl, args: tuple[object, ...]) -> float:
    """Return how far the results are from float64, in units of the bound."""
    got = results_of(impl, args)
    truths = truth_of(impl.op.name, args)
    return max(truth.distance(g) for g, truth in zip(got, truths, strict=True))


def native_instead(impl: ir.IrOpImpl, args: tuple[object, ...]) -> str:
    """Return what is wrong where a provider refused: native must have run."""
    want = impl.op.impls["native"].impl_fn(*copied(args))
    want = (want,) if isinstance(want, Tensor) else want
    pairs = zip(results_of(impl, args), want, strict=True)
    return "" if all(same_bits(*pair) for pair in pairs) else "refused, and native did not run"


def results_of(impl: ir.IrOpImpl, args: tuple[object, ...]) -> tuple[Tensor, ...]:
    """Call the op on copies of the arguments, the provider first in priority."""
    with torch.no_grad(), impl.op.set_priority([impl.provider]):
        results = impl.op(*copied(args))
    return (results,) if isinstance(results, Tensor) else tuple(results)
