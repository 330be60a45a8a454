# SPDX-License-Identifier: Apache-2.0
"""Random programs of ops, views and in-place torch operations, to run in two ways and compare.

A program is drawn while it runs with native functions, so that each step is valid and each later
step only uses what the contract leaves usable: whoever donates a tensor gives away all that
overlaps it. Everything else that the program still holds must come out the same under any priority.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from ops_for_programs import OPS, call_ir, call_native
from torch import Tensor

WIDTH = 8


@dataclass(frozen=True)
class Step:
    """One assignment: new values from old ones, by number."""

    kind: str
    inputs: tuple[int, ...] = ()
    detail: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}{self.detail}({', '.join(f'v{i}' for i in self.inputs)})"


@dataclass
class Program:
    """Initial tensors by seed, steps, and which values are usable at the end."""

    seed: int
    mode: str
    steps: list[Step] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.mode}"]
        number = len(initial(self))
        for step in self.steps:
            outputs = outputs_of(step)
            names = ", ".join(f"v{number + i}" for i in range(outputs))
            lines.append(f"  {names} = {step}" if outputs else f"  {step}")
            number += outputs
        return "\n".join([*lines, f"  alive: {sorted(self.alive)}"])


def initial(program: Program) -> list[Tensor]:
    """Return the tensors that the program starts from."""
    generator = torch.Generator().manual_seed(program.seed)
    dtype = torch.bfloat16 if program.seed % 5 == 4 else torch.float32
    shapes = ((6, 3 * WIDTH), (6, 3 * WIDTH), (4, 6, WIDTH), (6, WIDTH), (WIDTH,))
    tensors = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
    if program.mode.endswith("leaves"):
        for t in tensors[1::2]:
            t.requires_grad_()
    return tensors


# ---- the steps -------------------------------------------------------------------------------

VIEWS: dict[str, Callable[..., Tensor]] = {
    "columns": lambda t, k: t[..., k : k + WIDTH],
    "rows": lambda t, start, step: t[start::step],
    "pick": lambda t, i: t[i],
    "swap": lambda t: t.transpose(0, 1),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "strided": lambda t: t[..., ::2],
    "repeat": lambda t: t[:1].expand(t.shape),
    "detach": lambda t: t.detach(),
}
WRITES: dict[str, Callable[..., Any]] = {
    "add_": lambda t, other, scale: t.add_(other, alpha=scale),
    "copy_": lambda t, other, scale: t.copy_(other),
    "mul_": lambda t, scale: t.mul_(scale),
    "zero first": lambda t, scale: t[:1].zero_(),
}
VALUES: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "half": lambda a: a * 0.5,
    "clone": lambda a: a.clone(),
}


def outputs_of(step: Step) -> int:
    """Return how many values a step makes."""
    if step.kind in WRITES:
        return 0
    return OPS[step.kind].outputs if step.kind in OPS else 1


def perform(step: Step, values: Sequence[Tensor], through_ir: bool) -> list[Tensor]:
    """Run one step and return what it makes."""
    inputs = [values[i] for i in step.inputs]
    if step.kind in OPS:
        return (call_ir if through_ir else call_native)(step, inputs)
    if step.kind in WRITES:
        WRITES[step.kind](*inputs, *step.detail)
        return []
    table = VIEWS if step.kind in VIEWS else VALUES
    return [table[step.kind](*inputs, *step.detail)]


# ---- drawing ---------------------------------------------------------------------------------


class Draw:
    """Draws a program while running it natively."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.random = random.Random(program.seed)
        self.values = initial(program)
        self.taken = [elements_of(t) for t in self.values]
        program.alive.update(range(len(self.values)))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.draw()
            if step is None:
                continue
            try:
                made = perform(step, self.values, through_ir=False)
            except RuntimeError:
                continue  # autograd forbids some in-place steps, before they do anything
            self.program.steps.append(step)
            if step.kind in OPS and step.detail[0] == "donate":
                self.bury(step.inputs[: OPS[step.kind].outputs])
            for t in made:
                self.program.alive.add(len(self.values))
                self.values.append(t)
                self.taken.append(elements_of(t))

    def bury(self, donated: Sequence[int]) -> None:
        """Nothing that overlaps a donated tensor may be used again."""
        gone = set().union(*(self.taken[i] for i in donated))
        self.program.alive -= {i for i in self.program.alive if self.taken[i] & gone}
        self.program.alive -= set(donated)

    def draw(self) -> Step | None:
        table = self.random.choices((OPS, VIEWS, WRITES, VALUES), (6, 4, 3, 1))[0]
        return getattr(self, f"_{self._name(table)}")(self.random.choice(sorted(table)))

    def _name(self, table: object) -> str:
        return {id(OPS): "op", id(VIEWS): "view", id(WRITES): "write"}.get(id(table), "value")

    def pick(self, fits: Callable[[Tensor], bool] = lambda t: True) -> int | None:
        found = [i for i in sorted(self.program.alive) if fits(self.values[i])]
        # The younger ones more often, so that chains come about.
        return self.random.choice(found + found[-4:] * 2) if found else None

    def like(self, i: int) -> int:
        found = self.pick(lambda t: t.shape == self.values[i].shape)
        assert found is not None
        return found

    def _op(self, kind: str) -> Step | None:
        x = self.pick(lambda t: t.dim() > 0 and t.numel() > 0)
        if x is None:
            return None
        op, shape = OPS[kind], self.values[x].shape
        inputs = [x] + [self.like(x)] * (op.outputs == 2)
        weight = self.pick(lambda t: t.shape == shape[-1:]) if op.weight else None
        if weight is not None and self.random.random() < 0.6:
            inputs.append(weight)
        overload = "donate" if op.allow_inplace and self.random.random() < 0.5 else "default"
        priority = tuple(self.random.sample(op.providers, self.random.randint(1, 2)))
        return Step(kind, tuple(inputs), (overload, priority, self.random.choice((1.0, 0.5))))

    def _view(self, kind: str) -> Step | None:
        x = self.pick(lambda t: t.dim() > 0 and t.numel() > 1)
        if x is None:
            return None
        shape, draw = self.values[x].shape, self.random
        if kind == "columns":
            room = shape[-1] - WIDTH
            return Step(kind, (x,), (draw.randint(0, room),)) if room > 0 else None
        if kind == "rows":
            return Step(kind, (x,), (draw.randint(0, shape[0] - 1), draw.choice((1, 1, 2))))
        if kind == "pick":
            return Step(kind, (x,), (draw.randint(0, shape[0] - 1),)) if len(shape) > 1 else None
        if kind in ("swap", "repeat"):
            return Step(kind, (x,)) if len(shape) > 1 else None
        return Step(kind, (x,)) if kind != "unsqueeze" or len(shape) < 4 else None

    def _write(self, kind: str) -> Step | None:
        x = self.pick(lambda t: t.dim() > 0 and len(elements_of(t)) == t.numel())
        if x is None:
            return None
        inputs = (x, self.like(x)) if kind in ("add_", "copy_") else (x,)
        # Torch refuses or leaves open what reads and writes the same memory.
        if len(inputs) == 2 and self.taken[x] & self.taken[inputs[1]]:
            return None
        return Step(kind, inputs, (self.random.choice((0.5, -0.5)),))

    def _value(self, kind: str) -> Step | None:
        x = self.pick()
        if x is None:
            return None
        return Step(kind, (x, self.like(x)) if kind == "add" else (x,))


