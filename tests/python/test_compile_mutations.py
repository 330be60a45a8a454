# SPDX-License-Identifier: Apache-2.0
"""Planted faults are found: each of them is a rule that the compiler half must not lose.

A fault changes one function. Small programs, right without the fault, must be wrong with it; the
random programs of `compile_programs.py` find most faults too.
"""

import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from compile_programs import failures, unrefused
from ops_for_compiling import IR_OPS
from program_drawing import draw_program
from program_routes import route_of
from program_text import InvalidProgramError, Program
from program_verdict import refusal, verdict
from torch import Tensor
from torch._inductor.utils import fresh_cache
from toys import new_name

import vllm_ir as ir
from vllm_ir.compile import sink

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

Plant = Callable[[pytest.MonkeyPatch], None]


def room(name: str) -> Any:
    """Return a module of the compiler half; some names of the package are functions."""
    return importlib.import_module(f"vllm_ir.compile.{name}")


INPUTS = """\
b0 = data(1, rows, 8)
b1 = data(2, rows, 8)
b2 = data(3, rows, 24)
a0 = b0
a1 = b1
a2 = b2[:, :8]"""
IN_PLACE = {
    "add_norm": ["traceable"],
    "scale": ["kernel"],
    "ramp": ["through_view"],
    "butterfly": ["kernel"],
    "crossed": ["swaps"],
    "mix": ["scratch"],
}


def program(*lines: str, route: str = "direct", inputs: str = INPUTS, **fields: Any) -> Program:
    """Return a program whose last line is what it returns."""
    *body, returned = lines
    names = returned.split(", ")
    shared = fields.pop("shared", None)
    variants = [inputs, shared] if shared else [inputs]
    priorities = {**IN_PLACE, **fields.pop("priorities", {})}
    return Program(1, variants, body, names, priorities=priorities, route=route, **fields)


@dataclass(frozen=True)
class Fault:
    """A fault and programs that it makes wrong, each by itself.

    Attributes:
        random: Whether random programs find it too, and soon.
    """

    plant: Plant
    programs: tuple[Program, ...]
    random: bool = True


# ---- clone clean-up ------------------------------------------------------------------------------


def direct_users_only(patch: pytest.MonkeyPatch) -> None:
    def why_kept(clone, source, classes, given):
        mine, theirs = clone.meta["val"], source.meta["val"]
        if mine.stride() != theirs.stride():
            return "another layout"
        if source.op == "placeholder" and not given.covers(source, classes):
            return "a graph input"
        position = classes.order[clone]
        return "used" if any(classes.order[u] > position for u in source.users) else ""

    patch.setattr(room("clone_cleanup"), "_why_kept", why_kept)


SPLIT_SIBLING = program(
    "v0 = torch.cat([a0, a1])", "v1, v2 = v0.split(6)", "v3, v4 = add_norm(v1, a1, None, 0.25)",
    "v5 = v0[:6] * v4", "v3, v4, v5",
)  # fmt: skip
VIEW_OF_RESULT = program(
    "v0, v1 = add_norm(a0 + 1.0, a1 + 1.0, None, 0.25)", "v2, v3 = v0.split(4, -1)",
    "v4, v5 = add_norm(v0, v1, None, 0.25)", "v6 = v2 * v4[:, :4]", "v4, v5, v6",
)  # fmt: skip


def nothing_is_replaced(patch: pytest.MonkeyPatch) -> None:
    """Leave the fake tensors of views of replaced values alone: they carry the old storage."""
    classes = room("alias").AliasClasses
    made = classes.__init__
    patch.setattr(classes, "__init__", lambda self, graph, replaced: made(self, graph, []))
    patch.setattr(classes, "_join_views", lambda self, node: None)


def outputs_are_no_users(patch: pytest.MonkeyPatch) -> None:
    cleanup = room("clone_cleanup")
    seen = cleanup._seen_by_users

    def without_outputs(*args):
        reason = seen(*args)
        return "" if reason.endswith("is returned") else reason

    patch.setattr(cleanup, "_seen_by_users", without_outputs)


RETURNED = program("v0 = a0 + 1.0", "v1 = scale(v0, 0.5)", "v0, v1")


def inputs_are_given(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room("clone_cleanup")._Given, "covers", lambda self, node, classes: True)


