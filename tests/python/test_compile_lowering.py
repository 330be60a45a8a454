# SPDX-License-Identifier: Apache-2.0
"""Lowering in compiled graphs: choices, contracts, clones, provenance, bad implementations."""

import logging

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from toys import new_name, new_pair, new_toy, pair_native, same_as, toy_native

import vllm_ir as ir
from vllm_ir import rules
from vllm_ir.compile.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

NORM, FUSED = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
X = torch.linspace(-1, 1, 64).view(4, 16)
W = torch.linspace(1, 2, 16)


@pytest.fixture(autouse=True)
def no_gradients():
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled_and_equal(f, *args, **options):
    """Run compiled on copies and compare with eager; the inputs stay as they are."""
    mine = [a.clone() if isinstance(a, Tensor) else a for a in args]
    function = ir.compile(f, fullgraph=True, **options)
    got = function(*mine)
    torch.testing.assert_close(got, f(*args))
    for a, b in zip(mine, args, strict=True):
        assert not isinstance(a, Tensor) or torch.equal(a, b)
    return ir.explain(function)


def error_of(f, *args, kind=Exception, **options):
    with pytest.raises(BackendCompilerFailed) as error:
        ir.compile(f, fullgraph=True, **options)(*args)
    inner = error.value.inner_exception
    assert isinstance(inner, kind)
    return str(inner)


def line(f, offset=0):
    return f.__code__.co_firstlineno + offset


# ---- choices -------------------------------------------------------------------------------------


def test_the_report_has_a_decision_for_every_implementation():
    op = new_toy("first", "second")
    op.register_impl("picky", supports_args=rules.dtype("x", torch.float64))(same_as(toy_native))
    op.register_impl("absent", supported=False, unsupported_reason="no such device")(
        same_as(toy_native)
    )
    op.set_default(["absent", "picky", "first", "native"])
    (node,) = compiled_and_equal(lambda x: op(x), X).nodes
    assert (node.op, node.selected) == (op.name, "first")
    assert {d.provider: str(d) for d in node.decisions} == {
        "picky": 'rejected: x.dtype is float32; needs dtype("x") in {float64}',
        "first": "selected",
        "absent": "unsupported: no such device",
        "native": "unreachable behind first",
        "second": "not in the priority list",
    }


def test_while_compiling_the_platform_prefers_native_and_the_user_wins():
    report = compiled_and_equal(lambda x: NORM(x, W, 1e-6), X)
    assert report.selected_impls == {"rms_norm": {"rms_norm": "native"}}
    with NORM.set_priority(["vllm_c"]):
        report = compiled_and_equal(lambda x: NORM(x, W, 1e-6), X)
    assert report.selected_impls == {"rms_norm": {"rms_norm": "vllm_c"}}


def test_modules_and_lines_are_known():
    class Block(torch.nn.Module):
        def forward(self, x):
            return NORM(x, W, 1e-6) + 1

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    nodes = compiled_and_equal(Net(), X).nodes
    assert [n.module for n in nodes] == ["layers.0", "layers.1"]
    assert all("return NORM(x, W, 1e-6) + 1" in n.source for n in nodes)


def test_a_report_is_data_and_text():
    report = compiled_and_equal(lambda x, r: FUSED(x + 1, r, W, 1e-6), X, X, fusions=())
    (graph,) = report.graphs
    assert ir.compile.GraphReport.from_dict(graph.to_dict()) == graph
    assert str(report).splitlines() == [
        "1 graphs, 1 op calls: native 1; clones: 0 removed, 0 kept",
        "",
        "graph 0 (forward)",
        "  node                module  op                  runs    others"
        "                                                              clones",
        "  fused_add_rms_norm  -       fused_add_rms_norm  native  "
        "triton: not in the priority list; vllm_c: not in the priority list  -",
    ]


def test_decisions_are_logged_at_debug(caplog):
    logger = logging.getLogger("vllm_ir")
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        logger.propagate = True
        compiled_and_equal(lambda x: NORM(x * 3, W, 1e-6), X)
    text = "\n".join(r.getMessage() for r in caplog.records if r.name == logger.name)
    assert "lowered a graph:\n1 graphs, 1 op calls: native 1" in text


