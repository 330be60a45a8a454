# SPDX-License-Identifier: Apache-2.0
"""AOTInductor packages: what runs in them, in which process, and what they leave alone."""

import os
import shutil

import pytest
import torch
from export_models import BATCHES, AddNorm, Mixed, Norm, Raw, by_batch, inputs, seeded
from processes import output_of, run_python
from torch._inductor.custom_graph_pass import CustomGraphPass
from toys import line_of, new_name, raises_exactly, toy_native

import vllm_ir as ir

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    # torch's own copy of a program's call specifications
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
]

TESTS = os.path.dirname(__file__)
ALONE = "import sys\nsys.modules['vllm_ir'] = None\nimport torch\n"
WITH_KERNELS = "import torch, vllm_ir as ir\n"
RUN = """
runner = torch._inductor.aoti_load_package({path!r})
for given in torch.load({given!r}):
    kept = [t.clone() for t in given]
    results.append(runner(*given))
    assert all(torch.equal(a, b) for a, b in zip(given, kept))
torch.save(results, {results!r})
"""


class Spy(CustomGraphPass):
    """A user's own pass; torch runs a copy of it, so what it saw is kept outside."""

    seen: list[list[str]] = []  # noqa: RUF012

    def __call__(self, graph):
        self.seen.append([str(n.target) for n in graph.nodes if "vllm_ir" in str(n.target)])

    def uuid(self):
        return None