INPUT = program("v0 = scale(a0, 0.5)", "v0")
PART_OF_INPUT = program("v0 = a0[1:]", "v1 = scale(v0, 0.5)", "v2 = v1 + 1.0", "v2")


def elements_are_apart(patch: pytest.MonkeyPatch) -> None:
    """Trust that no element is there twice; strides alone would still tell of an expanded one."""
    cleanup = room("clone_cleanup")
    patch.setattr(cleanup, "overlaps_itself", lambda tensor: False)
    patch.setattr(cleanup, "_same_strides", lambda a, b: True)


EXPANDED = program(
    "v0 = a0 + 1.0", "v1 = v0[:1].expand(4, 8)", "v2 = mix(v1, a1[:4], 0.5)", "v3 = v2 + 1.0",
    "v3", priorities={"mix": ["rows"]},
)  # fmt: skip


def constants_are_given(patch: pytest.MonkeyPatch) -> None:
    """Take a constant of the graph for a value of its own."""
    cleanup = room("clone_cleanup")
    why_kept = cleanup._why_kept

    def without_constants(*args):
        reason = why_kept(*args)
        return "" if "lies in the constant" in reason else reason

    patch.setattr(cleanup, "_why_kept", without_constants)


CONSTANT = program("v0 = scale(g0, 0.5)", "v0", inputs=INPUTS + "\ng0 = data(9, rows, 8)")


# ---- donation ------------------------------------------------------------------------------------


def everything_is_donated(patch: pytest.MonkeyPatch) -> None:
    """Look for donations beside the graph: a `default` call gets those of another."""
    patch.setattr(room("choose"), "is_donating", lambda node: True)


def inputs_may_overlap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room("backend"), "_with_inputs_apart", lambda compiled, gm, donated: compiled)


SHARED = """\
b0 = data(1, 200)
a0 = b0.as_strided((6, 8), (8, 1), 0)
a1 = b0.as_strided((6, 8), (8, 1), 4)
a2 = b0.as_strided((6, 8), (24, 1), 50)"""
# Read before, in the order of the program; sorted for locality, behind.
OVERLAPPING = program(
    "v0 = a1 * 2.0", "v1 = ramp.maybe_inplace(a0, 0.5)", "v2 = v1 + v0", "v2",
    shared=SHARED, options={"reorder": True},
)  # fmt: skip


def anything_may_be_used_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room("functionalize"), "_check_reuse", lambda node, op, memory: None)


def nothing_overlaps(patch: pytest.MonkeyPatch) -> None:
    regions = room("regions")
    patch.setattr(room("functionalize"), "overlap", lambda a, b: regions.Overlap.NO)


REUSED_VIEW = program(
    "v0 = a0.view(-1)", "v1 = scale.maybe_inplace(a0, 0.5)", "v2 = v0 + 1.0", "v2"
)


def nothing_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room("functionalize"), "written_nodes", lambda node: [])


LOST_WRITE = program(
    "v0 = a0[:2]", "v1 = a0[5:]", "v4 = a1[2:]", "v2 = scale.maybe_inplace(v1, 0.5)", "v0 += 1.0",
    "v3 = v4 + 1.0", "v2, v3", route="dynamo",
    shared=SHARED.replace("(8, 1), 4)", "(8, 1), 40)"), options={"any_layout": True},
)  # fmt: skip


# ---- the rest ------------------------------------------------------------------------------------


def lowering_comes_early(patch: pytest.MonkeyPatch) -> None:
    """Lower where Inductor still takes clones for no-ops and removes them."""
    patch.setattr(room("backend"), "POST_PASS", "post_grad_custom_pre_pass")


DEFAULT = program(
    "v0, v1 = add_norm(a0, a1, None, 0.25)", "v2 = v0 + 1.0", "v3 = v1 + 1.0", "v2, v3", route="aot"
)


def results_are_trusted(patch: pytest.MonkeyPatch) -> None:
    checks = room("lowering")
    patch.setattr(checks, "_check_results", lambda graph, choice, results, clones: results)


ALIAS = program(
    "v0 = scale(a0, 1.0)", "v0", priorities={"scale": ["returns_input"]}, route="dynamo"
)
STRIDES = program(
    "v0, v1 = halves(a0, 0.5)", "v1", priorities={"halves": ["one_buffer"]}, route="dynamo"
)