def test_explain_refuses_what_it_cant_explain():
    with pytest.raises(ir.IrTypeError) as error:
        ir.explain(3)
    assert str(error.value) == (
        "vllm_ir.explain: needs an op, or what torch.compile(backend='vllm_ir') or "
        "vllm_ir.compile returned, or a module with parts compiled by either or by "
        "module.compile(backend='vllm_ir'), got int."
    )
    with pytest.raises(ir.IrValueError) as error:
        ir.explain(ir.compile(lambda x: x))
    assert str(error.value) == (
        "vllm_ir.explain: nothing was compiled by the backend 'vllm_ir' yet. "
        "Call the compiled function first."
    )


# ---- results -------------------------------------------------------------------------------------


def test_no_op_is_left_and_native_is_one_kernel():
    _, (code,) = run_and_get_code(ir.compile(lambda x: NORM(x, W, 1e-6) * 2 + 1), X)
    assert "vllm_ir" not in code
    body = code[code.index("def call(") :]
    assert sum(s.strip().startswith("cpp_fused") for s in body.splitlines()) == 1


@pytest.mark.parametrize("weight", [W, None])
@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_d14_no_weight(provider, weight):
    for op in (NORM, FUSED):
        op.set_default([provider])
    report = compiled_and_equal(
        lambda x, r: (NORM(x, weight, 1e-6), *FUSED(x, r, weight, 1e-6)), X, X * 2
    )
    assert {n.selected for n in report.nodes} == {provider}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_d46_the_dtype_never_depends_on_the_way(provider, weight_dtype, dtype):
    for op in (NORM, FUSED):
        op.set_default([provider])
    x, w = X.to(dtype), W.to(weight_dtype or dtype)
    compiled = ir.compile(lambda x: (NORM(x, w, 1e-6), *FUSED(x, x + 1, w, 1e-6)), fullgraph=True)
    assert {t.dtype for t in compiled(x)} == {dtype}
    assert {n.selected for n in ir.explain(compiled).nodes} == {provider}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_strict_numerics_gives_eager_s_bits(dtype):
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    w = torch.randn(64, generator=torch.Generator().manual_seed(1)).to(dtype)

    def f(x):
        return NORM(x * 3, w, 1e-6) * x

    with NORM.set_priority(["native"]):
        assert torch.equal(ir.compile(f, strict_numerics=True)(x), f(x)) or dtype is torch.float32
        torch.testing.assert_close(ir.compile(f, strict_numerics=True)(x), f(x))


def layouts():
    base = torch.linspace(-1, 1, 4 * 6 * 16).view(4, 6, 16)
    return {
        "contiguous": base,
        "transposed": base.transpose(0, 1),
        "slice": base[:, ::2],
        "columns": base[..., :8],
        "gaps": base[..., ::2],
        "expanded": base[:, :1].expand(4, 6, 16),
        "one row": base[0, 0],
        "empty": base[:0],
    }


@pytest.mark.parametrize("provider", ["native", "vllm_c"])
@pytest.mark.parametrize("layout", layouts())
def test_d38_strides_are_those_of_eager(layout, provider):
    x = layouts()[layout]
    for op in (NORM, FUSED):
        op.set_default([provider])

    def f(x):
        y = NORM(x, None, 1e-6)
        return y, *FUSED(x, y, None, 1e-6)

    got, expected = ir.compile(f, fullgraph=True)(x), f(x)
    torch.testing.assert_close(got, expected)
    for a, b in zip(got, expected, strict=True):
        if a.numel():
            assert a.stride() == b.stride()


def put_rows(t):
    t[[0, 2]] = 5.0


def put_where(t):
    t[t > 0.5] = 0.25


def put_slice(t):
    t[:, 1:3] = 0.5


def add_slice(t):
    t[1:].add_(1.0)


