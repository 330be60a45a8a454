# SPDX-License-Identifier: Apache-2.0
"""The list of passes: names, order, configuration, identity, and passes that misbehave."""

import importlib.util
import sys

import pytest
import torch
from fusion_graphs import Fused, passes_as_they_were  # noqa: F401
from toys import line_of, raises_exactly

import vllm_ir as ir
from vllm_ir.compile import CompileConfig, fusion
from vllm_ir.compile.fusion import register_pass, unregister
from vllm_ir.errors import (
    DuplicateError,
    IrRuntimeError,
    IrTypeError,
    IrValueError,
    UnknownNameError,
)

BUILT_IN = ["add_rms_norm", "sequence_parallelism"]


def names() -> list[str]:
    return [p.name for p in fusion.passes()]


def add_pass(name: str, ran: list[str] | None = None, **options) -> None:
    @register_pass(name, **options)  # registers
    def run(rewriter):
        if ran is not None:
            ran.append(name)


def layer(x, r):
    return ir.ops.rms_norm(x + r, None, 1e-6)


def fused(config: CompileConfig | None = None) -> Fused:
    return Fused(layer, torch.ones(2, 8), torch.ones(2, 8), config=config)


def test_the_passes_of_the_package():
    assert names() == BUILT_IN
    assert [p.default for p in fusion.passes()] == [True, False]


def test_a_new_pass_is_last_unless_it_says_otherwise():
    add_pass("last")
    add_pass("first", before="add_rms_norm")
    add_pass("middle", before=("sequence_parallelism",), after=["add_rms_norm"])
    assert names() == ["first", "add_rms_norm", "middle", "sequence_parallelism", "last"]


def test_passes_run_in_the_order_of_the_list_whatever_the_configuration_says():
    ran: list[str] = []
    for name in ("a", "b", "c"):
        add_pass(name, ran)
    add_pass("z", ran, before="a")
    fused(CompileConfig(fusions=("c", "z", "a")))
    assert ran == ["z", "a", "c"]


def test_without_names_those_that_are_on_by_default_run():
    ran: list[str] = []
    add_pass("on", ran)
    add_pass("off", ran, default=False)
    found = fused()
    assert ran == ["on"]
    assert [r.name for r in found.rows] == ["add_rms_norm", "on"]


def test_no_names_turn_all_off():
    add_pass("on")
    found = fused(CompileConfig(fusions=()))
    assert found.ops == ["rms_norm"]
    assert found.rows == []


def test_a_pass_that_did_nothing_has_a_row():
    add_pass("idle")
    found = fused(CompileConfig(fusions=("idle",)))
    assert found.said == ["idle: no match"]


def test_a_taken_name_is_refused_and_can_be_freed():
    add_pass("mine")
    where = line_of("registers", __file__)
    with raises_exactly(
        DuplicateError,
        f"vllm_ir.fusion.mine: registered already, at {where}, got another at {where}. "
        "Choose another name, or unregister the first.",
    ):
        add_pass("mine")
    unregister("mine")
    assert names() == BUILT_IN
    add_pass("mine")


def test_an_order_that_can_not_be_is_refused():
    with raises_exactly(
        IrValueError,
        "vllm_ir.fusion.odd: must run after 'sequence_parallelism' and before 'add_rms_norm', got "
        "the order add_rms_norm, sequence_parallelism. Leave one of them out.",
    ):
        add_pass("odd", before="add_rms_norm", after="sequence_parallelism")
    assert names() == BUILT_IN


@pytest.mark.parametrize("name", ["", "Norm", "a-b", "1st", 5])
def test_a_name_that_is_none_is_refused(name):
    with raises_exactly(
        IrValueError,
        f"vllm_ir.fusion: the name of a pass must match ^[a-z_][a-z0-9_]*$, got {name!r}.",
    ):
        add_pass(name)


def test_a_pass_must_be_a_function():
    with raises_exactly(
        IrTypeError, "vllm_ir.fusion.mine: a pass must be a function of a Rewriter, got int."
    ):
        register_pass("mine")(3)


def test_unknown_names_list_the_known_and_the_nearest():
    known = (
        "unknown fusion pass 'add_rms_nrom'. Known: add_rms_norm, sequence_parallelism. "
        "Did you mean 'add_rms_norm'?"
    )
    with raises_exactly(UnknownNameError, f"vllm_ir.compile: {known}"):
        CompileConfig(fusions=("add_rms_nrom",))
    with raises_exactly(UnknownNameError, f"vllm_ir.fusion.mine: {known}"):
        add_pass("mine", before="add_rms_nrom")
    with raises_exactly(UnknownNameError, f"vllm_ir.fusion: {known}"):
        unregister("add_rms_nrom")


def test_a_name_that_is_gone_when_it_is_needed_is_unknown():
    add_pass("short_lived")
    config = CompileConfig(fusions=("short_lived",))
    unregister("short_lived")
    with pytest.raises(UnknownNameError, match="unknown fusion pass 'short_lived'"):
        fused(config)
    with pytest.raises(UnknownNameError, match="unknown fusion pass 'short_lived'"):
        fusion.fingerprint(config)


