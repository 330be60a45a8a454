# SPDX-License-Identifier: Apache-2.0
"""Runs one model under several priority lists: which implementations ran, is the text the same?"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import vllm_ir as ir
from llama.generate import Generation, generate
from llama.lowering import Lowering
from llama.model import Llama

OPS = ("rms_norm", "fused_add_rms_norm")  # the ops that the model calls

Counts = dict[str, dict[str, int]]  # op → provider → number of calls


@dataclass
class Run:
    """The model under one set of priority lists.

    Attributes:
        name: heading of the run.
        priorities: list of each op; an absent one keeps what the process is configured to.
        provider: what must run for every op; None: whatever the lists choose.
        decode: the compiled model, which runs the steps behind the prompt; None: eager.
        compile_seconds: time of the first compiled step.
        generations: one per round.
        selected: which implementation ran how often in eager, all rounds together.
        norm_seconds: time of the norm calls of one decode step, measured alone; eager runs only.
        why: what each op would do with the embedded prompt, and the reason for each other choice.
        lowering: which implementations the compiled step is made of.
    """

    name: str
    priorities: ir.IrOpPriorityConfig
    provider: str | None = None
    decode: Callable[..., Tensor] | None = None
    compile_seconds: float = math.nan
    generations: list[Generation] = field(default_factory=list)
    selected: Counts = field(default_factory=dict)
    norm_seconds: float = math.nan
    why: list[ir.Explanation] = field(default_factory=list)
    lowering: Lowering | None = None

    @property
    def tokens(self) -> list[int]:
        """The tokens of the first round."""
        return self.generations[0].tokens

    @property
    def tokens_per_second(self) -> float:
        """Speed of the fastest round."""
        return max(generation.tokens_per_second for generation in self.generations)

    def ran_only(self, provider: str) -> bool:
        """Whether every call counted in eager went to `provider`, and there was one of each op."""
        return all(set(self.selected.get(op, {})) == {provider} for op in OPS)


def warm_up(model: Llama, run: Run, prompt: Sequence[int], max_new_tokens: int) -> None:
    """Take two steps that are not measured: page faults, thread start, code caches, compilation."""
    with run.priorities.scoped():
        first = generate(model, prompt, 2, decode=run.decode, capacity=len(prompt) + max_new_tokens)
    if run.decode is not None:
        run.compile_seconds = first.decode_seconds


def run_rounds(
    model: Llama,
    runs: Sequence[Run],
    prompt: Sequence[int],
    max_new_tokens: int,
    stop_token: int | None = None,
    rounds: int = 1,
    on_token: Callable[[Run, int], None] | None = None,
) -> None:
    """Fill `runs`.

    They take turns in each round, so that a slow moment of the machine meets all of them.
    """
    for _ in range(rounds):
        for run in runs:
            listener = None if on_token is None else lambda token, run=run: on_token(run, token)
            with run.priorities.scoped():
                before = selected_counts()
                text = generate(
                    model,
                    prompt,
                    max_new_tokens,
                    stop_token=stop_token,
                    on_token=listener,
                    decode=run.decode,
                )
                run.generations.append(text)
                _add(run.selected, before, selected_counts())
    for run in runs:
        if run.decode is not None:
            run.lowering = Lowering.of(ir.explain(run.decode))
            continue
        with run.priorities.scoped():
            run.norm_seconds = time_norms(model)
            run.why = explain_calls(model, prompt)


def selected_counts() -> Counts:
    """Read from `ir.report()` how often each implementation ran in this process."""
    return {
        op.op: {impl.provider: impl.selected for impl in op.impls}
        for op in ir.report().ops
        if op.op in OPS
    }


def _add(total: Counts, before: Counts, after: Counts) -> None:
    for op, providers in after.items():
        for provider, count in providers.items():
            new = count - before.get(op, {}).get(provider, 0)
            if new:
                counts = total.setdefault(op, {})
                counts[provider] = counts.get(provider, 0) + new


@torch.inference_mode()
def time_norms(model: Llama, repeats: int = 50) -> float:
    """Measure the norms of one decode step without the rest; the fastest of `repeats`."""
    first, *others = model.norms()
    start = torch.randn(1, 1, model.config.hidden_size).to(model.embedding.weight.dtype)
    best = math.inf
    for _ in range(repeats):
        residual = start.clone()
        begin = time.perf_counter()
        x = first(residual)
        for norm in others:
            x, residual = norm(x, residual)
        best = min(best, time.perf_counter() - begin)
    return best


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first index at which two token sequences differ; None when they are equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


@torch.inference_mode()
def explain_calls(model: Llama, prompt: Sequence[int]) -> list[ir.Explanation]:
    """Ask each op what it would do here and now, with the embedded prompt as its argument."""
    x, norm = model.embedding(torch.tensor([list(prompt)])), model.norm
    rest = norm.weight, norm.epsilon
    return [
        ir.ops.rms_norm.explain(x, *rest),
        ir.ops.fused_add_rms_norm.explain(x, x.clone(), *rest),
    ]