@pytest.mark.parametrize("provider", ["native", "vllm_c"])
@pytest.mark.parametrize("taken", ["by the caller", "in the graph", "of a new value"])
@pytest.mark.parametrize("write", [put_rows, put_where, put_slice, add_slice])
def test_kernels_get_the_strides_that_their_rules_saw(write, taken, provider):
    """A write into a part makes a value without gaps, which Inductor puts into the part."""
    for op in (NORM, FUSED):
        op.set_default([provider])

    def f(base, r):
        part = base if taken == "by the caller" else base[:, 1:]
        part = part * 2 if taken == "of a new value" else part
        write(part)
        y = NORM(part, None, 1e-6)
        return y, *FUSED(part, r, None, 1e-6), NORM(part[1:], None, 1e-3), part[0] + 1

    mine, theirs = (torch.linspace(-1, 1, 144).view(3, 6, 8) for _ in range(2))
    r = torch.linspace(1, 2, 120).view(3, 5, 8)
    compiled = ir.compile(f, fullgraph=True)
    if taken == "by the caller":
        torch.testing.assert_close(compiled(mine[:, 1:], r), f(theirs[:, 1:], r))
    else:
        torch.testing.assert_close(compiled(mine, r), f(theirs, r))
    assert torch.equal(mine, theirs)
    if write is put_rows and taken == "by the caller":  # other values have gaps in the graph too
        assert provider in {n.selected for n in ir.explain(compiled).nodes}


@pytest.mark.parametrize("shape", [(1, 16), (1, 1, 16), (5, 16), (0, 16)])
@pytest.mark.parametrize("call", [FUSED, FUSED.maybe_inplace])
@pytest.mark.parametrize("source", ["product", "concatenation"])
def test_halves_of_a_split_are_overwritten_where_they_lie(source, call, shape):
    """The stride of a single row means nothing, and is another one in the graph and in code."""
    FUSED.set_default(["vllm_c"])
    wide = torch.linspace(-1, 1, 16 * 32).view(16, 32)

    def f(x, r):
        both = x @ wide if source == "product" else torch.cat([x, r], -1).sin() * 2
        a, b = both.split(16, -1)
        y, total = call(a, b.clone() if source == "product" else r * 3, W, 1e-6)
        return y, total, b + 1

    report = compiled_and_equal(f, torch.randn(shape), torch.randn(shape))
    assert [n.selected for n in report.nodes] == ["vllm_c"]


# ---- in-place implementations --------------------------------------------------------------------


def test_old_values_read_later_are_hoisted():
    FUSED.set_default(["vllm_c"])
    m = torch.randn(16, 16)

    def f(x, r):
        h = x @ m
        s = h.sum(-1)
        y, total = FUSED(h, r + 1, W, 1e-6)
        return y.mean(), s * 2, total.max()

    report = compiled_and_equal(f, X, X)
    assert not any(c.kept for n in report.nodes for c in n.clones)


def test_an_in_place_implementation_in_python():
    op = new_pair("writes")

    def f(x, other):
        a, b = op(x + 1, other + 1, 3.0)
        c, d = op(a, b, 0.5)
        return c, d, op(x, other)

    report = compiled_and_equal(f, X, X * 2)
    assert {n.selected for n in report.nodes} == {"writes"}
    # What torch's operators wrote in place are new values now: nothing has to be protected.
    assert not any(c.kept for n in report.nodes for c in n.clones)


