# SPDX-License-Identifier: Apache-2.0
"""Draws random programs for the compiler, each a valid one.

A program is drawn while it runs natively, so that each statement works and none uses what was given
away. Programs that use it after all are made on purpose, by `spoil`.
"""

import random
from collections.abc import Callable, Sequence

import torch
from ops_for_compiling import IR_OPS, OUTPUTS
from program_statements import SPECIALS, VALUES, VIEWS, WRITES
from program_text import (
    MODES,
    InvalidProgramError,
    Line,
    NativeRun,
    Program,
    make_inputs,
    read_line,
    run_natively,
    units,
)
from torch import Tensor

WIDTH = 8
LARGEST = 1e5
NORMS = ("rms_norm", "add_norm", "norm", "fused_norm")


def draw_program(seed: int, depth: str = "passes", rows: int = 6) -> Program:
    """Return the program of a seed, made for so many rows."""
    rng = random.Random(seed)
    route = "inductor" if depth == "inductor" else _weighted(rng, direct=86, aot=10, dynamo=4)
    program = Program(seed, [], [], [], route=route)
    grad = 0.0 if route == "direct" else 0.3
    program.mode = "grad" if rng.random() < grad else rng.choice(("no grad", "inference"))
    with_dynamo = route in ("dynamo", "inductor")
    dynamic = with_dynamo and rng.random() < 0.25
    program.rows = (rows, *rng.sample((0, 1, 2, 9), 2)) if dynamic and rows > 1 else (rows,)
    program.options = {name: rng.random() < 0.5 for name in ("reorder", "joint", "positional")}
    program.options["donate"] = rng.random() < 0.9
    for name, op in IR_OPS.items():
        # In-place ones in front more often than not: they are what can go wrong.
        writing = [p for p, impl in op.impls.items() if impl.inplace]
        able = [p for p, impl in op.impls.items() if impl.supported]
        first = rng.choice(writing if writing and rng.random() < 0.75 else able)
        program.priorities[name] = list(dict.fromkeys([first, rng.choice(able)]))
    with MODES[program.mode]():
        _Draw(program, rng, with_dynamo).run(rng.randint(3, 12))
    return program


def _weighted(rng: random.Random, **weights: int) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def spoil(program: Program) -> bool:
    """Make a program use what it gave away, in a way that the compiler can see. False: it can't."""
    rng = random.Random(program.seed)
    with MODES[program.mode]():
        run = NativeRun(make_inputs(program.inputs[0], program.rows[0]))
        for line in program.lines:
            run.step(line)
        dtypes = {run.env[n].dtype for line in program.lines for n in _donations(line)}
        found = [
            name
            for name, value in run.env.items()
            if name[:1] in "av"
            and isinstance(value, Tensor)
            and value.dtype in dtypes
            and units(value) & run.donated
        ]
    if not found:
        return False
    name = rng.choice(found)
    uses = ["vx = {0} * 2.0", "vx = {0}.sum()", "vx = {0}.clone()"]
    if program.mode != "grad":  # autograd forbids to write to some
        uses += ["{0}.mul_(0.5)", "torch.ops.aten.mul_.Tensor({0}, 0.5)"]
    # An input that is returned as it is is no result of the graph: Dynamo keeps it back.
    use = rng.choice(uses if name[0] == "a" else [*uses, ""])
    program.lines += [use.format(name)] if use else []
    program.returns.append("vx" if use.startswith("vx") else name)
    return True


def _donations(text: str) -> Sequence[str]:
    return read_line(text).donates


# ---- inputs --------------------------------------------------------------------------------------

# Shape, and ways to look at it. `{r}` stands for the number of rows.
# The same shapes in many ways, so that there are partners for ops that take two.
_BASES = {
    "rows, 24": ("{b}", *("{b}[:, :8]", "{b}[:, 8:16]", "{b}[:, 4:12]", "{b}[:, ::3]") * 2),
    "rows, 8": (*("{b}",) * 5, "{b}[1:]", "{b}[:-1]", "{b}[::2]", "{b}.view(-1)", "{b}.detach()"),
    "3, rows, 8": ("{b}", *("{b}[0]", "{b}[1]") * 2, "{b}[1:]", "{b}[:, 1:]", "{b}.mT"),
    "8, 8": ("{b}", "{b}.t()", "{b}[2:]", "{b}[:, :4]"),
    "8": ("{b}", "{b}[:4]", "{b}.expand(6, 8)"),
}
_BASE_WEIGHTS = (4, 6, 2, 1, 2)


