# SPDX-License-Identifier: Apache-2.0
"""What does a call of `rms_norm` cost the host, by op and by `torch.ops`, on a tensor of 16 values?

On a GPU the kernel runs behind the host, so that the time is that of the call and its launch. A
slice begins with an empty queue.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from device_conformance import absence
from device_findings import Findings
from stopwatch import Case, Timing, measure

import vllm_ir as ir

PART = "overhead"
EPSILON = 1e-6
KERNEL = "torch.ops.vllm_ir_C.rms_norm"
ROUNDS = {True: 30, False: 300}


@dataclass(frozen=True)
class Overhead:
    """One way to call, in nanoseconds of the host.

    Attributes:
        route: what is called, with the provider that runs.
        ns: the shortest of many slices.
        noise_ns: how far the shortest of the even and of the odd slices lie apart.
        of_kernel: by the time of the kernel's own `torch.ops` call, None where there is none.
    """

    route: str
    ns: float
    noise_ns: float
    of_kernel: float | None


def measure_all(findings: Findings, device: str, quick: bool) -> None:
    """Measure all routes against each other."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    with torch.inference_mode():
        cases = [case for case in routes(device, synchronize) if works(findings, case)]
        findings.overhead += rows_of(measure(cases, rounds=ROUNDS[quick]))


def rows_of(timings: dict[str, Timing]) -> list[Overhead]:
    """Return the rows, each beside the kernel's own call."""
    kernel = timings.get(KERNEL)
    return [
        Overhead(t.label, t.minimum, t.wobble, t.minimum / kernel.minimum if kernel else None)
        for t in timings.values()
    ]


def routes(device: str, synchronize: Callable[[], None]) -> Iterator[Case]:
    """Yield each way to call, with torch's own norm and an empty tensor for scale."""
    x, w = (torch.ones(shape, dtype=torch.bfloat16, device=device) for shape in ((1, 16), (16,)))
    names = {"x": x, "w": w, "eps": EPSILON, "none": None, "size": (16,)}
    op = ir.ops.rms_norm

    def case(label: str, statement: str, f: Any, scope: Callable[[], Any] = nullcontext) -> Case:
        return Case(label, statement, names | {"f": f}, around=lambda: quiet(scope, synchronize))

    yield case("torch.empty_like", "f(x)", torch.empty_like)
    yield case("F.rms_norm", "f(x, size, w, eps)", F.rms_norm)
    yield case(KERNEL, "f(x, w, eps, none)", torch.ops.vllm_ir_C.rms_norm)
    for provider, impl in op.impls.items():
        if absence(impl, device):
            continue  # the part on conformance tells so
        first = list(dict.fromkeys([provider, "native"]))
        for label, f in (("op call", op), ("torch.ops.vllm_ir.rms_norm", op.torch_op)):
            scope = scope_of(op, first)
            yield case(f"{label}, {provider}", "f(x, w, eps, none)", f, scope)


def scope_of(op: ir.IrOp, names: list[str]) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes a context in which the names are the priority."""
    return lambda: op.set_priority(names)


@contextmanager
def quiet(
    scope: Callable[[], AbstractContextManager[Any]], synchronize: Callable[[], None]
) -> Iterator[None]:
    """Enter a scope when the device has nothing to do."""
    synchronize()
    with scope():
        yield


def works(findings: Findings, case: Case) -> bool:
    """Return whether a route exists here; the reason is noted when it doesn't."""
    try:
        with case.around():
            exec(case.statement, dict(case.names))
    except (RuntimeError, NotImplementedError) as error:  # no kernel for this device
        findings.skip(PART, case.label, str(error).partition("\n")[0])
        return False
    return True