def prefer(provider: str) -> None:
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        op.set_default([provider])


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Compile one model twice: an exported program to native, a module to vllm_c."""
    folder = tmp_path_factory.mktemp("packages")
    paths = {p: str(folder / f"{p}.pt2") for p in ("native", "vllm_c")}
    defaults = {op: op.get_default() for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm)}
    prefer("native")
    program = torch.export.export(seeded(Mixed), inputs(3), dynamic_shapes=by_batch())
    assert ir.compile.aoti_package(program, path=paths["native"]) == paths["native"]
    prefer("vllm_c")
    Spy.seen.clear()
    ir.compile.aoti_package(
        seeded(Mixed),
        inputs(3),
        path=folder / "vllm_c.pt2",
        config=ir.compile.CompileConfig(fusions=()),
        dynamic_shapes=by_batch(),
        options={
            "vllm_ir.strict_numerics": True,
            "post_grad_custom_post_pass": Spy(),
            "aot_inductor.metadata": {"made_by": "a test"},
        },
    )
    for op, default in defaults.items():
        op.set_default(default)
    return paths


def results_in_a_fresh_process(path, head, tmp_path):
    """Run a package there for every batch, and see that its inputs stay as they are."""
    given, results = str(tmp_path / "given.pt"), str(tmp_path / "results.pt")
    torch.save([inputs(batch, seed=batch) for batch in BATCHES], given)
    output_of(head + "results = []" + RUN.format(path=path, given=given, results=results))
    return torch.load(results)


def expected_of(model):
    with torch.no_grad():
        return [model(*inputs(batch, seed=batch)) for batch in BATCHES]


def compiles(test):
    """Mark a test that makes packages: seconds each, with a C++ compiler."""
    missing = shutil.which("g++") is None
    return pytest.mark.slow(pytest.mark.skipif(missing, reason="needs a C++ compiler")(test))


@compiles
@pytest.mark.parametrize(
    ("provider", "head"), [("native", ALONE), ("vllm_c", WITH_KERNELS)], ids=["native", "vllm_c"]
)
def test_a_package_runs_in_a_fresh_process(packages, provider, head, tmp_path):
    results = results_in_a_fresh_process(packages[provider], head, tmp_path)
    prefer(provider)
    for result, expected in zip(results, expected_of(seeded(Mixed)), strict=True):
        torch.testing.assert_close(tuple(result), expected)


@compiles
@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_d38_d46_dtypes_and_strides_are_those_of_eager(packages, provider):
    given = inputs(3)
    prefer("native")
    expected = seeded(Mixed)(*given)
    result = torch._inductor.aoti_load_package(packages[provider])(*given)
    assert [t.dtype for t in result] == [torch.float16, *[torch.float32] * 3]
    assert [t.dtype for t in result] == [t.dtype for t in expected]
    assert [t.stride() for t in result] == [t.stride() for t in expected]


@compiles
def test_a_package_with_kernels_needs_them(packages):
    done = run_python("-c", ALONE + f"torch._inductor.aoti_load_package({packages['vllm_c']!r})")
    assert done.returncode != 0
    assert "Could not find schema for vllm_ir_C::" in done.stderr


@compiles
@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_the_report_is_in_the_package(packages, provider):
    text = output_of(f"import vllm_ir as ir\nprint(ir.explain({packages[provider]!r}))")
    report = ir.explain(packages[provider])
    assert str(report) == text.removesuffix("\n")
    where = [(n.module, n.op, n.selected) for n in report.nodes]
    assert [w for w in where if w[0]] == [
        ("first", "fused_add_rms_norm", provider),
        ("second", "fused_add_rms_norm", provider),
        ("last", "rms_norm", provider),
    ]
    # Of the half input, and of rows that the kernel would have to copy first.
    mine = [(op, selected) for module, op, selected in where if not module]
    assert sorted(mine) == [("rms_norm", "native"), ("rms_norm", provider)]
    kept = [(n.module, c.activation) for n in report.nodes for c in n.clones if c.kept]
    inputs_kept = [("first", "x"), ("first", "x_residual")]
    assert kept == (inputs_kept if provider == "vllm_c" else [])
    assert not any(n.donated for n in report.nodes)


@compiles
def test_a_pass_of_one_s_own_runs_in_front_and_options_arrive(packages):
    (seen,) = Spy.seen
    assert sorted(set(seen)) == ["vllm_ir.fused_add_rms_norm.default", "vllm_ir.rms_norm.default"]
    metadata = torch._inductor.aoti_load_package(packages["vllm_c"]).get_metadata()
    assert metadata["made_by"] == "a test"
    assert [f for g in ir.explain(packages["vllm_c"]).graphs for f in g.fusions] == []


@compiles
@pytest.mark.parametrize("way", ["package", "lowered program"])
def test_no_input_of_a_package_is_overwritten(way, tmp_path):
    prefer("vllm_c")
    path = str(tmp_path / "raw.pt2")
    program = torch.export.export(Raw(), inputs(3))
    if way == "package":
        ir.compile.aoti_package(program, path=path)
    else:
        torch._inductor.aoti_compile_and_package(
            ir.compile.lower_program(program), package_path=path
        )
    given, kept = inputs(3), inputs(3)
    result = torch._inductor.aoti_load_package(path)(*given)
    torch.testing.assert_close(given, kept, rtol=0, atol=0)
    torch.testing.assert_close(tuple(result), ir.ops.fused_add_rms_norm(*kept, None, 1e-6))


def test_an_implementation_may_not_branch_on_a_symbolic_size(tmp_path):
    op = ir.register_op(toy_native, name=new_name())

    @op.register_impl("branching")
    def branching(
        x: torch.Tensor,
        y: torch.Tensor | None = None,
        scale: float = 1.0,
        n: int | None = None,
        flag: bool = False,
    ) -> torch.Tensor:
        return x * scale if x.shape[0] > 2 else scale * x

    class Call(torch.nn.Module):
        def forward(self, x):
            return op(x)  # toy call

    op.set_default(["branching"])
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(Call(), inputs(3)[:1], dynamic_shapes=shapes)
    (size,) = program.range_constraints
    file, _, line = line_of("toy call", __file__).rpartition(":")
    with raises_exactly(
        ir.IrRuntimeError,
        f"vllm_ir.{op.name}.branching: the implementation must not branch on a symbolic size in an "
        f"exported program, got the guard {size} > 2 == True. Make that size static, or put "
        "another provider first. Lowered for\n"
        f'    File "{file}", line {line}, in forward: return op(x)  # toy call',
    ):
        ir.compile.aoti_package(program, path=tmp_path / "never.pt2")
    assert not (tmp_path / "never.pt2").exists()


# ---- errors --------------------------------------------------------------------------------------

WHERE = "vllm_ir.compile.aoti_package"


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (
            ir.IrValueError,
            {"path": "model.so"},
            f"{WHERE}: path must end in .pt2, got 'model.so'. torch takes no other name.",
        ),
        (
            ir.IrTypeError,
            {"path": 3},
            f"{WHERE}: path must be a str or PathLike, got int.",
        ),
        (
            ir.IrTypeError,
            {"config": {}},
            f"{WHERE}: config must be a vllm_ir.compile.CompileConfig, got dict.",
        ),
        (
            ir.IrTypeError,
            {"args": None},
            f"{WHERE}: a module needs example arguments, a tuple, got NoneType. Pass args=(...), "
            "or what torch.export.export returned.",
        ),
        (
            ir.IrTypeError,
            {"program_or_model": print},
            f"{WHERE}: program must be a torch.export.ExportedProgram, got "
            "builtin_function_or_method. Make one with torch.export.export(model, args).",
        ),
        (
            ir.UnknownNameError,
            {"options": {"vllm_ir.strict_number": True}},
            "vllm_ir.compile: unknown option 'strict_number'. Known: donate_graph_inputs, fusions, "
            "strict_numerics. Did you mean 'strict_numerics'?",
        ),
    ],
)
def test_arguments_are_checked_first(kind, given, text):
    arguments = {
        "program_or_model": Norm(),
        "args": inputs(3)[:1],
        "path": "never_written.pt2",
        **given,
    }
    with raises_exactly(kind, text):
        ir.compile.aoti_package(**arguments)
    assert not os.path.exists("never_written.pt2")


def test_a_program_has_arguments_of_its_own():
    program = torch.export.export(AddNorm(), inputs(3))
    with raises_exactly(
        ir.IrTypeError,
        f"{WHERE}: args and dynamic_shapes go with a module, got them with an exported program, "
        "which has its own. Leave them out.",
    ):
        ir.compile.aoti_package(program, inputs(3), path="never_written.pt2")


def test_only_a_package_of_ours_has_a_report(tmp_path):
    missing, other = tmp_path / "missing.pt2", tmp_path / "other.pt2"
    torch.export.save(torch.export.export(AddNorm(), inputs(3)), other)
    head = "vllm_ir.explain: path must be a package that vllm_ir.compile.aoti_package wrote, got "
    for path, reason in (
        (missing, f"[Errno 2] No such file or directory: '{missing}'"),
        (other, "it has no report"),
    ):
        with raises_exactly(ir.IrValueError, f"{head}'{path}' ({reason})."):
            ir.explain(path)