def elements_of(t: Tensor) -> frozenset[tuple[int, int]]:
    """Return the memory of a tensor: (storage, element number)."""
    numbers = torch.arange(t.untyped_storage().nbytes() // t.element_size())
    offsets = numbers.as_strided(t.shape, t.stride(), t.storage_offset())
    storage = t.untyped_storage()._cdata
    return frozenset((storage, int(n)) for n in offsets.flatten())


# ---- running ---------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a program leaves: the usable values, the gradients, or an error of autograd."""

    values: dict[int, Tensor]
    gradients: list[Tensor | None]
    error: str = ""


MODES: dict[str, Callable[[], Any]] = {
    "no grad": torch.no_grad,
    "no grad, leaves": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": torch.enable_grad,
    "grad, leaves": torch.enable_grad,
}


def draw_program(seed: int, steps: int = 14) -> Program:
    """Return the program of a seed."""
    program = Program(seed, sorted(MODES)[seed % len(MODES)])
    with MODES[program.mode]():
        Draw(program).run(steps)
    return program


def execute(program: Program, *, through_ir: bool) -> Outcome:
    """Run a program from its initial tensors."""
    with MODES[program.mode]():
        values = initial(program)
        leaves = [t for t in values if t.requires_grad]
        for step in program.steps:
            values += perform(step, values, through_ir)
        kept = {i: values[i] for i in sorted(program.alive)}
        if program.mode != "grad, leaves":
            return Outcome(kept, [])
        try:
            return Outcome(kept, gradients_of(kept, leaves))
        except RuntimeError as error:
            return Outcome(kept, [], str(error))


def gradients_of(kept: dict[int, Tensor], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Differentiate a sum in which each value counts differently."""
    parts = [((i + 1) * t.float()).sum() for i, t in kept.items() if t.requires_grad]
    total = torch.stack(parts).sum()
    return list(torch.autograd.grad(total, leaves, allow_unused=True))