def test_d18_an_alias_of_an_input_is_copied():
    op = ir.register_op(pair_native, name=new_name("pair"), allow_inplace=True)

    @op.register_impl("lazy")
    def lazy(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return x, x_other.view(-1).view(x_other.shape)

    op.set_default(["lazy"])
    x, other = X.clone(), X * 2
    compiled = ir.compile(lambda x, other: op(x, other), fullgraph=True)
    for result in compiled(x, other):
        result.add_(1)
    assert torch.equal(x, X)
    assert torch.equal(other, X * 2)
    (node,) = ir.explain(compiled).nodes
    assert node.notes == [
        "result 0 was copied: it shared memory with an argument",
        "result 1 was copied: it shared memory with an argument",
    ]


def test_another_layout_of_a_result_is_restrided():
    op = new_toy()

    @op.register_impl("columns")
    def columns(
        x: Tensor,
        y: Tensor | None = None,
        scale: float = 1.0,
        n: int | None = None,
        flag: bool = False,
    ) -> Tensor:
        return (x * scale).t().contiguous().t()

    op.set_default(["columns"])
    compiled = ir.compile(lambda x: op(x, scale=2.0).view(-1) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(X), (X * 2).view(-1) + 1)
    assert ir.explain(compiled).nodes[0].notes == ["result 0 was restrided to native's strides"]


# ---- bad implementations -------------------------------------------------------------------------


def bad_toy(body):
    op = new_toy()

    def bad(
        x: Tensor,
        y: Tensor | None = None,
        scale: float = 1.0,
        n: int | None = None,
        flag: bool = False,
    ) -> Tensor:
        return body(x)

    op.register_impl("bad")(bad)
    op.set_default(["bad"])
    return op


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (lambda x: x.double() * 2, "float64[4, 16] on cpu"),
        (lambda x: x[:, :8] * 2, "float32[4, 8] on cpu"),
        (lambda x: x[None] * 2, "float32[1, 4, 16] on cpu"),
    ],
)
def test_a_result_that_breaks_native_s_contract(body, got):
    op = bad_toy(body)

    def f(x):
        return op(x)

    assert error_of(f, X, kind=ir.IrTypeError) == (
        f"vllm_ir.{op.name}.bad: result 0 must be float32[4, 16] on cpu as native's, got {got}. "
        "Mend the implementation. Lowered for\n"
        f'    File "{__file__}", line {line(f, 1)}, in f: return op(x)'
    )


def test_an_implementation_that_writes_what_it_must_not():
    op = bad_toy(lambda x: x.mul_(2))

    def f(x):
        return op(x)

    assert error_of(f, X.clone(), kind=ir.IrRuntimeError) == (
        f"vllm_ir.{op.name}.bad: the implementation modified an argument in place. Work on a copy, "
        "or register it with inplace=True. Lowered for\n"
        f'    File "{__file__}", line {line(f, 1)}, in f: return op(x)'
    )


def test_an_implementation_that_raises():
    def body(x):
        raise LookupError("no such symbol")

    op = bad_toy(body)
    assert error_of(lambda x: op(x), X, kind=ir.IrRuntimeError) == (
        f"vllm_ir.{op.name}.bad: the implementation raised LookupError: no such symbol. Mend it, "
        "or remove 'bad' from the priority list."
    )


def test_an_implementation_may_call_another_op():
    op = bad_toy(lambda x: NORM(x, None, 1e-6))
    NORM.set_default(["vllm_c"])
    compiled = ir.compile(lambda x: op(x), fullgraph=True)
    torch.testing.assert_close(compiled(X), NORM(X, None, 1e-6))
    outer, inner = ir.explain(compiled).nodes
    assert (outer.op, outer.selected, outer.inside) == (op.name, "bad", "")
    assert (inner.op, inner.selected, inner.inside) == ("rms_norm", "vllm_c", f"{op.name}.bad")


def test_an_implementation_that_calls_itself():
    op = bad_toy(lambda x: op(x))
    assert error_of(lambda x: op(x), X, kind=ir.IrRuntimeError) == (
        f"vllm_ir.{op.name}.bad: the implementation calls itself: "
        f"{op.name}.bad -> {op.name}.bad. Call the function that does the work, or put another "
        "provider first for it."
    )


def test_an_op_that_is_left_over_is_an_error():
    graph = make_fx(lambda x: NORM(x * 2, None, 1e-6))(X).graph
    with pytest.raises(ir.IrRuntimeError) as error:
        verify(graph)
    assert str(error.value) == (
        "vllm_ir.rms_norm: 'rms_norm' (default) was not lowered; written at\n"
        "    <unknown line>\n"
        "A pass behind lowering must not make op calls: let it run as a fusion, in front of it."
    )


