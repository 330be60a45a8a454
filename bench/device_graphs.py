# SPDX-License-Identifier: Apache-2.0
"""Do the ops run in CUDA graphs and on side streams, with the bits of plain eager calls?

A chain of ops is captured once and replayed on new contents of its inputs, functional and in place;
and it is run on a side stream behind a delay, where a kernel that was launched on another stream
would read what was there before. `cuda` is `torch.cuda` wherever it is a parameter: tests give a
stand-in, so that all of this runs without a GPU too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from device_cases import EPSILON, OPS, normal
from device_findings import CUDA_ONLY, NO_TIME, Budget, Findings, Progress
from torch import Tensor

import vllm_ir as ir
from vllm_ir.dtypes import dtype_name
from vllm_ir.testing import refusal
from vllm_ir.testing.agreement import same_bits

PART = "graphs"
PROBLEMS = (
    (1, 4096, torch.bfloat16),
    (33, 1024, torch.float16),
    (5, 768, torch.float32),
)
CONTENTS = 3  # different inputs for one graph
WARM_UPS = 3
DELAY_CYCLES = 20_000_000  # some ten milliseconds
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Replayed:
    """One check of one provider.

    Attributes:
        check: what was checked.
        provider: who ran.
        ops: the ops of the chain that the provider ran, the others being native.
        problem: rows, width and dtype.
        status: "ok", "CUDA only" where nothing ran, or what was wrong.
    """

    check: str
    provider: str
    ops: str
    problem: str
    status: str


def functional(x: Tensor, residual: Tensor, weight: Tensor, half: Tensor) -> Inputs:
    """Run every op once, each on a result of the one before."""
    normed, total = ir.ops.fused_add_rms_norm(x, residual, weight, EPSILON)
    gated = ir.ops.silu_and_mul(normed)
    again = ir.ops.rms_norm(gated, half, EPSILON)
    return normed, total, gated, again, ir.ops.gelu_and_mul(total, "tanh")


def in_place(x: Tensor, residual: Tensor, weight: Tensor, half: Tensor) -> Inputs:
    """Donate the activations twice; the results may lie in them."""
    donate = ir.ops.fused_add_rms_norm.maybe_inplace
    normed, total = donate(x, residual, weight, EPSILON)
    normed, total = donate(normed, total, weight, EPSILON)
    return normed, total, ir.ops.rms_norm(ir.ops.silu_and_mul(normed), half, EPSILON)


CHAINS = {"functional": functional, "in place": in_place}


def check_all(
    findings: Findings,
    device: str,
    expected: Sequence[str],
    budget: Budget,
    progress: Progress,
    cuda: Any = torch.cuda,
) -> None:
    """Check each provider that runs one of the ops on the device."""
    for provider in providers():
        own = ops_of(provider, device)
        if not own:
            findings.skip(PART, provider, "runs no op on this device")
            continue
        if device != "cuda":
            names = ", ".join(own)
            for check in CHECKS:
                findings.graphs.append(Replayed(check, provider, names, "", CUDA_ONLY))
                findings.skip(PART, f"{provider}: {check}", CUDA_ONLY)
            continue
        progress(f"graphs and streams: {provider}")
        check_provider(findings, provider, own, device, expected, budget, cuda)


def providers() -> list[str]:
    """Return the providers of all ops of the chains, native first."""
    impls = [impl for name in OPS for impl in ir.IrOp.registry[name].impls.values()]
    return list(dict.fromkeys(impl.provider for impl in impls if impl.supported))


def ops_of(provider: str, device: str) -> list[str]:
    """Return the ops that a provider runs on plain tensors of a device."""
    x = torch.ones(2, 64, dtype=torch.bfloat16, device=device)
    weight = torch.ones(64, dtype=torch.bfloat16, device=device)
    args = {
        "rms_norm": (x, weight, EPSILON),
        "fused_add_rms_norm": (x, x.clone(), weight, EPSILON),
        "silu_and_mul": (x,),
        "gelu_and_mul": (x,),
    }
    ops = {name: ir.IrOp.registry[name] for name in OPS}
    return [
        name
        for name, op in ops.items()
        if provider in op.impls and not refusal(op, provider, *args[name])
    ]


def check_provider(
    findings: Findings,
    provider: str,
    own: Sequence[str],
    device: str,
    expected: Sequence[str],
    budget: Budget,
    cuda: Any,
) -> None:
    """Make each check for each problem; whatever it raises is a failure.

    So is the end of the time, for a provider that is expected.
    """
    tell = findings.fail if provider in expected else findings.skip
    for rows, width, dtype in PROBLEMS:
        problem = f"{rows}x{width} {dtype_name(dtype)}"
        for name, check in CHECKS.items():
            if budget.left <= 0:
                tell(PART, f"{provider}: {name}, {problem}", NO_TIME)
                continue
            lists = {op: [provider, "native"] if op in own else ["native"] for op in OPS}
            before = times_run(provider)
            try:
                with torch.inference_mode(), ir.IrOpPriorityConfig.from_dict(lists).scoped():
                    wrong = check(cuda, rows, width, dtype, device)
            except Exception as error:  # a capture may fail in any way; the run must go on and tell
                wrong = f"{type(error).__name__}: {error}"
            used = set(own) - ({"gelu_and_mul"} if check is CHECKS["graph, in place"] else set())
            after = times_run(provider)
            idle = ", ".join(op for op in sorted(used) if after[op] == before[op])
            status = wrong or (f"{provider} did not run {idle}" if idle else "ok")
            findings.graphs.append(Replayed(name, provider, ", ".join(own), problem, status))
            if status != "ok":
                findings.fail(PART, f"{provider}: {name}, {problem}", status)


def times_run(provider: str) -> dict[str, int]:
    """Return how often a provider has run each op."""
    impls = {name: ir.IrOp.registry[name].report().impls for name in OPS}
    return {n: sum(i.selected for i in rows if i.provider == provider) for n, rows in impls.items()}


def contents(rows: int, width: int, dtype: torch.dtype, device: str, seed: int) -> Inputs:
    """Return the inputs of a chain."""
    shapes = ((rows, width), (rows, width), (width,), (width // 2,))
    made = [normal(shape, 4 * seed + i) for i, shape in enumerate(shapes)]
    return tuple(t.to(dtype).to(device) for t in made)


def eagerly(chain: Callable[..., Inputs], inputs: Inputs) -> Inputs:
    """Return copies of what a chain gives for copies of the inputs."""
    return tuple(t.clone() for t in chain(*(t.clone() for t in inputs)))


def captured(cuda: Any, call: Callable[[], Any], warm_ups: int = WARM_UPS) -> tuple[Any, Any]:
    """Warm a call up on a side stream, then capture it; return the graph and the call's value."""
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(warm_ups):
            call()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        value = call()
    return graph, value