def offsets_are_free(patch: pytest.MonkeyPatch) -> None:
    for name in ("lowering", "clone_cleanup"):
        patch.setattr(room(name), "same_place", lambda want, got, graph: True)


ABSOLUTE = program(
    "v0 = a0 * 2.0", "v1 = v0[2:]", "v2 = scale(v1, 0.5)",
    "v3 = torch.as_strided(v2, (4, 4), (4, 1), 4)", "v4 = v3 + 1.0", "v4",
)  # fmt: skip
PIECE = program(
    "v0, v1 = crossed(a0, a1, 0.5)", "v2 = torch.as_strided(v1, (4, 4), (4, 1), 4)",
    "v3 = v2 + 1.0", "v3", priorities={"crossed": ["one_buffer"]},
)  # fmt: skip


def bodies_are_left_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room("pipeline"), "mend_bodies", lambda graph: None)


BRANCHES = program(
    "def true_0(s, t):\n    p, q = crossed(s, t, 0.5)\n    return p + 1.0, q\n"
    "def false_0(s, t):\n    return s + 2.0, t * 0.5\n"
    "v0, v1 = cond(a0.sum() > -1000.0, true_0, false_0, (a0, a1))",
    "v0, v1", priorities={"crossed": ["one_buffer"]}, route="dynamo",
)  # fmt: skip


def anything_may_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room("hoist"), "_dependents", lambda graph, call, position, classes: {call})


DEPENDENT = program(
    "v0 = a0 @ a1.t()", "v1 = scale(v0, 0.5)", "v2 = v0 * v1", "v1, v2",
)  # fmt: skip


FAULTS = {
    f.plant.__name__: f
    for f in (
        Fault(direct_users_only, (SPLIT_SIBLING, VIEW_OF_RESULT)),
        Fault(nothing_is_replaced, (VIEW_OF_RESULT,)),
        Fault(outputs_are_no_users, (RETURNED,)),
        Fault(inputs_are_given, (INPUT, PART_OF_INPUT)),
        Fault(elements_are_apart, (EXPANDED,)),
        Fault(constants_are_given, (CONSTANT,)),
        Fault(everything_is_donated, (INPUT, DEFAULT)),
        Fault(inputs_may_overlap, (OVERLAPPING,), random=False),
        Fault(nothing_is_written, (LOST_WRITE,), random=False),
        Fault(lowering_comes_early, (DEFAULT,)),
        Fault(results_are_trusted, (ALIAS, STRIDES)),
        Fault(offsets_are_free, (ABSOLUTE, PIECE), random=False),
        Fault(bodies_are_left_alone, (BRANCHES,), random=False),
        Fault(anything_may_move, (DEPENDENT,)),
    )
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name, monkeypatch):
    fault = FAULTS[name]
    for p in fault.programs:
        assert verdict(p) == "", p.source()
    fault.plant(monkeypatch)
    for p in fault.programs:
        assert verdict(p) != "", p.source()


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, f in FAULTS.items() if f.random])
def test_random_programs_find_the_fault(name, monkeypatch):
    FAULTS[name].plant(monkeypatch)
    counts = Counter()
    seed, _ = next(failures(range(2000), "passes", counts), (None, ""))
    assert seed is not None, counts
    monkeypatch.undo()
    assert verdict(draw_program(seed)) == ""


# ---- programs that must be refused ---------------------------------------------------------------


@pytest.mark.parametrize("plant", [anything_may_be_used_again, nothing_overlaps])
def test_a_fault_in_the_check_of_reuse_is_found(plant, monkeypatch):
    with pytest.raises(InvalidProgramError):
        verdict(REUSED_VIEW)
    assert refusal(REUSED_VIEW) == ""
    assert not list(unrefused(range(40), Counter()))
    plant(monkeypatch)
    assert refusal(REUSED_VIEW) == "used what was donated, and nobody said so"
    assert list(unrefused(range(40), Counter()))


def test_a_write_is_a_use(monkeypatch):
    p = program("v0 = scale.maybe_inplace(a0, 0.5)", "a0.mul_(2.0)", "v0")
    assert refusal(p) == ""
    nothing_is_written(monkeypatch)
    assert refusal(p) == "used what was donated, and nobody said so"


# ---- what random programs can't see --------------------------------------------------------------


