# SPDX-License-Identifier: Apache-2.0
"""Exported programs: ops are kept, saved and loaded; then lowered, or decomposed into native."""

import json
import os
import textwrap
from pathlib import Path

import pytest
import torch
from export_models import (
    BATCHES,
    AddNorm,
    Branches,
    Keyworded,
    Model,
    Norm,
    by_batch,
    inputs,
    seeded,
)
from processes import output_of, run_python
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from toys import line_of, new_name, raises_exactly, runs, same_as, toy_native

import vllm_ir as ir

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    # torch's own copy of a program's call specifications
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
]

NORM, ADD_NORM = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
NORM_OP = "vllm_ir.rms_norm.default"
ADD_OP = "vllm_ir.fused_add_rms_norm.default"
PROVIDERS = ["native", "vllm_c"]
TESTS = os.path.dirname(__file__)
# A process that must do with torch alone, and one that may import models.
ALONE = "import sys\nsys.modules['vllm_ir'] = None\nimport torch\n"
WITH_MODELS = (
    f"import sys\nsys.path.insert(0, {TESTS!r})\nimport torch, vllm_ir as ir, export_models\n"
)


def prefer(*providers: str) -> None:
    for op in (NORM, ADD_NORM):
        op.set_default(list(providers))


def targets(program) -> list[str]:
    graphs = [m.graph for m in program.graph_module.modules() if hasattr(m, "graph")]
    return [str(n.target) for g in graphs for n in g.nodes if n.op == "call_function"]


def operators_of(program, namespace: str) -> set[str]:
    return {t for t in targets(program) if t.startswith(f"{namespace}.")}


def exported(model, strict: bool = False):
    return torch.export.export(model, inputs(3), dynamic_shapes=by_batch(), strict=strict)


def run_without_gradients(f, *args):
    with torch.no_grad():
        return f(*args)


def check_all_batches(run, model) -> None:
    """Compare with an eager call of the model for every batch; what goes in must stay the same."""
    for batch in BATCHES:
        given = inputs(batch, seed=batch)
        kept = [t.clone() for t in given]
        result = run_without_gradients(run, *given)
        torch.testing.assert_close(tuple(given), tuple(kept), rtol=0, atol=0)
        expected = run_without_gradients(model, *kept)
        torch.testing.assert_close(tuple(result), tuple(expected))


# ---- ops are kept --------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_ops_whatever_the_priorities(strict):
    prefer("native")
    model = seeded(Model)
    program = exported(model, strict)
    assert [t for t in targets(program) if "vllm_ir" in t] == [ADD_OP, ADD_OP, NORM_OP]
    for provider in PROVIDERS:
        prefer(provider)
        with runs(NORM, **{provider: 1}), runs(ADD_NORM, **{provider: 2}):
            run_without_gradients(program.module(), *inputs(3))
        check_all_batches(program.module(), model)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_d14_export_without_a_weight(strict, weighted):
    for model, args in ((Norm(weighted), inputs(3)[:1]), (AddNorm(weighted), inputs(3))):
        program = torch.export.export(model, args, strict=strict)
        (call,) = [n for n in program.graph.nodes if n.op == "call_function"][:1]
        assert str(call.target) in (NORM_OP, ADD_OP)
        assert (call.args[len(args)] is None) is not weighted
        for provider in PROVIDERS:
            prefer(provider)
            lowered = ir.compile.lower_program(program)
            for run in (program.module(), lowered.module()):
                result = run_without_gradients(run, *args)
                expected = run_without_gradients(model, *[a.clone() for a in args])
                torch.testing.assert_close(result, expected)
            assert [n.selected for n in ir.explain(lowered).nodes] == [provider]