def replay(name: str) -> Callable[..., str]:
    """Return the check that captures one chain and replays it on new contents."""

    def check(cuda: Any, rows: int, width: int, dtype: torch.dtype, device: str) -> str:
        given = [contents(rows, width, dtype, device, seed) for seed in range(CONTENTS)]
        want = [eagerly(CHAINS[name], inputs) for inputs in given]
        static = tuple(t.clone() for t in given[0])
        graph, got = captured(cuda, lambda: CHAINS[name](*static))
        for number in (*range(CONTENTS), 0):
            for to, source in zip(static, given[number], strict=True):
                to.copy_(source)
            graph.replay()
            cuda.synchronize()
            wrong = differing(got, want[number])
            if wrong:
                return f"replay on contents {number}: {wrong}"
        return ""

    return check


def side_stream(cuda: Any, rows: int, width: int, dtype: torch.dtype, device: str) -> str:
    """Run each chain on a side stream, where its inputs arrive late."""
    inputs = contents(rows, width, dtype, device, seed=CONTENTS)
    for name, chain in CHAINS.items():
        want = eagerly(chain, inputs)
        late = tuple(torch.zeros_like(t) for t in inputs)
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            cuda._sleep(DELAY_CYCLES)
            for to, source in zip(late, inputs, strict=True):
                to.copy_(source)
            got = chain(*late)
        cuda.synchronize()
        wrong = differing(got, want)
        if wrong:
            return f"{name} chain: {wrong}"
    return ""


def differing(got: Inputs, want: Inputs) -> str:
    """Return which results have other bits than they should, "" when none has."""
    pairs = list(zip(got, want, strict=True))
    wrong = [str(i) for i, (g, w) in enumerate(pairs) if not same_bits(g, w)]
    return f"other bits than eager in results {', '.join(wrong)}" if wrong else ""


CHECKS: dict[str, Callable[..., str]] = {
    "graph, functional": replay("functional"),
    "graph, in place": replay("in place"),
    "side stream": side_stream,
}
