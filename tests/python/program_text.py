# SPDX-License-Identifier: Apache-2.0
"""Programs as text, to run in two ways and compare: what they say, and what they mean natively.

A program is a list of Python statements over arguments `a0`, `a1`, ... that are made by another
text. Everything else follows from the text: what a statement defines, uses, writes and donates. So
a program can be cut down, printed and read by people. Here its statements run one after the other
with native functions, which is what the program means.
"""

import ast
import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from ops_for_compiling import IR_OPS
from torch import Tensor

MODES: dict[str, Callable[[], Any]] = {
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": torch.enable_grad,
}


@dataclass
class Program:
    """A program and the way that it is compiled.

    Attributes:
        inputs: Texts that make bases `b0`, ..., arguments `a0`, ... and constants `g0`, ...; the
            compiled function is called with each, the first one is what it is compiled for.
        lines: The statements.
        returns: Names of the results.
        priorities: Providers by op.
        route: How it is compiled, a name of `program_routes.ROUTES`.
        rows: Values of `rows` in the inputs; more than one makes the program dynamic.
    """

    seed: int
    inputs: list[str]
    lines: list[str]
    returns: list[str]
    priorities: dict[str, list[str]] = field(default_factory=dict)
    mode: str = "no grad"
    route: str = "direct"
    rows: tuple[int, ...] = (6,)
    options: dict[str, bool] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """Names of the arguments."""
        return sorted(set(re.findall(r"^(a\d+) = ", self.inputs[0], re.M)), key=_number)

    def source(self) -> str:
        """Return the program as a function."""
        body = "\n".join([*self.lines, f"return ({''.join(r + ', ' for r in self.returns)})"])
        lines = [f"    {line}" for line in body.splitlines()]
        return "\n".join([f"def program({', '.join(self.arguments)}):", *lines, ""])


def _number(name: str) -> int:
    return int(name[1:])


# ---- what a statement says -----------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """What a statement does with names. `donates` are a part of `uses`."""

    defines: tuple[str, ...]
    uses: tuple[str, ...]
    donates: tuple[str, ...]
    writes: bool


@functools.lru_cache(100_000)
def read_line(text: str) -> Line:
    """Analyse a statement, with the local functions in front of it."""
    tree = ast.parse(text)
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    defines: dict[str, None] = {}
    uses: dict[str, None] = {}
    donates: list[str] = []
    writes = False
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and re.fullmatch(r"[av]\d+|g\d+", node.id):
                stored = isinstance(node.ctx, ast.Store) and not isinstance(
                    statement, ast.AugAssign
                )
                if stored or node.id not in defines:
                    (defines if stored else uses)[node.id] = None
            if isinstance(node, ast.Call):
                donates += _donated(node, functions)
                writes |= _writes(node)
        if isinstance(statement, ast.AugAssign):
            writes = True
        if isinstance(statement, ast.Assign):
            writes |= isinstance(statement.targets[0], ast.Subscript)
    return Line(tuple(defines), tuple(uses), tuple(donates), writes)


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name.endswith("_") or any(k.arg == "out" for k in call.keywords)


def _donated(call: ast.Call, functions: dict[str, ast.FunctionDef]) -> list[str]:
    """Return the names that a call gives away, by itself or in a body that it runs."""
    target = call.func
    if isinstance(target, ast.Attribute) and target.attr == "maybe_inplace":
        assert isinstance(target.value, ast.Name)
        op = IR_OPS[target.value.id]
        given = dict(zip(op.signature.parameters, call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords}
        return [v.id for p, v in given.items() if p in op.activations and isinstance(v, ast.Name)]
    operands = call.args
    if isinstance(target, ast.Name) and target.id == "cond":
        operands = call.args[3].elts  # type: ignore[attr-defined]
    elif isinstance(target, ast.Name) and target.id == "checkpoint":
        operands = call.args[1:]
    else:
        return []
    found = []
    for body in call.args[:3]:
        function = functions.get(getattr(body, "id", ""))
        if function is None:
            continue
        inner = {n for c in ast.walk(function) if isinstance(c, ast.Call) for n in _donated(c, {})}
        parameters = [a.arg for a in function.args.args]
        pairs = zip(parameters, operands, strict=True)
        found += [v.id for p, v in pairs if p in inner and isinstance(v, ast.Name)]
    return found


# ---- what it means -------------------------------------------------------------------------------


class Native:
    """An op that is its native function, whatever the overload."""

    def __init__(self, name: str) -> None:
        self._fn = IR_OPS[name].impls["native"].impl_fn
        self.maybe_inplace = self._fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs)