def test_a_saved_program_chooses_in_the_process_that_loads_it(tmp_path):
    prefer("vllm_c")
    model, path = seeded(Model), str(tmp_path / "model.pt2")
    torch.export.save(exported(model), path)
    for provider in PROVIDERS:
        script = f"""
            import json
            for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
                op.set_default([{provider!r}])
            run = torch.export.load({path!r}).module()
            with torch.no_grad():
                results = run(*export_models.inputs(5))
            ran = {{o.op: {{i.provider: i.selected for i in o.impls if i.selected}}
                   for o in ir.report().ops}}
            print(json.dumps([ran, [t.tolist() for t in results]]))
        """
        said = output_of(WITH_MODELS + textwrap.dedent(script))
        ran, results = json.loads(said.splitlines()[-1])
        assert ran == {"rms_norm": {provider: 1}, "fused_add_rms_norm": {provider: 2}}
        expected = run_without_gradients(model, *inputs(5))
        torch.testing.assert_close(tuple(map(torch.tensor, results)), expected)


def test_loading_a_program_with_ops_needs_vllm_ir(tmp_path):
    path = str(tmp_path / "model.pt2")
    torch.export.save(exported(seeded(Model)), path)
    done = run_python("-c", ALONE + f"torch.export.load({path!r})")
    assert done.returncode != 0
    assert "We failed to resolve torch.ops.vllm_ir." in done.stderr
    assert "Please import the custom op to register it before deserializing." in done.stderr


# ---- lowering ------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_lowered_program_has_chosen(provider):
    model = seeded(Model)
    program = exported(model)
    before = str(program)
    prefer(provider)
    lowered = ir.compile.lower_program(program)
    prefer("native" if provider == "vllm_c" else "vllm_c")
    assert operators_of(lowered, "vllm_ir") == set()
    kernels = {"vllm_ir_C.rms_norm.default", "vllm_ir_C.fused_add_rms_norm_.default"}
    assert operators_of(lowered, "vllm_ir_C") == (kernels if provider == "vllm_c" else set())
    check_all_batches(lowered.module(), model)
    assert str(program) == before
    with runs(NORM, **{NORM.get_priority()[0]: 1}):
        run_without_gradients(program.module(), *inputs(3))


def test_a_lowered_program_has_a_report():
    prefer("vllm_c")
    report = ir.explain(ir.compile.lower_program(exported(seeded(Model))))
    assert report.selected_impls == {
        "fused_add_rms_norm": {
            "fused_add_rms_norm": "vllm_c",
            "fused_add_rms_norm_1": "vllm_c",
        },
        "rms_norm": {"rms_norm": "vllm_c"},
    }
    assert [n.module for n in report.nodes] == ["first", "second", "last"]
    assert [n.donated for n in report.nodes] == [False, False, False]
    kept = [(n.node, c.activation, c.reason) for n in report.nodes for c in n.clones if c.kept]
    assert kept == [
        (
            "fused_add_rms_norm",
            name,
            f"'{given}' lies in graph input '{given}', which was not donated",
        )
        for name, given in (("x", "x"), ("x_residual", "residual"))
    ]


def test_scopes_count_when_a_program_is_lowered():
    prefer("vllm_c")
    program = exported(AddNorm())
    with ADD_NORM.set_priority(["native"]):
        lowered = ir.compile.lower_program(program)
    assert ir.explain(lowered).selected_impls["fused_add_rms_norm"] == {
        "fused_add_rms_norm": "native"
    }
    assert operators_of(lowered, "vllm_ir_C") == set()


def test_the_configuration_chooses_fusions():
    class Sum(torch.nn.Module):
        def forward(self, x, residual):
            total = x + residual
            return ir.ops.rms_norm(total, None, 1e-6), total

    prefer("vllm_c")
    program = exported(Sum())
    fused = ir.compile.lower_program(program)
    apart = ir.compile.lower_program(program, ir.compile.CompileConfig(fusions=()))
    assert operators_of(fused, "vllm_ir_C") == {"vllm_ir_C.fused_add_rms_norm_.default"}
    assert operators_of(apart, "vllm_ir_C") == {"vllm_ir_C.rms_norm.default"}
    check_all_batches(fused.module(), Sum())
    check_all_batches(apart.module(), Sum())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_lowered_program_is_saved_and_loaded(provider, tmp_path):
    prefer(provider)
    model, path = seeded(Model), str(tmp_path / "model.pt2")
    torch.export.save(ir.compile.lower_program(exported(model)), path)
    loaded = torch.export.load(path)
    assert operators_of(loaded, "vllm_ir") == set()
    check_all_batches(loaded.module(), model)


