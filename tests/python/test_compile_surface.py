# SPDX-License-Identifier: Apache-2.0
"""How `ir.compile` and `ir.explain` may be called, and what they say when that was wrong."""

import copy
import gc
import json
import textwrap

import pytest
import torch
from processes import run_python

import vllm_ir as ir

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

NORM = ir.ops.rms_norm
X = torch.linspace(-1, 1, 64).view(4, 16)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    gc.collect()  # compilations of other tests, which classes here share code with
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class Norm(torch.nn.Module):
    def forward(self, x):
        return NORM(x, None, 1e-6) + 1


class Halved(torch.nn.Module):
    def forward(self, x):
        return NORM(x / 2, None, 1e-6)


class Net(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def rows(subject):
    return len(ir.explain(subject).nodes)


# ---- ir.compile ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"dynamic": True}])
def test_compile_without_a_function_is_a_decorator(options):
    @ir.compile(**options)
    def f(x):
        return NORM(x, None, 1e-6) * 2

    torch.testing.assert_close(f(X), NORM(X, None, 1e-6) * 2)
    assert rows(f) == 1


def test_the_decorator_keeps_our_choices():
    f = ir.compile(fusions=())(lambda x: NORM(x, None, 1e-6))
    f(X)
    (graph,) = ir.explain(f).graphs
    assert graph.fusions == []  # the pass that is on by default would say that nothing matched


@pytest.mark.parametrize("name", ["strict_numerics", "donate_graph_inputs", "fusions"])
def test_an_option_without_our_prefix(name):
    with pytest.raises(ir.UnknownNameError) as error:
        ir.compile(lambda x: x + 1, options={name: True})
    assert str(error.value) == (
        f"vllm_ir.compile: an option of vllm_ir's must have its prefix, got '{name}'. "
        f"Write 'vllm_ir.{name}'."
    )


def test_an_option_without_our_prefix_under_torch_compile():
    f = torch.compile(lambda x: x + 1, backend="vllm_ir", options={"strict_numerics": True})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        f(X)
    assert str(error.value.inner_exception) == (
        "vllm_ir.compile: an option of vllm_ir's must have its prefix, got 'strict_numerics'. "
        "Write 'vllm_ir.strict_numerics'."
    )


UNKNOWN = [
    (
        {"mode": "max-autotun"},
        "vllm_ir.compile: unknown mode 'max-autotun'. Known: default, lite, max-autotune, "
        "max-autotune-no-cudagraphs, reduce-overhead. Did you mean 'max-autotune'?",
    ),
    (
        {"options": {"max_autotun": True}},
        "vllm_ir.compile: unknown option 'max_autotun': neither Inductor nor vllm_ir has it. "
        "Did you mean 'max_autotune'?",
    ),
]


@pytest.mark.parametrize(("options", "text"), UNKNOWN)
def test_what_nobody_knows_is_an_error_before_the_first_call(options, text):
    with pytest.raises(ir.UnknownNameError) as error:
        ir.compile(lambda x: x + 1, **options)
    assert str(error.value) == text


@pytest.mark.parametrize(("options", "text"), UNKNOWN)
def test_what_nobody_knows_under_torch_compile(options, text):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        torch.compile(lambda x: x + 1, backend="vllm_ir", **options)(X)
    assert str(error.value.inner_exception) == text


def test_compile_takes_no_backend():
    with pytest.raises(ir.IrTypeError) as error:
        ir.compile(lambda x: x, backend="inductor")
    assert str(error.value) == (
        "vllm_ir.compile: must be given no backend, since it is one, got 'inductor'. "
        "Use torch.compile(model, backend=...) for another."
    )


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("op", [NORM, ir.ops.fused_add_rms_norm.maybe_inplace])
def test_none_for_a_tensor_is_named_as_in_eager_calls(op, fullgraph):
    arguments = (X.clone(), None, 1e-6) if op is not NORM else (None, 1e-6)

    def f(*args):
        return op(None, *args[1:])

    with pytest.raises(ir.IrTypeError) as eager:
        f(*arguments[:1], *arguments)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError) as compiled:
        ir.compile(f, fullgraph=fullgraph)(*arguments[:1], *arguments)
    assert str(eager.value).endswith(": x must be a Tensor, got None.")
    assert f"IrTypeError('{eager.value}')" in str(compiled.value)