def test_an_op_declared_after_the_pass_was_made_is_lowered():
    compiled = ir.compile(lambda x: later(x), fullgraph=True)
    later = new_toy("fast")
    later.set_default(["fast"])
    torch.testing.assert_close(compiled(X), toy_native(X))
    assert ir.explain(compiled).nodes[0].selected == "fast"


def test_strict_mode_insists_while_compiling():
    op = new_toy()
    op.register_impl("picky", supports_args=rules.dtype("x", torch.float64))(same_as(toy_native))
    op.set_default(["picky", "native"])
    ir.set_strict(True)
    try:
        text = error_of(lambda x: op(x), X, kind=ir.IrRuntimeError)
    finally:
        ir.set_strict(False)
    assert text == (
        f"vllm_ir.{op.name}.picky: strict mode: the provider was asked for and would not run.\n"
        f"vllm_ir.{op.name}: native runs\n"
        '  picky   rejected: x.dtype is float32; needs dtype("x") in {float64}\n'
        "  native  selected"
    )


# ---- dynamic shapes ------------------------------------------------------------------------------


def dynamic_rows(rows):
    x = torch.linspace(-1, 1, rows * 16).view(rows, 16) if rows else torch.empty(0, 16)
    torch._dynamo.mark_dynamic(x, 0)
    return x


@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_d29_a_dynamic_batch_compiles_once(provider):
    for op in (NORM, FUSED):
        op.set_default([provider])

    def f(x):
        y = NORM(x, W, 1e-6)
        return FUSED(y * 2, x + 1, W, 1e-6)

    counter = CompileCounterWithBackend(ir.compile.Backend())
    compiled = torch.compile(f, backend=counter, fullgraph=True)
    for rows in (8, 300, 301, 17, 5000):
        x = dynamic_rows(rows)
        torch.testing.assert_close(compiled(x), f(x))
    assert counter.frame_count == 1


@pytest.mark.parametrize("provider", ["native", "vllm_c"])
def test_no_rows(provider):
    for op in (NORM, FUSED):
        op.set_default([provider])
    compiled = ir.compile(lambda x: FUSED(NORM(x, W, 1e-6), x + 1, W, 1e-6), fullgraph=True)
    for rows in (4, 0, 1, 9):
        x = torch.ones(rows, 16)
        assert [t.shape for t in compiled(x)] == [(rows, 16)] * 2


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        (lambda n: n > 256, "supports_args returned SymBool, not a bool"),
        (lambda n: bool(n > 256), "Guard attempted while ShapeEnv guards are frozen"),
    ],
)
def test_d29_a_predicate_that_looks_at_the_batch_is_rejected(predicate, reason, caplog):
    op = new_toy()

    def small(
        x: Tensor,
        y: Tensor | None = None,
        scale: float = 1.0,
        n: int | None = None,
        flag: bool = False,
    ) -> bool:
        return predicate(x.shape[0])

    op.register_impl("small", supports_args=small)(same_as(toy_native))
    op.set_default(["small", "native"])
    counter = CompileCounterWithBackend(ir.compile.Backend())
    compiled = torch.compile(lambda x: op(x), backend=counter, fullgraph=True)
    for rows in (8, 300, 301, 17):
        compiled(dynamic_rows(rows))
    assert counter.frame_count == 1
    (node,) = ir.explain(compiled).nodes
    decisions = {d.provider: str(d) for d in node.decisions}
    assert decisions["native"] == "selected"
    assert reason in decisions["small"]