def test_a_program_lowered_to_native_needs_torch_alone(tmp_path):
    prefer("native")
    model, path = seeded(Model), str(tmp_path / "model.pt2")
    torch.export.save(ir.compile.lower_program(exported(model)), path)
    assert _result_in_a_fresh_process(path, ALONE) == _rounded(model)


@pytest.mark.slow
def test_a_program_lowered_to_vllm_c_needs_its_kernels(tmp_path):
    prefer("vllm_c")
    model, path = seeded(Model), str(tmp_path / "model.pt2")
    torch.export.save(ir.compile.lower_program(exported(model)), path)
    assert _result_in_a_fresh_process(path, "import torch, vllm_ir\n") == _rounded(model)
    done = run_python("-c", ALONE + f"torch.export.load({path!r})")
    assert done.returncode != 0
    assert "We failed to resolve torch.ops.vllm_ir_C." in done.stderr


@pytest.mark.parametrize("provider", PROVIDERS)
def test_signature_state_and_constraints_stay_valid(provider, tmp_path):
    prefer(provider)
    model = seeded(Keyworded)
    x, other = inputs(3)
    shapes = {"x": {0: torch.export.Dim("batch")}, "more": [{0: torch.export.Dim("batch")}]}
    program = torch.export.export(model, (x,), {"more": [other]}, dynamic_shapes=shapes)
    lowered = ir.compile.lower_program(program)
    lowered.validate()
    inputs_of = program.graph_signature.input_specs
    assert [(s.kind, s.target) for s in lowered.graph_signature.input_specs] == [
        (s.kind, s.target) for s in inputs_of
    ]
    assert list(lowered.graph_signature.buffers_to_mutate.values()) == ["state"]
    assert str(lowered.range_constraints) == str(program.range_constraints)
    assert lowered.example_inputs is program.example_inputs
    for name, value in program.state_dict.items():
        assert lowered.state_dict[name].data_ptr() == value.data_ptr()
    path = str(tmp_path / "model.pt2")
    torch.export.save(lowered, path)
    for run in (lowered.module(), torch.export.load(path).module()):
        with torch.no_grad():
            run.state.zero_()
            model.state.zero_()
            for batch in (1, 4):
                x, other = inputs(batch, seed=batch)
                result = run(x, more=[other])
                assert result["same"] is other
                torch.testing.assert_close(result, model(x, more=[other]))
                torch.testing.assert_close(run.state, model.state)
        with pytest.raises(AssertionError, match="Guard failed"):
            run(inputs(3)[0], more=[inputs(4)[1]])


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # unflatten
def test_signatures_of_inner_modules_stay_valid():
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()

        def forward(self, x, residual):
            return self.norm(x) + residual

    prefer("vllm_c")
    model = Outer()
    program = torch.export.export(model, inputs(3), preserve_module_call_signature=("norm",))
    lowered = ir.compile.lower_program(program)
    (entry,) = [e for e in lowered.module_call_graph if e.fqn == "norm"]
    assert entry.signature is not None
    names = {n.name for n in lowered.graph.nodes}
    assert {a.name for a in (*entry.signature.inputs, *entry.signature.outputs)} <= names
    result = run_without_gradients(torch.export.unflatten(lowered), *inputs(3))
    torch.testing.assert_close(result, run_without_gradients(model, *inputs(3)))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not:UserWarning"
)  # cond
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("strict", [False, True])
def test_bodies_of_higher_order_operators_are_lowered(provider, strict, tmp_path):
    prefer(provider)
    model = seeded(Branches)
    program = exported(model, strict)
    lowered = ir.compile.lower_program(program)
    assert "cond" in targets(lowered)
    assert operators_of(lowered, "vllm_ir") == set()
    report = ir.explain(lowered)
    assert [n.op for n in report.nodes] == [*["fused_add_rms_norm"] * 4, "rms_norm"]
    assert [len(g.nodes) for g in report.graphs] == [3, 1, 1]
    path = str(tmp_path / "model.pt2")
    torch.export.save(lowered, path)
    for run in (lowered.module(), torch.export.load(path).module()):
        for batch in (1, 2, 5):
            for sign in (1, -1):
                x, residual = inputs(batch)
                x = x.abs() * sign
                kept = x.clone(), residual.clone()
                result = run_without_gradients(run, x, residual)
                torch.testing.assert_close((x, residual), kept, rtol=0, atol=0)
                torch.testing.assert_close(result, run_without_gradients(model, *kept))