def data(number: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return small quarters: sums and products of some of them are exact."""
    generator = torch.Generator().manual_seed(number)
    return (torch.randint(-32, 33, shape, generator=generator) / 4).to(dtype)


def native_cond(pred: Tensor, true: Any, false: Any, operands: Any) -> Any:
    return (true if pred.item() else false)(*operands)


def native_checkpoint(fn: Callable[..., Any], *args: Any, use_reentrant: bool) -> Any:
    return fn(*args)


BASICS: dict[str, Any] = {"torch": torch, "data": data, "bf16": torch.bfloat16}
NATIVE: dict[str, Any] = {
    **BASICS,
    "cond": native_cond,
    "checkpoint": native_checkpoint,
    "graph_break": lambda: None,
}


@functools.lru_cache(100_000)
def compiled_text(text: str) -> Any:
    return compile(text, "<line>", "exec")


def make_inputs(text: str, rows: int) -> dict[str, Any]:
    """Return the variables that an inputs' text makes."""
    made: dict[str, Any] = {**BASICS, "rows": rows}
    exec(compiled_text(text), made)
    return {k: v for k, v in made.items() if re.fullmatch(r"[abg]\d+", k)}


def units(t: Tensor) -> frozenset[int]:
    """Return the memory of a tensor: addresses, two bytes apart."""
    if t.numel() == 0:
        return frozenset()
    offsets = [0]
    for n, stride in zip(t.shape, t.stride(), strict=True):
        offsets = [o + i * stride for o in offsets for i in range(n)]
    step, start = t.element_size(), t.data_ptr()
    return frozenset(start + o * step + b for o in offsets for b in range(0, step, 2))


class InvalidProgramError(Exception):
    """The program means nothing: torch refuses a statement, or it uses what it has given away."""


@dataclass
class Outcome:
    """What a run leaves.

    Attributes:
        results: What the program returned.
        inputs: Bases, arguments and constants, as they are afterwards.
        donated: Memory that was given away.
        writes_inputs: Whether a statement may have written to an argument.
        gradients: Of the leaves, None where the program has none to give.
    """

    results: list[Any]
    inputs: dict[str, Any]
    donated: set[int] = field(default_factory=set)
    writes_inputs: bool = False
    gradients: list[Tensor | None] | None = None


class NativeRun:
    """Runs statements natively, one by one, and watches over what was given away."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs = inputs
        ops = {name: Native(name) for name in IR_OPS}
        self.env: dict[str, Any] = {**NATIVE, **ops, **inputs}
        self.donated: set[int] = set()
        self.writes_inputs = False
        self._units = frozenset().union(*(units(t) for n, t in inputs.items() if n[0] == "b"))

    def step(self, text: str) -> Line:
        """Run one statement.

        Raises:
            InvalidProgramError: It uses donated memory, or reads what it writes.
            RuntimeError, IndexError, ...: Torch refuses it.
        """
        line = read_line(text)
        touched = [units(self.env[n]) for n in line.uses if isinstance(self.env[n], Tensor)]
        if self.donated and any(u & self.donated for u in touched):
            raise InvalidProgramError(f"uses donated memory: {text}")
        if line.writes and _partly_shared(touched):
            raise InvalidProgramError(f"reads what it writes: {text}")
        gone = [units(self.env[n]) for n in line.donates]
        if sum(map(len, gone)) != len(set().union(*gone)):
            raise InvalidProgramError(f"donates memory twice: {text}")
        exec(compiled_text(text), self.env)
        self.donated.update(*gone)
        self.writes_inputs |= line.writes and any(u & self._units for u in touched)
        return line


def _partly_shared(touched: list[frozenset[int]]) -> bool:
    return any(a & b for i, a in enumerate(touched) for b in touched[:i])


def run_natively(program: Program, variant: int = 0, rows: int = 6) -> Outcome:
    """Run a program's meaning.

    Raises:
        InvalidProgramError: It has none for these inputs.
    """
    with MODES[program.mode]():
        try:
            run = NativeRun(make_inputs(program.inputs[variant], rows))
            for line in program.lines:
                run.step(line)
            results = [run.env[name] for name in program.returns]
            if any(isinstance(r, Tensor) and units(r) & run.donated for r in results):
                raise InvalidProgramError("returns donated memory")
        except (RuntimeError, IndexError, ValueError, TypeError, NameError, KeyError) as error:
            raise InvalidProgramError(str(error)) from error
        outcome = Outcome(results, run.inputs, run.donated, run.writes_inputs)
        try:
            outcome.gradients = gradients_of(outcome)
        except RuntimeError as error:
            raise InvalidProgramError(str(error)) from error
        return outcome


def gradients_of(outcome: Outcome) -> list[Tensor | None] | None:
    """Differentiate a sum in which each result counts differently; None where autograd can't."""
    leaves = [t for t in outcome.inputs.values() if isinstance(t, Tensor) and t.is_leaf]
    leaves = [t for t in leaves if t.requires_grad]
    tracked = [(i, t) for i, t in enumerate(outcome.results) if t.requires_grad]
    if not leaves or not tracked:
        return []
    parts = [((i + 1) * t.float()).sum() for i, t in tracked]
    try:
        return list(torch.autograd.grad(torch.stack(parts).sum(), leaves, allow_unused=True))
    except RuntimeError:
        return None  # the program overwrites what autograd has kept


@contextlib.contextmanager
def priorities_of(program: Program) -> Iterator[None]:
    """Have the program's priorities in force."""
    with contextlib.ExitStack() as stack:
        for name, providers in program.priorities.items():
            stack.enter_context(IR_OPS[name].set_priority(providers))
        yield