def test_a_symbolic_integer_is_an_argument():
    def f(x):
        return NORM(x, None, 1e-6, x.shape[1] // 2)

    compiled = ir.compile(f, fullgraph=True, dynamic=True)
    for width in (16, 24):
        x = torch.linspace(-1, 1, 4 * width).view(4, width)
        torch.testing.assert_close(compiled(x), f(x))


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [FUSED, FUSED.maybe_inplace])
def test_compiled_training_has_native_s_gradients(call):
    FUSED.set_default(["vllm_c"])

    def f(x, r, w, call=call):
        y, total = call(x * 1, r * 1, w, 1e-6)
        return (y.sin() * total).sum()

    with torch.enable_grad():
        mine = [t.clone().requires_grad_() for t in (X, X * 2, W)]
        theirs = [t.clone().requires_grad_() for t in (X, X * 2, W)]
        compiled = ir.compile(f, fullgraph=True)
        compiled(*mine).backward()
        f(*theirs, call=FUSED.impls["native"].impl_fn).backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    graph = ir.explain(compiled).graphs[0]
    assert graph.kind == "autograd"
    assert graph.nodes[0].selected == "native"
    assert "a gradient is needed" in graph.nodes[0].decisions[1].reason


def test_a_part_without_gradient_in_a_training_graph():
    FUSED.set_default(["vllm_c"])

    def f(x, r, q):
        y, _ = FUSED.maybe_inplace(x + 1, r + 1, W, 1e-6)
        return (q.sin() * y).sum()

    with torch.enable_grad():
        q, p = X.clone().requires_grad_(), X.clone().requires_grad_()
        compiled = ir.compile(f, fullgraph=True)
        compiled(X, X * 2, q).backward()
        f(X, X * 2, p).backward()
    torch.testing.assert_close(q.grad, p.grad)
    assert [n.selected for n in ir.explain(compiled).nodes] == ["vllm_c"]


def test_checkpointing():
    FUSED.set_default(["vllm_c"])

    def block(x, r):
        y, total = FUSED.maybe_inplace(x * 2, r * 2, W, 1e-6)
        return y.sin() * total

    def f(x, r):
        return torch.utils.checkpoint.checkpoint(block, x, r, use_reentrant=False).sum()

    with torch.enable_grad():
        mine, theirs = ([t.clone().requires_grad_() for t in (X, X * 2)] for _ in range(2))
        ir.compile(f, fullgraph=True)(*mine).backward()
        f(*theirs).backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


# ---- the public function -------------------------------------------------------------------------


def test_mode_options_and_the_user_s_own_pass_are_honoured():
    seen = []

    def mine(graph):
        seen.append([str(n.target) for n in graph.nodes if n.op == "call_function"])

    compiled = torch.compile(
        lambda x: NORM(x, None, 1e-6) + 1,
        backend="vllm_ir",
        options={"post_grad_custom_post_pass": mine, "vllm_ir.strict_numerics": True},
    )
    torch.testing.assert_close(compiled(X), NORM(X, None, 1e-6) + 1)
    assert any("vllm_ir.rms_norm.default" in calls for calls in seen)  # in front of ours
    tuned = torch.compile(lambda x: NORM(x, None, 1e-6), backend="vllm_ir", mode="max-autotune")
    torch.testing.assert_close(tuned(X), NORM(X, None, 1e-6))


def test_bad_choices():
    with pytest.raises(ir.IrTypeError) as error:
        ir.compile(lambda x: x, strict_numerics=1)
    assert str(error.value) == "vllm_ir.compile: strict_numerics must be a bool, got int."
    with pytest.raises(ir.IrTypeError) as error:
        ir.compile(lambda x: x, fusions="add_rms_norm")
    assert str(error.value) == "vllm_ir.compile: fusions must be a list of names, got str."
    with pytest.raises(ir.IrTypeError) as error:
        ir.compile(lambda x: x, fusions=5)
    assert str(error.value) == "vllm_ir.compile: fusions must be a list of names, got int."
    options = {"vllm_ir.strict": True}
    with pytest.raises(BackendCompilerFailed) as failed:
        torch.compile(lambda x: NORM(x, None, 1e-6), backend="vllm_ir", options=options)(X)
    assert isinstance(failed.value.inner_exception, ir.UnknownNameError)
    assert str(failed.value.inner_exception) == (
        "vllm_ir.compile: unknown option 'strict'. Known: donate_graph_inputs, fusions, "
        "strict_numerics. Did you mean 'strict_numerics'?"
    )