def test_a_write_of_the_model_stays_behind_the_op_that_reads():
    class Writes(torch.nn.Module):
        def forward(self, x, residual):
            h = x + 1
            y, total = ir.ops.fused_add_rms_norm(x, h, None, 1e-6)
            h.add_(residual)
            read = h.sum(-1)
            h.mul_(3)
            return y, total, h, read

    prefer("vllm_c")
    check_all_batches(ir.compile.lower_program(exported(Writes())).module(), Writes())


@pytest.mark.parametrize("overload", ["maybe_inplace", "donated"])
def test_no_input_of_a_program_is_donated(overload):
    class Raw(torch.nn.Module):
        def forward(self, x, residual):
            op = getattr(torch.ops.vllm_ir.fused_add_rms_norm, overload)
            return op(x, residual, None, 1e-6)

    class Meant(torch.nn.Module):
        def forward(self, x, residual):
            return ir.ops.fused_add_rms_norm(x, residual, None, 1e-6)

    prefer("vllm_c")
    lowered = ir.compile.lower_program(exported(Raw()))
    assert operators_of(lowered, "vllm_ir_C") == {"vllm_ir_C.fused_add_rms_norm_.default"}
    assert [s.kind.name for s in lowered.graph_signature.output_specs] == ["USER_OUTPUT"] * 2
    check_all_batches(lowered.module(), Meant())


def test_a_lowered_program_can_be_exported_further():
    prefer("vllm_c")
    model = seeded(Model)
    lowered = ir.compile.lower_program(exported(model))
    twice = ir.compile.lower_program(lowered)
    assert ir.explain(twice).nodes == []
    check_all_batches(twice.module(), model)
    functional = lowered.run_decompositions()
    assert functional.dialect == "ATEN"
    check_all_batches(functional.module(), model)
    again = exported(lowered.module())
    assert operators_of(again, "vllm_ir_C") == operators_of(lowered, "vllm_ir_C")
    check_all_batches(again.module(), model)


def test_gradients_are_native_s_or_none():
    model, given = seeded(Model), inputs(3)
    program = exported(model)
    prefer("native")
    run = ir.compile.lower_program(program).module()
    run(*given)[0].sum().backward()
    gradient = run.first.weight.grad.clone()
    model.zero_grad()
    model(*given)[0].sum().backward()
    torch.testing.assert_close(gradient, model.first.weight.grad)
    prefer("vllm_c")
    lowered = ir.compile.lower_program(program)
    for result in lowered.module()(*[t.clone().requires_grad_() for t in given]):
        assert not result.requires_grad
    assert all(p.requires_grad for p in program.parameters())
    assert not any(p.requires_grad for p in lowered.parameters())


def test_tied_parameters_stay_tied():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Norm(), Norm()
            self.two.weight = self.one.weight

        def forward(self, x, residual):
            return self.one(x) + self.two(residual)

    prefer("vllm_c")
    state = ir.compile.lower_program(exported(Tied())).state_dict
    assert state["one.weight"] is state["two.weight"]