def _draw_inputs(program: Program, rng: random.Random) -> None:
    lines, looks = [], []
    dtype = ", dtype=bf16" if rng.random() < 0.15 else ""
    for number in range(rng.randint(2, 4)):
        shape = rng.choices(list(_BASES), _BASE_WEIGHTS)[0]
        grad = ".requires_grad_()" if program.mode == "grad" and rng.random() < 0.4 else ""
        made = f"data({program.seed % 1000 * 10 + number}, {shape}{dtype}){grad}"
        if not grad and rng.random() < 0.1:
            made = f"torch.nn.Parameter({made}, requires_grad=False)"
        lines.append(f"b{number} = {made}")
        several = rng.choice((1, 1, 1, 2, 3))
        looks += [rng.choice(_BASES[shape]).format(b=f"b{number}") for _ in range(several)]
    rng.shuffle(looks)
    for i, look in enumerate(looks[:6]):
        # One object as two arguments is one input to Dynamo; the quick ways can't take it.
        again = look in looks[:i] and "." not in look and program.route in ("direct", "aot")
        lines.append(f"a{i} = {look}.view_as({look})" if again else f"a{i} = {look}")
    if rng.random() < 0.15:
        lines.append(f"g0 = data(5, 6, 8{dtype})")
    program.inputs = ["\n".join(lines)]
    if len(program.rows) == 1 and program.mode != "grad" and rng.random() < 0.4:
        program.inputs.append(_shared_inputs(program, rng))


def _shared_inputs(program: Program, rng: random.Random) -> str:
    """Return inputs of the same shapes and strides that lie somewhere in one memory."""
    made = make_inputs(program.inputs[0], program.rows[0])
    lines = [line for line in program.inputs[0].splitlines() if line.startswith("g0")]
    dtypes = {t.dtype for t in made.values()}
    kind = ", dtype=bf16" if torch.bfloat16 in dtypes else ""
    lines.insert(0, f"b0 = data({program.seed % 1000}, 1000{kind})")
    for name in program.arguments:
        t = made[name]
        where = rng.choice((0, 4, 8, 24, 48, 144, 300, 500))
        lines.append(f"{name} = b0.as_strided({tuple(t.shape)}, {t.stride()}, {where})")
    return "\n".join(lines)


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype is b.dtype


def _may_be_written(t: Tensor) -> bool:
    whole = len(units(t)) * 2 == t.numel() * t.element_size()
    return whole and t.dim() > 0 and t.is_floating_point() and t.numel() > 0


# ---- statements ----------------------------------------------------------------------------------