def test_a_pass_that_raises_is_named():
    @register_pass("broken")  # the broken pass
    def broken(rewriter):
        raise KeyError("lost")

    where = line_of("the broken pass", __file__)
    with raises_exactly(
        IrRuntimeError,
        "vllm_ir.fusion.broken: the pass failed, got KeyError: 'lost'. Mend it "
        f"({where}), or leave it out of CompileConfig(fusions=...).",
    ):
        fused(CompileConfig(fusions=("broken",)))


def test_a_pass_that_leaves_a_broken_graph_is_named():
    @register_pass("disorder")
    def disorder(rewriter):
        norm = rewriter.graph.find_nodes(
            op="call_function", target=torch.ops.vllm_ir.rms_norm.default
        )[0]
        norm.append(norm.args[0])  # its argument, now behind it

    with pytest.raises(IrRuntimeError, match=r"vllm_ir\.fusion\.disorder: the pass failed"):
        fused(CompileConfig(fusions=("disorder",)))


def test_new_nodes_must_be_known():
    @register_pass("bare")
    def bare(rewriter):
        norm = rewriter.graph.find_nodes(
            op="call_function", target=torch.ops.vllm_ir.rms_norm.default
        )[0]
        with rewriter.graph.inserting_before(norm):
            rewriter.graph.call_function(torch.ops.aten.neg.default, (norm.args[0],))

    with raises_exactly(
        IrRuntimeError,
        "vllm_ir.fusion.bare: a new node must have a fake value as meta['val'], got none for "
        "'neg_default'. Make nodes with rewriter.insert(...).",
    ):
        fused(CompileConfig(fusions=("bare",)))


def test_op_calls_that_a_pass_makes_are_canonical():
    @register_pass("again")
    def again(rewriter):
        norm = rewriter.graph.find_nodes(
            op="call_function", target=torch.ops.vllm_ir.rms_norm.default
        )[0]
        with rewriter.graph.inserting_after(norm):
            new = rewriter.graph.call_function(
                torch.ops.vllm_ir.rms_norm, (norm,), {"epsilon": 0.5, "weight": None}
            )
        new.meta["val"] = norm.meta["val"]
        norm.replace_all_uses_with(new, lambda user: user is not new)

    found = fused(CompileConfig(fusions=("again",)))
    assert found.ops == ["rms_norm", "rms_norm"]
    last = found.calls(torch.ops.vllm_ir.rms_norm.default)[1]
    assert last.args[1:] == (None, 0.5, None)


def test_new_nodes_say_where_they_come_from():
    def give_a_place(graph):
        norm = graph.find_nodes(op="call_function", target=torch.ops.vllm_ir.rms_norm.default)[0]
        norm.meta["stack_trace"] = 'File "model.py", line 7, in forward\n    y = norm(x + r)'
        norm.meta["nn_module_stack"] = {"a": ("L['self'].layers.3.norm", torch.nn.Module)}

    found = Fused(layer, torch.ones(2, 8), torch.ones(2, 8), edit=give_a_place)
    node = found.call("fused_add_rms_norm")
    assert node.meta["stack_trace"].startswith('File "model.py", line 7')
    assert found.rows[0].module == "layers.3.norm"


MODULE = """
from vllm_ir.compile.fusion import register_pass

@register_pass("mine"{options})
def mine(rewriter):
    return {body}
"""


def fingerprints(folder, body: str = "0", options: str = "") -> list[str | None]:
    """Return the fingerprints with a pass from a file: default, the pass, the built-in, none."""
    folder.mkdir()
    path = folder / "a_pass.py"
    path.write_text(MODULE.format(body=body, options=options))
    spec = importlib.util.spec_from_file_location("a_pass", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["a_pass"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        chosen = (None, ("mine",), ("add_rms_norm",), ())
        return [fusion.fingerprint(CompileConfig(fusions=names)) for names in chosen]
    finally:
        unregister("mine")
        del sys.modules["a_pass"]


def test_the_fingerprint_follows_sources_order_and_choice(tmp_path):
    one = fingerprints(tmp_path / "one")
    same = fingerprints(tmp_path / "same")
    edited = fingerprints(tmp_path / "edited", body="1")
    earlier = fingerprints(tmp_path / "earlier", options=", before='add_rms_norm'")
    off = fingerprints(tmp_path / "off", options=", default=False")
    assert one == same
    assert len(set(one)) == 4
    assert edited[:2] != one[:2]
    assert edited[2:] == one[2:]
    assert earlier[0] != one[0]
    assert off[0] == off[2] == one[2]


def test_what_can_not_be_known_has_no_fingerprint():
    register_pass("state", identity=lambda: None)(lambda rewriter: None)
    assert fusion.fingerprint(CompileConfig(fusions=("state",))) is None
    assert fusion.fingerprint(CompileConfig(fusions=("add_rms_norm",))) is not None


def test_what_a_pass_asks_the_process_is_part_of_the_fingerprint():
    answer = ["a"]
    register_pass("asks", identity=lambda: answer[0])(_idle)
    config = CompileConfig(fusions=("asks",))
    first = fusion.fingerprint(config)
    answer[0] = "b"
    assert first is not None
    assert fusion.fingerprint(config) not in (None, first)


def _idle(rewriter):
    pass


def test_a_report_survives_a_round_trip():
    from vllm_ir.compile.report import GraphReport

    found = fused()
    report = GraphReport("forward", fusions=found.rows)
    report.fusions[0].costs["before"] = {"all_reduce": 1}
    assert GraphReport.from_dict(report.to_dict()) == report