# ---- what implementations may bring --------------------------------------------------------------


def toy_program(toy, *providers, shape=(3, 4), dynamic=True):
    """Export a call of a toy op; the first dimension is dynamic."""

    class Call(torch.nn.Module):
        def forward(self, x):
            return toy(x, None, 2.0) + 1  # toy call

    toy.set_default(list(providers))
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    return torch.export.export(Call(), (torch.randn(shape),), dynamic_shapes=shapes), Call()


def new_op():
    return ir.register_op(toy_native, name=new_name())


def test_constants_of_an_implementation_become_inputs(tmp_path):
    op = new_op()

    @op.register_impl("tables")
    def tables(
        x: torch.Tensor,
        y: torch.Tensor | None = None,
        scale: float = 1.0,
        n: int | None = None,
        flag: bool = False,
    ) -> torch.Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) * scale

    program, _ = toy_program(op, "tables")
    lowered = ir.compile.lower_program(program)
    assert len(lowered.graph_signature.inputs_to_lifted_tensor_constants) == 1
    path = str(tmp_path / "toy.pt2")
    torch.export.save(lowered, path)
    x = torch.randn(5, 4)
    for run in (lowered.module(), torch.export.load(path).module()):
        torch.testing.assert_close(run(x), x * torch.tensor([1.0, 2.0, 3.0, 4.0]) * 2.0 + 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_d38_other_strides_are_put_right_with_torch_s_own_operators(order):
    op = new_op()

    @op.register_impl("packed")
    def packed(
        x: torch.Tensor,
        y: torch.Tensor | None = None,
        scale: float = 1.0,
        n: int | None = None,
        flag: bool = False,
    ) -> torch.Tensor:
        return (x * scale).permute(1, 2, 0).contiguous().permute(2, 0, 1)

    class Call(torch.nn.Module):
        def forward(self, x):
            return op(x.permute(order), None, 2.0)

    op.set_default(["packed"])
    shapes = ({0: torch.export.Dim("a"), 1: torch.export.Dim("b")},)
    program = torch.export.export(Call(), (torch.randn(3, 4, 5),), dynamic_shapes=shapes)
    lowered = ir.compile.lower_program(program)
    assert operators_of(lowered, "prims") == set()
    (node,) = ir.explain(lowered).nodes
    assert (node.selected, node.notes) == ("packed", ["result 0 was restrided to native's strides"])
    for a, b in ((3, 4), (2, 7), (0, 4)):
        x = torch.randn(a, b, 5)
        result = lowered.module()(x)
        torch.testing.assert_close(result, x.permute(order) * 2.0, check_stride=a != 0)


def test_d38_results_of_bodies_keep_their_place_in_memory():
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    op = ir.register_op(doubled, name=new_name("doubled"))

    @op.register_impl("piece")
    def piece(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x * 2])[x.shape[0] :]

    class Call(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, op, lambda x: x - 1, (x,))

    op.set_default(["piece"])
    lowered = ir.compile.lower_program(torch.export.export(Call(), (torch.ones(3, 4),)))
    assert ir.explain(lowered).selected_impls == {op.name: {op.name: "piece"}}
    for run in (lowered.module(), lowered.run_decompositions().module()):  # torch compares branches
        x = torch.ones(3, 4)
        assert torch.equal(run(x), x * 2)
        assert torch.equal(run(-x), -x - 1)


def test_native_is_lowered_to_plain_operators():
    class Half(torch.nn.Module):
        def forward(self, x):
            return ir.ops.rms_norm(x, None, 1e-6)

    prefer("native")
    lowered = ir.compile.lower_program(torch.export.export(Half(), (torch.ones(3, 4).half(),)))
    found = targets(lowered)
    assert {t.partition(".")[0] for t in found} == {"aten"}
    assert found.count("aten._to_copy.default") == 2


