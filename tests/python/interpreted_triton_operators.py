# SPDX-License-Identifier: Apache-2.0
"""The operators `vllm_ir_triton::*` on what no rule has seen: right results, or clear errors.

`test_triton_interpreted.py` runs this file in a process of its own, with TRITON_INTERPRET=1.
"""

import os

import pytest
import torch
from gated_inputs import GATED
from test_compile_lowering import layouts
from torch._subclasses.fake_tensor import FakeTensorMode

import vllm_ir as ir
from vllm_ir.providers.triton import checks, operators
from vllm_ir.testing import refusal

assert os.environ["TRITON_INTERPRET"] == "1", "run it through test_triton_interpreted.py"

NORM, FUSED = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
T = torch.ops.vllm_ir_triton
X, W = torch.linspace(-1, 1, 256).view(4, 64), torch.linspace(1, 2, 64)
R = X.flip(0)
CALLS = {
    "rms_norm": lambda x: NORM(x, None, 1e-6),
    "residual": lambda x: FUSED(torch.ones(x.shape), x, None, 1e-6),
    "fused": lambda x: FUSED(x, torch.ones(x.shape), None, 1e-6),
    **{str(gated): lambda x, g=gated: g.op(x, *g.more) for gated in GATED},
}
NOT_ROWS = {
    "transposed": "(6, 4, 16) with strides (16, 96, 1)",
    "gaps": "(4, 6, 8) with strides (96, 16, 2)",
    "expanded": "(4, 6, 16) with strides (96, 0, 1)",
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
]


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


class Module(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *args):
        return self.call(*args)


def lowered(call, *args):
    for op in (NORM, FUSED, *{gated.op for gated in GATED}):
        op.set_default(["triton"])
    made = ir.compile.lower_program(torch.export.export(Module(call), args))
    assert {node.selected for node in ir.explain(made).nodes} == {"triton"}
    for op in (NORM, FUSED, *{gated.op for gated in GATED}):
        op.set_default(["native"])
    return made.module()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("layout", layouts())
def test_a_lowered_program_on_another_layout_than_its_example(layout, call):
    x = layouts()[layout]
    program = lowered(CALLS[call], x.contiguous())
    if layout not in NOT_ROWS:
        torch.testing.assert_close(program(x), CALLS[call](x))
        return
    name = "x_residual" if call == "residual" else "x"
    text = (
        f"{name} must be contiguous in its last dimension and have one distance between all rows, "
        f"got shape {NOT_ROWS[layout]}. Call .contiguous() on it."
    )
    op = {"residual": FUSED.name, "fused": FUSED.name}.get(call, call.partition("-")[0])
    with pytest.raises(ir.IrValueError) as error:
        program(x)
    assert str(error.value) == f"vllm_ir.{op}: {text}"


def test_a_lowered_program_on_a_transposed_matrix_and_on_a_weight_with_gaps():
    program = lowered(lambda x, w: NORM(x, w, 1e-6), X, W)
    torch.testing.assert_close(program(X, W), NORM(X, W, 1e-6))
    for args in ((X.t().contiguous().t(), W), (X, W.repeat_interleave(2)[::2])):
        with pytest.raises(ir.IrValueError, match="must be contiguous"):
            program(*args)


def test_rows_that_share_memory_are_read_right():
    program = lowered(lambda x: NORM(x, None, 1e-6), X)
    for stride in (0, 1, 16):
        x = torch.linspace(-1, 1, 256).as_strided((4, 64), (stride, 1))
        torch.testing.assert_close(program(x), NORM(x, None, 1e-6))