# ---- ir.explain ----------------------------------------------------------------------------------


def test_explain_knows_a_module_compiled_in_place():
    model = Norm()
    model.compile(backend="vllm_ir")
    with pytest.raises(ir.IrValueError, match="Call the compiled function first"):
        ir.explain(model)
    torch.testing.assert_close(model(X), NORM(X, None, 1e-6) + 1)
    assert rows(model) == 1


def test_explain_knows_modules_whose_parts_were_compiled_in_place():
    net, other = Net(Norm(), Norm(), Halved(), torch.nn.Linear(16, 16)), Net(Norm())
    for layer in [*net.layers[:3], *other.layers]:
        layer.compile(backend="vllm_ir")
    net(X)
    assert rows(net) == 2  # equal layers share one graph
    assert rows(net.layers[1]) == 1
    assert rows(net.layers[2]) == 1
    other(X)
    assert rows(other) == 1  # code that was made for another module
    other(X.double())
    assert (rows(other), rows(net)) == (1, 2)  # what each was compiled for


def test_explain_knows_modules_whose_parts_were_compiled_otherwise():
    net = Net(torch.compile(Norm(), backend="vllm_ir"), Halved())
    net.layers[1].forward = ir.compile(net.layers[1].forward)
    net(X)
    assert rows(net) == 2


def test_explain_knows_a_copy_of_a_compiled_module():
    compiled = ir.compile(Norm())
    compiled(X)
    copied = copy.deepcopy(compiled)
    torch.testing.assert_close(copied(X), compiled(X))
    assert rows(copied) == 1
    fresh = copy.deepcopy(ir.compile(Net(Halved(), Norm())))
    fresh(X)
    assert rows(fresh) == 2


def test_explain_refuses_a_module_without_compiled_parts():
    with pytest.raises(ir.IrTypeError) as error:
        ir.explain(Net(Norm()))
    assert str(error.value) == (
        "vllm_ir.explain: needs an op, or what torch.compile(backend='vllm_ir') or "
        "vllm_ir.compile returned, or a module with parts compiled by either or by "
        "module.compile(backend='vllm_ir'), got Net."
    )


def test_explain_tells_of_calls_that_wrap_hid_from_it():
    compiled = ir.compile(lambda x: NORM(NORM(x, None, 1e-6), None, 1e-6) * 3)
    with ir.enable_torch_wrap(False):
        compiled(X)
    report = ir.explain(compiled)
    assert str(report).splitlines()[-1] == (
        "not listed: rms_norm 2. With torch wrap off, these calls were compiled as what the "
        "selected implementations do, and no pass saw them."
    )
    assert report.to_dict()["unwrapped"] == {"rms_norm": 2}
    compiled(X)
    assert rows(compiled) == 2


# ---- the command ---------------------------------------------------------------------------------


def explained(tmp_path, script):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    return path, run_python("-m", "vllm_ir", "explain", "--compiled", str(path))


def test_a_script_that_raises_shows_its_own_frames(tmp_path):
    path, done = explained(
        tmp_path,
        """
        import json
        def parse(text):
            return json.loads(text)
        parse("no")
        """,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    frames = [line.strip() for line in lines if line.startswith("  File ")]
    assert lines[0] == "Traceback (most recent call last):"
    assert frames[:2] == [
        f'File "{path}", line 5, in <module>',
        f'File "{path}", line 4, in parse',
    ]
    assert all(json.__file__.rpartition("/")[0] in frame for frame in frames[2:])
    assert lines[-2].startswith("json.decoder.JSONDecodeError: ")
    assert lines[-1] == (
        f"vllm-ir: error: vllm_ir.explain: the script {path} raised JSONDecodeError; its "
        "traceback is above."
    )


def test_a_script_that_is_no_python(tmp_path):
    path, done = explained(tmp_path, "x = = 1\n")
    assert done.returncode == 2
    assert "runpy" not in done.stderr
    assert done.stderr.splitlines()[0].strip() == f'File "{path}", line 1'