def gaps_program(dynamic: bool):
    def gaps(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], -1)[:, : x.shape[-1]]

    op = ir.register_op(gaps, name=new_name("gaps"))
    op.register_impl("dense")(same_as(toy_dense))
    op.set_default(["dense"])

    class Call(torch.nn.Module):
        def forward(self, x):
            return op(x)  # gaps call

    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    return torch.export.export(Call(), (torch.randn(3, 4),), dynamic_shapes=shapes)


def test_a_result_keeps_its_gaps():
    lowered = ir.compile.lower_program(gaps_program(dynamic=False))
    x = torch.randn(3, 4)
    result = lowered.module()(x)
    assert torch.equal(result, x)
    assert result.stride() == (8, 1)


@pytest.mark.filterwarnings("ignore:Raw SymInt value:UserWarning")
def test_a_result_with_gaps_must_have_a_static_size():
    program = gaps_program(dynamic=True)
    with pytest.raises(ir.IrRuntimeError) as raised:
        ir.compile.lower_program(program)
    (size,) = program.range_constraints
    text = str(raised.value)
    assert text.startswith(
        "vllm_ir.compile: a result with gaps or repeated elements must have static sizes in an "
        f"exported program, got 8*{size} "
    )
    assert text.endswith(
        ". Let native return a tensor of its own. Lowered for\n"
        f"    {_place('gaps call')}: return op(x)  # gaps call"
    )