class _Draw:
    def __init__(self, program: Program, rng: random.Random, with_dynamo: bool) -> None:
        self.program, self.rng, self.with_dynamo = program, rng, with_dynamo
        _draw_inputs(program, rng)
        inputs = make_inputs(program.inputs[0], program.rows[0])
        self.run_ = NativeRun(inputs)
        self.constants = {n: (t, t.clone()) for n, t in inputs.items() if n[0] == "g"}
        self.constant_units = frozenset().union(*(units(t) for t, _ in self.constants.values()))
        self.alive = [*program.arguments, *(n for n in inputs if n[0] == "g")]
        self.count = 0

    def run(self, steps: int) -> None:
        tables = {self._op: 10, self._view: 7, self._write: 4, self._value: 4, self._special: 2}
        for _ in range(steps):
            drawn = self.rng.choices(list(tables), list(tables.values()))[0]()
            if drawn is not None:
                self._try(drawn)
        self._choose_returns()
        if self.program.route == "direct" and self._writes_shared_inputs():
            self.program.route = "aot"  # the quick way takes inputs for separate ones
        if self.program.route != "direct" and self._shares_inputs():
            # AOTAutograd crashes on lists of inputs that share memory.
            self.program.lines = [s for s in self.program.lines if "_foreach" not in s]

    def _shares_inputs(self) -> bool:
        storages = [_storage(self.value(n)) for n in self.program.arguments]
        return len(set(storages)) < len(storages)

    def _writes_shared_inputs(self) -> bool:
        before = make_inputs(self.program.inputs[0], self.program.rows[0])
        try:
            after = run_natively(self.program).inputs
        except InvalidProgramError:  # `out=` may give an input another shape
            return False
        changed = {n for n, t in before.items() if not torch.equal(t, after[n])}
        storages = [_storage(self.value(n)) for n in self.program.arguments]
        return any(storages.count(_storage(self.value(n))) > 1 for n in changed)

    def _try(self, text: str) -> None:
        before = dict(self.run_.env)
        if self._is_slow(read_line(text)):
            return
        try:
            line = self.run_.step(text)
        except (InvalidProgramError, RuntimeError, IndexError, ValueError, TypeError):
            self.run_.env = before  # torch refuses it, before it does anything
            return
        made = [n for n in line.defines if isinstance(self.value(n), Tensor)]
        if self._harms_constants(line) or not all(map(self._sane, [*made, *line.uses])):
            # What was written stays written: the rest of the draw has other values, no matter.
            self.run_.env = before
            for name in line.donates:
                self.run_.donated -= units(self.value(name))
            return
        self.program.lines.append(text)
        self.alive += made
        self.alive = [n for n in self.alive if not units(self.value(n)) & self.run_.donated]

    def _is_slow(self, line: Line) -> bool:
        """Whether the quick way can't take the statement: not too many programs go another way."""
        if self.program.route != "direct" or not line.writes or self.rng.random() < 0.2:
            return False
        storages = [_storage(self.value(n)) for n in self.program.arguments]
        return any(storages.count(_storage(self.value(n))) > 1 for n in line.uses)

    def _harms_constants(self, line: Line) -> bool:
        """Whether the compiled function would mean something else when it is called again."""
        written = False
        for t, before in self.constants.values():
            if not torch.equal(t, before):
                written = True
                t.copy_(before)
        donated = any(units(self.value(n)) & self.constant_units for n in line.donates)
        return written or donated

    def _sane(self, name: str) -> bool:
        t = self.value(name)
        if not isinstance(t, Tensor) or t.numel() > 2048:
            return not isinstance(t, Tensor)
        if not t.is_floating_point() or t.numel() == 0:
            return True
        return bool(t.detach().abs().max() < LARGEST)

    def value(self, name: str) -> Tensor:
        return self.run_.env[name]  # type: ignore[no-any-return]

    def _choose_returns(self) -> None:
        ours = [n for n in self.alive if n[0] == "v"]
        wanted = min(len(ours), self.rng.randint(1, 4))
        late = ours[-3:]
        chosen = {*self.rng.sample(ours, wanted), *self.rng.sample(late, min(len(late), 1))}
        if self.rng.random() < 0.1 and self.alive:
            chosen.add(self.rng.choice(self.alive))
        self.program.returns = [n for n in self.alive if n in chosen and n[0] != "g"]

    # ---- choosing ----

    def new(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def pick(self, fits: Callable[[Tensor], bool] = lambda t: True) -> str | None:
        found = [n for n in self.alive if fits(self.value(n))]
        # The younger ones more often, so that chains come about.
        return self.rng.choice(found + found[-4:] * 2) if found else None

    def like(self, name: str, new: bool = False) -> str | None:
        """Return a tensor of the same shape, most often another one; `new`: one may be made."""
        t = self.value(name)
        found = [n for n in self.alive if n != name and _alike(self.value(n), t)]
        if found and self.rng.random() < 0.9:
            return self.rng.choice(found + found[-3:])
        if new and self.rng.random() < 0.8:
            return self.rng.choice((f"{name} + 1.0", f"{name}.flip(-1)", f"{name} * 0.5"))
        return name

    def _floats(self, dims: int = 1) -> str | None:
        return self.pick(lambda t: t.is_floating_point() and t.dim() >= dims and t.numel() > 0)

    # ---- ops ----

    def _call(self, kind: str, x: str, donate: bool, factor: str | None = None) -> str | None:
        """Return the text of a call; `factor`: None draws one."""
        op = IR_OPS[kind]
        parameters = list(op.signature.parameters)
        other = "x_other" if "x_other" in parameters else "y" if "y" in parameters else None
        other = "x_residual" if "x_residual" in parameters else other
        arguments = [x]
        if other:
            arguments.append(self.like(x, new=True))
        keywords = self.rng.random() < 0.15
        if kind in NORMS:
            shape = self.value(x).shape[-1:]
            weight = self.pick(lambda t: t.shape == shape and t.is_floating_point())
            arguments.append(weight if weight and self.rng.random() < 0.5 else "None")
            arguments.append("epsilon=0.25" if keywords else "0.25")
        else:
            factor = factor or self.rng.choice(("0.5", "-0.5", "0.5", "1.0"))
            arguments.append(f"factor={factor}" if keywords else factor)
        callee = f"{kind}.maybe_inplace" if donate and op.allow_inplace else kind
        return f"{callee}({', '.join(arguments)})"

    def _op(self) -> str | None:
        x = self._floats()
        kind = self.rng.choice(list(IR_OPS))
        call = x and self._call(kind, x, donate=self.rng.random() < 0.5)
        if not call:
            return None
        return f"{', '.join(self.new() for _ in range(OUTPUTS.get(kind, 1)))} = {call}"

    # ---- views ----

    def _view(self) -> str | None:
        x = self.pick(lambda t: t.dim() > 0 and t.numel() > 1)
        return x and self.rng.choice(VIEWS)(self, x)

    def _write(self) -> str | None:
        x = self.pick(_may_be_written)
        return x and self.rng.choice(WRITES)(self, x)

    def _value(self) -> str | None:
        x = self._floats()
        return x and self.rng.choice(VALUES)(self, x)

    def _special(self) -> str | None:
        x = self._floats()
        return (x and self.with_dynamo and self.rng.choice(SPECIALS)(self, x)) or None