ROWS = "must be contiguous in its last dimension and have one distance between all rows, got shape"
WRONG = {
    "scalar": (
        (torch.tensor(1.0), None),
        ir.IrValueError,
        "x must have at least one dimension, got a scalar tensor of shape ().",
    ),
    "float64": (
        (X.double(), None),
        ir.IrTypeError,
        "x.dtype must be float32, float16 or bfloat16, got float64. Use the native provider.",
    ),
    "weight dtype": (
        (X.bfloat16(), W.half()),
        ir.IrTypeError,
        "weight.dtype must be bfloat16 (x.dtype) or float32, got float16. "
        "Cast the weight, or use the native provider.",
    ),
    "half weight": (
        (X, W.half()),
        ir.IrTypeError,
        "weight.dtype must be float32, got float16. Cast the weight, or use the native provider.",
    ),
    "weight device": (
        (X, W.to("meta")),
        ir.IrValueError,
        "weight must be on x's device cpu, got meta.",
    ),
    "short weight": (
        (X, W[:63]),
        ir.IrValueError,
        "weight must have shape (hidden_size,) = (64,), got (63,).",
    ),
    "weight of two dimensions": (
        (X, W[None]),
        ir.IrValueError,
        "weight must have shape (hidden_size,) = (64,), got (1, 64).",
    ),
    "weight with gaps": (
        (X, W.repeat_interleave(2)[::2]),
        ir.IrValueError,
        "weight must be contiguous, got shape (64,) with strides (2,). Call .contiguous() on it.",
    ),
    "transposed": (
        (X.t(), None),
        ir.IrValueError,
        f"x {ROWS} (64, 4) with strides (1, 64). Call .contiguous() on it.",
    ),
}
DECIDED_WITHOUT_SIZES = ("scalar", "float64", "weight dtype", "half weight", "weight device")


def assert_error(call, error, text):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == text


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_of_norms(case):
    (x, weight), error, text = WRONG[case]
    assert_error(lambda: T.rms_norm(x, weight, 1e-6, None), error, f"vllm_ir.rms_norm: {text}")
    assert_error(
        lambda: T.fused_add_rms_norm(x, x.clone(), weight, 1e-6, None),
        error,
        f"vllm_ir.fused_add_rms_norm: {text}",
    )


@pytest.mark.parametrize("case", DECIDED_WITHOUT_SIZES)
def test_fake_tensors_have_the_errors_that_look_at_no_size(case):
    (x, weight), error, text = WRONG[case]
    mode = FakeTensorMode()
    x, weight = mode.from_tensor(x), None if weight is None else mode.from_tensor(weight)
    assert_error(lambda: T.rms_norm(x, weight, 1e-6, None), error, f"vllm_ir.rms_norm: {text}")


@pytest.mark.parametrize("size", [0, -1, 65, 1000])
def test_variance_size_is_within_the_row(size):
    text = f"variance_size must be between 1 and hidden_size = 64, got {size}."
    assert_error(lambda: T.rms_norm(X, W, 1e-6, size), ir.IrValueError, f"vllm_ir.rms_norm: {text}")


@pytest.mark.parametrize(
    ("residual", "error", "text"),
    [
        (R[:2], ir.IrValueError, "x_residual must have x's shape (4, 64), got (2, 64)."),
        (R[0], ir.IrValueError, "x_residual must have x's shape (4, 64), got (64,)."),
        (R.half(), ir.IrTypeError, "x_residual must have x's dtype float32, got float16."),
        (R.to("meta"), ir.IrValueError, "x_residual must be on x's device cpu, got meta."),
        (
            R.t().contiguous().t(),
            ir.IrValueError,
            f"x_residual {ROWS} (4, 64) with strides (1, 4). Call .contiguous() on it.",
        ),
    ],
)
def test_wrong_residual(residual, error, text):
    assert_error(
        lambda: T.fused_add_rms_norm(X, residual, None, 1e-6, None),
        error,
        f"vllm_ir.fused_add_rms_norm: {text}",
    )


@pytest.mark.parametrize(
    ("x", "activation", "error", "text"),
    [
        (
            X,
            "sillu",
            ir.IrValueError,
            "act_and_mul: activation must be 'silu', 'gelu_none' or 'gelu_tanh', got 'sillu'.",
        ),
        (
            X[:, :5],
            "silu",
            ir.IrValueError,
            "silu_and_mul: the last dimension of x must be even (gate, then up), got 5.",
        ),
        (
            X.double(),
            "gelu_tanh",
            ir.IrTypeError,
            "gelu_and_mul: x.dtype must be float32, float16 or bfloat16, got float64. "
            "Use the native provider.",
        ),
        (
            X.t(),
            "gelu_none",
            ir.IrValueError,
            f"gelu_and_mul: x {ROWS} (64, 4) with strides (1, 64). Call .contiguous() on it.",
        ),
    ],
)
def test_wrong_arguments_of_activations(x, activation, error, text):
    assert_error(lambda: T.act_and_mul(x, activation), error, f"vllm_ir.{text}")