def kept_clones(p):
    assert verdict(p) == ""
    (report,) = sink.graphs(f"direct {p.seed}")[-1:]
    return [c.reason for n in report.nodes for c in n.clones if c.kept]


def test_without_hoisting_there_are_more_copies_and_nothing_is_wrong(monkeypatch):
    p = program(
        *("v0 = a0 @ a1.t()", "v1 = v0.sum(-1)", "v2 = scale.maybe_inplace(v0, 0.5)"),
        *("v3 = v2 + v1", "v3"),
        options={"reorder": True},
    )
    assert kept_clones(p) == []
    monkeypatch.setattr(room("pipeline"), "hoist_readers", lambda graph, calls: 0)
    (reason,) = kept_clones(p)
    assert reason.startswith("'mm' is used afterwards by 'sum")


def test_a_body_does_not_give_away_what_belongs_to_others(monkeypatch):
    scale = IR_OPS["scale"]

    def f(x):
        y = x + 1.0
        body = lambda t: scale.maybe_inplace(t, 0.5) + 1.0  # noqa: E731
        return torch.cond(x.sum() > -1000.0, body, lambda t: t - 1.0, (y,)), y

    def compiled():
        torch._dynamo.reset()
        p = program("v0 = a0", "v0", route="dynamo")
        with route_of(p), scale.set_priority(["kernel"]), torch.no_grad():
            return torch.compile(f, backend=ir.compile.Backend(), fullgraph=True)(torch.zeros(6, 8))

    _, y = compiled()
    assert torch.equal(y, torch.ones(6, 8))

    def rewrite(body):
        for node, op, name in room("graph").ir_nodes(body.graph):
            if name == "maybe_inplace":
                node.target = room("graph").overload(op, "donated")

    monkeypatch.setattr(room("functionalize"), "_rewrite_body", rewrite)
    monkeypatch.setattr(room("clone_cleanup"), "_CLOSED", {"cond"})
    _, y = compiled()
    assert torch.equal(y, torch.full((6, 8), 0.5))


def test_a_result_of_another_dtype_is_an_error(monkeypatch):
    native = IR_OPS["scale"].impls["native"].impl_fn
    op = ir.register_op(native, name=new_name("widening"))
    op.register_impl("wide")(wide)
    monkeypatch.setitem(IR_OPS, "widening", op)
    p = program("v0 = widening(a0, 0.5)", "v0", priorities={"widening": ["wide"]})
    assert "must be float32[6, 8] on cpu as native's, got float64[6, 8]" in verdict(p)
    results_are_trusted(monkeypatch)
    assert verdict(p).endswith("result v0: torch.float64 (6, 8), not torch.float32 (6, 8)")


def wide(x: Tensor, factor: float) -> Tensor:
    return (x * factor).double()


@pytest.mark.parametrize("depth", ["passes", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_cached_result_belongs_to_its_priority(depth, monkeypatch):
    """Without priorities in the key, Inductor's caches give what was compiled for another one."""
    if depth == "passes":  # the keys themselves
        keys = {tuple(p): key_under(p) for p in (["one"], ["two"])}
        assert None not in keys.values()
        assert len(set(keys.values())) == 2
        priorities_do_not_count(monkeypatch)
        assert len({key_under(p) for p in (["one"], ["two"])}) == 1
        return
    with fresh_cache(), torch.no_grad():
        assert [which_runs(p) for p in ("one", "two")] == [1.0, 2.0]
    priorities_do_not_count(monkeypatch)
    with fresh_cache(), torch.no_grad():
        assert [which_runs(p) for p in ("one", "two")] == [1.0, 1.0]


def priorities_do_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room("fingerprint"), "_all_ops", lambda selection, ops, config: [])


def number(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def one(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def two(x: Tensor) -> Tensor:
    return torch.full_like(x, 2.0)


NUMBER = ir.register_op(number, name=new_name("number"))
NUMBER.register_impl("one")(one)
NUMBER.register_impl("two")(two)


def key_under(priority):
    with NUMBER.set_priority(priority):
        return ir.compile.PostGradPass().uuid()


def which_runs(provider):
    torch._dynamo.reset()
    with NUMBER.set_priority([provider]):
        compiled = torch.compile(lambda x: NUMBER(x) * 1.0, backend=ir.compile.Backend())
        return compiled(torch.zeros(4, 4))[0, 0].item()