def toy_dense(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def branching(
    x: torch.Tensor,
    y: torch.Tensor | None = None,
    scale: float = 1.0,
    n: int | None = None,
    flag: bool = False,
) -> torch.Tensor:
    return x * scale if x.shape[0] > 2 else scale * x


def test_an_implementation_may_not_branch_on_a_symbolic_size():
    op = new_op()
    op.register_impl("branching")(branching)
    program, _ = toy_program(op, "branching")
    (x,) = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    guards = list(x.fake_mode.shape_env.guards)
    with raises_exactly(
        ir.IrRuntimeError,
        f"vllm_ir.{op.name}.branching: the implementation must not branch on a symbolic size in an "
        f"exported program, got the guard {x.shape[0]} > 2 == True. Make that size static, or put "
        "another provider first. Lowered for\n"
        f"    {_place('toy call')}: return toy(x, None, 2.0) + 1  # toy call",
    ):
        ir.compile.lower_program(program)
    assert x.fake_mode.shape_env.guards == guards


def test_a_static_size_may_be_branched_on():
    op = new_op()
    op.register_impl("branching")(branching)
    program, call = toy_program(op, "branching", dynamic=False)
    lowered = ir.compile.lower_program(program)
    assert ir.explain(lowered).selected_impls == {op.name: {op.name: "branching"}}
    x = torch.randn(3, 4)
    torch.testing.assert_close(lowered.module()(x), call(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_base_of_an_example_input_says_nothing(dynamic):
    op = new_op()

    @op.register_impl("pieces")
    def pieces(
        x: torch.Tensor,
        y: torch.Tensor | None = None,
        scale: float = 1.0,
        n: int | None = None,
        flag: bool = False,
    ) -> torch.Tensor:
        return torch.stack([x.select(1, i) for i in range(4)], 1) * scale

    class Call(torch.nn.Module):
        def forward(self, x):
            return op(x, None, 2.0)

    op.set_default(["pieces"])
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    view = torch.randn(3, 12)[:, ::3]  # torch makes symbols for the sizes of its base
    program = torch.export.export(Call(), (view,), dynamic_shapes=shapes)
    (fake,) = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    env = fake.fake_mode.shape_env
    assert len(env.var_to_sources) > len(program.range_constraints)
    lowered = ir.compile.lower_program(program)
    assert ir.explain(lowered).selected_impls == {op.name: {op.name: "pieces"}}
    assert env.guards == []
    for x in (view, torch.randn(3, 4), torch.randn(5, 4))[: None if dynamic else 2]:
        torch.testing.assert_close(lowered.module()(x), x * 2.0)


def test_a_torch_that_cannot_refuse_guards_is_watched(monkeypatch):
    op = new_op()
    op.register_impl("branching")(branching)
    program, _ = toy_program(op, "branching")
    (x,) = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    monkeypatch.delattr(ShapeEnv, "error_on_new_guards")
    with raises_exactly(
        ir.IrRuntimeError,
        "vllm_ir.compile: nothing may branch on a symbolic size in an exported program, got the "
        f"guard {x.shape[0]} > 2 from an implementation or a pass. Make that size static, or "
        "choose others.",
    ):
        ir.compile.lower_program(program)


def test_d29_a_predicate_that_branches_has_rejected():
    op = new_op()
    op.register_impl("small", supports_args=lambda x, *rest: x.shape[0] <= 4)(same_as(toy_native))
    program, call = toy_program(op, "small")
    lowered = ir.compile.lower_program(program)
    (node,) = ir.explain(lowered).nodes
    assert node.selected == "native"
    assert {d.provider: d.status for d in node.decisions}["small"] == "rejected"
    for batch in (3, 9):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(lowered.module()(x), call(x))


# ---- cases ---------------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "t": lambda x: x[0].t(),
    "sliced": lambda x: x[:, :, 2:6],
    "strided": lambda x: x[:, :, ::2],
    "expanded": lambda x: x[:1].expand(3, -1, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", [NORM, ADD_NORM], ids=lambda op: op.name)
def test_d38_strides_are_those_of_eager(op, layout):
    class Call(torch.nn.Module):
        def forward(self, x):
            x = LAYOUTS[layout](x)
            given = (x,) if op is NORM else (x, x + 1)
            result = op(*given, None, 1e-6)
            return (result,) if op is NORM else result

    x = torch.randn(3, 4, 8)
    prefer("native")
    expected = Call()(x)
    program = torch.export.export(Call(), (x,))
    outputs = program.graph.output_node().args[0]
    assert [n.meta["val"].stride() for n in outputs] == [t.stride() for t in expected]
    for provider in PROVIDERS:
        prefer(provider)
        lowered = ir.compile.lower_program(program)
        assert operators_of(lowered, "vllm_ir") == set()
        for run in (program.module(), lowered.module()):
            result = run(x)
            torch.testing.assert_close(result, expected)
        # Lowered code promises what the fakes said: what reads it was traced so.
        assert [t.stride() for t in result] == [t.stride() for t in expected]


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight", [None, *DTYPES], ids=str)
def test_d46_the_dtype_is_the_same_in_every_form(dtype, weight):
    class Call(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = None if weight is None else torch.nn.Parameter(torch.ones(8).to(weight))

        def forward(self, x):
            return ir.ops.rms_norm(x, self.weight, 1e-6), *ir.ops.fused_add_rms_norm(
                x, x + 1, self.weight, 1e-6
            )

    model, x = Call(), torch.randn(3, 8).to(dtype)
    program = torch.export.export(model, (x,))
    assert [n.meta["val"].dtype for n in program.graph.output_node().args[0]] == [dtype] * 3
    table = program.run_decompositions(ir.compile.decompositions())
    for provider in PROVIDERS:
        prefer(provider)
        lowered = ir.compile.lower_program(program)
        assert [n.meta["val"].dtype for n in lowered.graph.output_node().args[0]] == [dtype] * 3
        for run in (model, program.module(), lowered.module(), table.module()):
            assert [t.dtype for t in run_without_gradients(run, x)] == [dtype] * 3


# ---- decompositions ------------------------------------------------------------------------------


def test_the_table_holds_every_declared_op():
    op = new_op()
    table = ir.compile.decompositions()
    assert set(table) == {getattr(torch.ops.vllm_ir, n).default for n in ir.IrOp.registry}
    assert table[op.torch_op] is toy_native


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not:UserWarning"
)  # cond
@pytest.mark.parametrize("kind", [Model, Branches])
def test_a_decomposed_program_is_native(kind):
    prefer("vllm_c")
    model = seeded(kind)
    program = exported(model)
    for table in (
        ir.compile.decompositions(),
        {**torch.export.default_decompositions().materialize(), **ir.compile.decompositions()},
    ):
        plain = program.run_decompositions(table)
        assert operators_of(plain, "vllm_ir") | operators_of(plain, "vllm_ir_C") == set()
        for batch in (1, 3):
            result = run_without_gradients(plain.module(), *inputs(batch))
            torch.testing.assert_close(result, run_without_gradients(model, *inputs(batch)))


def test_a_decomposed_program_needs_torch_alone(tmp_path):
    model, path = seeded(Model), str(tmp_path / "model.pt2")
    torch.export.save(exported(model).run_decompositions(ir.compile.decompositions()), path)
    assert _result_in_a_fresh_process(path, ALONE) == _rounded(model)


# ---- errors --------------------------------------------------------------------------------------


def test_only_an_exported_program_can_be_lowered():
    with raises_exactly(
        ir.IrTypeError,
        "vllm_ir.compile.lower_program: program must be a torch.export.ExportedProgram, got Norm. "
        "Make one with torch.export.export(model, args).",
    ):
        ir.compile.lower_program(Norm())


def test_the_configuration_must_be_one():
    with raises_exactly(
        ir.IrTypeError,
        "vllm_ir.compile.lower_program: config must be a vllm_ir.compile.CompileConfig, got dict.",
    ):
        ir.compile.lower_program(exported(AddNorm()), {"fusions": ()})


def test_an_op_that_nobody_declared_is_named():
    name = new_name("stray")
    library = torch.library.Library("vllm_ir", "FRAGMENT")
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, torch.clone, "CompositeExplicitAutograd")

    class Call(torch.nn.Module):
        def forward(self, x):
            return getattr(torch.ops.vllm_ir, name)(x)  # stray call

    program = torch.export.export(Call(), inputs(3)[:1])
    text = (
        f"vllm_ir.{name}: '{name}' calls an op that no module in this process has declared; "
        f"written at\n    {_place('stray call')}: return getattr(torch.ops.vllm_ir, name)(x)  "
        "# stray call\nImport the module that calls vllm_ir.register_op for it first."
    )
    with raises_exactly(ir.IrRuntimeError, text):
        ir.compile.lower_program(program)
    with raises_exactly(ir.IrRuntimeError, text):
        ir.compile.aoti_package(program, path="never_written.pt2")


def test_a_program_that_was_not_lowered_has_no_report():
    with raises_exactly(
        ir.IrValueError,
        "vllm_ir.explain: an exported program must come from lower_program in this process, got "
        "another one. Lower it, or ask an op: op.explain(...).",
    ):
        ir.explain(exported(AddNorm()))


# ---- helpers -------------------------------------------------------------------------------------


def _place(marker: str) -> str:
    path, _, line = line_of(marker, __file__).rpartition(":")
    return f'File "{path}", line {line}, in forward'


def _result_in_a_fresh_process(path: str, head: str) -> list[list[float]]:
    """Run a saved program there, see that its inputs stay, and return its rounded first result."""
    given = Path(path).with_suffix(".inputs")
    torch.save(inputs(5), given)
    script = f"""
        given = torch.load({str(given)!r})
        kept = [t.clone() for t in given]
        run = torch.export.load({path!r}).module()
        result = run(*given)
        assert all(torch.equal(a, b) for a, b in zip(given, kept))
        print(result[0].detach().mul(1000).round().tolist())
    """
    return json.loads(output_of(head + textwrap.dedent(script)).splitlines()[-1])


def _rounded(model) -> list[list[float]]:
    return run_without_gradients(model, *inputs(5))[0].mul(1000).round().tolist()