def test_a_row_that_is_too_wide(monkeypatch):
    monkeypatch.setattr(checks, "WIDEST", 63)
    text = "the last dimension of x must have at most 63 elements, got 64. Use the native provider."
    assert_error(
        lambda: T.rms_norm(X, None, 1e-6, None), ir.IrValueError, f"vllm_ir.rms_norm: {text}"
    )
    assert_error(lambda: T.act_and_mul(X, "silu"), ir.IrValueError, f"vllm_ir.silu_and_mul: {text}")


def test_a_launch_that_fails(monkeypatch):
    def no_driver(kernel):
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    monkeypatch.setattr(operators, "wrap_triton", no_driver)
    text = (
        "triton's kernel for x, float32 of shape (4, 64) on cpu, was not launched: "
        "0 active drivers ([]). There should only be one. "
        "Use the native provider, or lower to another one."
    )
    for op, call in {
        "rms_norm": lambda: T.rms_norm(X, W, 1e-6, None),
        "fused_add_rms_norm": lambda: T.fused_add_rms_norm(X, R, W, 1e-6, None),
        "gelu_and_mul": lambda: T.act_and_mul(X, "gelu_tanh"),
    }.items():
        assert_error(call, ir.IrRuntimeError, f"vllm_ir.{op}: {text}")


# --- the strides of results, and of compiled arguments

BUFFER = torch.linspace(-1, 1, 2000)
STRIDED = {
    **layouts(),
    **{
        f"{shape} {strides}": BUFFER.as_strided(shape, strides)
        for shape, strides in [
            ((4, 64), (1, 1)),
            ((4, 64), (0, 1)),
            ((4, 64), (16, 1)),
            ((4, 64), (100, 1)),
            ((2, 3, 64), (3, 1, 1)),
            ((4, 1, 64), (64, 1, 1)),
            ((1, 4, 64), (1, 1, 1)),
            ((4, 2), (1, 1)),
        ]
    },
}


def strides_of(results):
    """Return the strides that count: those of more than one index."""
    results = results if isinstance(results, tuple) else (results,)
    return [
        [s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1]
        for t in results
        if t.numel()
    ]


def cases(x):
    """Yield each op with its arguments, residuals of all strides."""
    yield NORM, (x, None, 1e-6)
    yield from ((gated.op, (x, *gated.more)) for gated in GATED)
    yield from ((FUSED, (x, r, None, 1e-6)) for r in STRIDED.values() if r.shape == x.shape)


@pytest.mark.parametrize("layout", STRIDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_not_refused_has_the_strides_of_natives_results(layout, dtype):
    """The fake tensors that stand for results while compiling have native's."""
    x = STRIDED[layout]
    if dtype is torch.bfloat16:  # a cast of the whole keeps no such strides
        x = BUFFER.to(dtype).as_strided(x.shape, x.stride())
    ran = 0
    for op, args in cases(x):
        args = tuple(a.to(dtype) if op is FUSED and a is args[1] else a for a in args)
        if refusal(op, "triton", *args):
            continue
        ran += 1
        with op.set_priority(["triton"]):
            got = op(*args)
        assert strides_of(got) == strides_of(op.impls["native"].impl_fn(*args))
    shared = layout in ("(4, 64) (1, 1)", "(4, 64) (0, 1)", "(4, 64) (16, 1)", "(4, 2) (1, 1)")
    assert bool(ran) == (not shared and layout not in (*NOT_ROWS, *OTHER_SHARED))


OTHER_SHARED = ("(2, 3, 64) (3, 1, 1)", "(1, 4, 64) (1, 1, 1)")


def test_a_compiled_function_takes_rows_that_share_memory_with_torchs_wrap():
    x = BUFFER.as_strided((4, 64), (1, 1))
    for op in (NORM, FUSED):
        op.set_default(["triton", "native"])
    with ir.enable_torch_wrap(True):
        compiled = torch.compile(lambda x: NORM(x, None, 1e-6) + 1)
        torch.testing.assert_close(compiled(x), NORM(x, None, 1e-6) + 1)


def test_a_compiled_function_gets_another_layout_than_its_first():
    for op in (NORM, FUSED):
        op.set_default(["triton", "native"])
    compiled = ir.compile(lambda x: NORM(x, W, 1e-6))
    for x in (X, X.t().contiguous().t(), X[:1].expand(4, 64), X.repeat(1, 2)[:, :64]):
        torch.testing.assert_close(compiled(x), NORM.impls["native"].impl_fn(x, W, 1e-6))
