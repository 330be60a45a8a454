# SPDX-License-Identifier: Apache-2.0
"""Donation in compiled graphs: who may be overwritten, and what using a donated value says."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.utils import fresh_cache

import vllm_ir as ir

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

FUSED = ir.ops.fused_add_rms_norm
W = torch.linspace(1, 2, 16)


@pytest.fixture(autouse=True)
def vllm_c_first():
    torch._dynamo.reset()
    FUSED.set_default(["vllm_c"])
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def inputs(n=2, rows=4):
    torch.manual_seed(0)
    return [torch.randn(rows, 16) for _ in range(n)]


def compiled_result(f, *args, **options):
    """Run compiled on copies; check against eager; return the report and the arguments used."""
    mine = [a.clone() for a in args]
    function = ir.compile(f, fullgraph=True, **options)
    got = function(*mine)
    expected = f(*[a.clone() for a in args])
    torch.testing.assert_close(got, expected)
    return ir.explain(function), mine


def clones(report):
    return [(c.activation, c.kept, c.reason) for n in report.nodes for c in n.clones]


def error_of(f, *args):
    with pytest.raises(BackendCompilerFailed) as error:
        ir.compile(f, fullgraph=True)(*args)
    inner = error.value.inner_exception
    assert isinstance(inner, ir.DonationError)
    return str(inner)


# ---- what is donated -----------------------------------------------------------------------------


def test_a_donated_graph_input_is_overwritten_without_a_copy():
    def f(x, r):
        return FUSED.maybe_inplace(x, r, W, 1e-6)

    x, r = inputs()
    report, (mine, residual) = compiled_result(f, x, r)
    assert clones(report) == [("x", False, "donated"), ("x_residual", False, "donated")]
    assert not torch.equal(mine, x)
    assert not torch.equal(residual, r)
    assert mine._version > 0  # autograd must hear of it


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[:-1], lambda t: t.chunk(2, -1)[1]])
def test_a_value_of_overwritten_memory_is_computed_in_front_of_the_kernel(view):
    def f(x, r):
        y, first = FUSED.maybe_inplace(x, r, W, 1e-6)
        half = first * 0.5
        total = half + y
        y, second = FUSED.maybe_inplace(y, first, W, 1e-6)
        return y, second, view(half), total.exp()

    report, _ = compiled_result(f, *inputs())
    assert [kept for _, kept, _ in clones(report)] == [False] * 4


def normed(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.25)


@pytest.mark.parametrize("end", [normed, lambda c: (normed(c), c), lambda c: c.softmax(-1)])
def test_a_value_is_read_behind_the_kernel_that_made_it(end):
    """Loops of other ranges beside it: Inductor lays out its loops anew, for them to be fused."""

    def f(x, r):
        y, total = FUSED.maybe_inplace(x * 1.0, r + 1.0, W, 1e-6)
        return total + x, y * r, end(x + 3.0)

    compiled_result(f, *inputs())


def test_memory_around_an_input_is_not_donated():
    def f(x, r):
        around = x.as_strided((2, 16), (16, 1), 16)
        return FUSED.maybe_inplace(around, r[:2] * 1.0, W, 1e-6)

    report, (mine, _) = compiled_result(f, *inputs())
    assert list(report.refused.values()) == [
        "'around' may reach beyond graph input 'l_x_' by as_strided"
    ]
    assert torch.equal(mine, inputs()[0])


def test_donate_graph_inputs_off_keeps_them():
    def f(x, r):
        return FUSED.maybe_inplace(x, r, W, 1e-6)

    x, r = inputs()
    report, (mine, residual) = compiled_result(f, x, r, donate_graph_inputs=False)
    assert torch.equal(mine, x)
    assert torch.equal(residual, r)
    assert [kept for _, kept, _ in clones(report)] == [True, True]
    assert list(report.refused.values()) == [
        "graph input 'l_x_' keeps its memory: donate_graph_inputs is off"
    ]


def test_the_default_overload_keeps_graph_inputs():
    def f(x, r):
        return FUSED(x, r, W, 1e-6)

    x, r = inputs()
    report, (mine, residual) = compiled_result(f, x, r)
    assert torch.equal(mine, x)
    assert torch.equal(residual, r)
    assert [kept for _, kept, _ in clones(report)] == [True, True]
    assert clones(report)[0][2] == "'arg0_1' lies in graph input 'arg0_1', which was not donated"


def test_a_view_of_a_graph_input_may_be_donated():
    def f(x, r):
        y, total = FUSED.maybe_inplace(x.view(2, 2, 16), r.view(2, 2, 16), W, 1e-6)
        return y.view(4, 16), total.view(4, 16)

    report, _ = compiled_result(f, *inputs())
    assert [kept for _, kept, _ in clones(report)] == [False, False]


def test_a_chain_keeps_no_copy():
    def f(x, r):
        x, r = x + 1, r * 2
        for _ in range(4):
            x, r = FUSED(x, r, W, 1e-6)
        return x, r

    report, _ = compiled_result(f, *inputs())
    assert len(clones(report)) == 8
    assert not any(kept for _, kept, _ in clones(report))


def test_d19_donated_views_of_one_base_leave_the_rest_alone():
    def f(x, r):
        return FUSED.maybe_inplace(x, r, W, 1e-6)

    base = torch.randn(3, 4, 16)
    before = base.clone()
    eager = f(before[0].clone(), before[1].clone())
    compiled = ir.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(base[0], base[1]), eager)
    assert torch.equal(base[2], before[2])


@pytest.mark.parametrize("later", [False, True])
def test_d19_inputs_that_overlap_are_read_in_time(later):
    """`whole` covers x: it is read before the call, and the compiler doesn't know they are one."""

    def f(whole, x, r):
        doubled = whole * 2
        y, total = FUSED.maybe_inplace(x, r, W, 1e-6)
        return y, total, doubled

    compiled = ir.compile(f, fullgraph=True)
    if later:  # compiled for inputs that are apart, then called with some that are not
        compiled(torch.randn(8, 16), *inputs())
    for _ in range(2):
        whole, (r,) = torch.randn(8, 16), inputs(1)
        expected = f(whole.clone(), whole[:4].clone(), r.clone())
        torch.testing.assert_close(compiled(whole, whole[:4], r), expected)


def test_donated_columns_of_one_matrix():
    def f(x, r):
        return FUSED.maybe_inplace(x, r, W, 1e-6)

    compiled = ir.compile(f, fullgraph=True)
    base = torch.randn(4, 48)
    before = base.clone()
    q, k, v = base.split(16, -1)
    expected = f(q.clone(), k.clone())
    for a, b in zip(compiled(q, k), expected, strict=True):
        torch.testing.assert_close(a, b)
    assert torch.equal(v, before[:, 32:])


def test_an_input_that_must_be_copied_keeps_its_layout():
    """Generated code asserts the strides that it was made for."""

    def f(x, r, whole):
        doubled = whole * 2
        y, total = FUSED.maybe_inplace(x, r, W, 1e-6)
        return y, total, doubled

    compiled = ir.compile(f, fullgraph=True)
    apart = torch.randn(4, 48)
    compiled(apart[:, 16:32], torch.randn(4, 16), torch.randn(4, 48))
    base, r = torch.randn(4, 48), torch.randn(4, 16)
    x = base[:, 16:32]
    expected = f(x.clone(), r.clone(), base.clone())
    torch.testing.assert_close(compiled(x, r, base), expected)


def test_overlapping_inputs_are_not_donated():
    def f(whole, x, r):
        total_before = whole.sum()
        y, total = FUSED.maybe_inplace(x, r, W, 1e-6)
        return y, total, total_before

    whole, (r,) = torch.randn(8, 16), inputs(1)
    compiled = ir.compile(f, fullgraph=True)
    before = whole.clone()
    compiled(whole, whole[:4], r)
    assert torch.equal(whole, before)
    assert list(ir.explain(compiled).refused.values()) == [
        "'x' lies in two graph inputs that share memory, 'l_whole_' and 'l_x_'"
    ]


def test_a_body_of_a_conditional_owns_nothing():
    def f(x, r, q, s):
        def yes(a, b):
            y, total = FUSED(a, b, W, 1e-6)
            return y * 2, total * 2

        def no(a, b):
            return a - 1, b - 1

        u, v = torch.cond(W.sum() > -1e9, yes, no, (q, s))
        y, total = FUSED.maybe_inplace(x, r, W, 1e-6)
        return y, total, u, v, q + 0, s + 0

    args = inputs(4)
    _, mine = compiled_result(f, *args)
    assert torch.equal(mine[2], args[2])
    assert torch.equal(mine[3], args[3])


def test_donating_inside_a_conditional_keeps_its_inputs():
    def f(x, r):
        def yes(a, b):
            y, total = FUSED.maybe_inplace(a + 1, b + 1, W, 1e-6)
            return y * 2, total * 2

        def no(a, b):
            return a - 1, b - 1

        return torch.cond(W.sum() > -1e9, yes, no, (x, r))

    args = inputs()
    _, mine = compiled_result(f, *args)
    assert torch.equal(mine[0], args[0])


@pytest.mark.parametrize("donate", [True, False])
@pytest.mark.parametrize(
    "copy",
    [
        lambda r: r.clone(),
        lambda r: r.to(torch.float32, copy=True),
        lambda r: torch.empty_like(r).copy_(r),
        lambda r: torch.nn.functional.pad(r, (0, 0)),
        lambda r: torch.cat([r]),
        lambda r: r.repeat(1, 1),
        lambda r: torch.zeros(4, 16) + r,
        lambda r: r / torch.ones(()),
    ],
)
def test_a_copy_that_is_donated_is_never_the_original(copy, donate):
    """A compiler takes such copies for needless, and the call would give the original away."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("start", torch.linspace(-1, 1, 64).view(4, 16))

        def forward(self, x):
            y, _ = FUSED.maybe_inplace(x, copy(self.start), W, 1e-6)
            z, _ = FUSED.maybe_inplace(torch.ones(4, 16) * 3, copy(self.start) * 1, W, 1e-6)
            return y, z

    layer, (x,) = Layer(), inputs(1)
    before = layer.start.clone()
    expected = layer(x.clone())
    compiled = ir.compile(layer, fullgraph=True, donate_graph_inputs=donate)
    for _ in range(2):
        torch.testing.assert_close(compiled(x.clone()), expected)
        assert torch.equal(layer.start, before)


def test_a_new_value_beside_a_donated_input_needs_no_copy():
    def f(x, r):
        return FUSED.maybe_inplace(x * 2, r, W, 1e-6)

    report, _ = compiled_result(f, *inputs())
    assert clones(report) == [
        ("x", False, "not used afterwards"),
        ("x_residual", False, "donated"),
    ]


# ---- what may not be used again ------------------------------------------------------------------


def test_d16_direct_reuse_names_everything():
    def f(x, r):
        y, _total = FUSED.maybe_inplace(x, r, W, 1e-6)
        return y + x

    text = error_of(f, *inputs())
    line = f.__code__.co_firstlineno
    assert text == (
        "vllm_ir.fused_add_rms_norm.maybe_inplace: a donated value must not be used again, "
        "got 'x' ('l_x_') donated at\n"
        f'    File "{__file__}", line {line + 1}, in f: '
        "y, _total = FUSED.maybe_inplace(x, r, W, 1e-6)\n"
        "and it is used again at\n"
        f'    File "{__file__}", line {line + 2}, in f: return y + x\n'
        "Call vllm_ir.ops.fused_add_rms_norm(...), which keeps its inputs, or donate x.clone()."
    )


def test_d16_the_default_overload_works():
    def f(x, r):
        y, _total = FUSED(x, r, W, 1e-6)
        return y + x

    compiled_result(f, *inputs())


def test_reuse_by_keyword():
    def f(x, r):
        y, _total = FUSED.maybe_inplace(x_residual=r, x=x, epsilon=1e-6, weight=W)
        return y + r

    assert "got 'x_residual' ('l_r_') donated at" in error_of(f, *inputs())


def test_reuse_through_a_view_that_was_there_before():
    def f(x, r):
        h = x + 1
        flat = h.view(-1)
        y, _total = FUSED.maybe_inplace(h, r, W, 1e-6)
        return y, flat * 2

    assert "got 'x' ('h', seen through 'flat') donated at" in error_of(f, *inputs())


def test_reuse_through_a_view_that_is_made_later():
    def f(x, r):
        h = x + 1
        y, _total = FUSED.maybe_inplace(h, r, W, 1e-6)
        return y, h.view(-1) * 2

    assert "used again" in error_of(f, *inputs())


def test_reuse_of_an_overlapping_sibling():
    def f(x, r):
        h = torch.cat([x, x + 1])
        a, b = h[:4], h[2:6]
        y, _total = FUSED.maybe_inplace(a, r, W, 1e-6)
        return y, b * 2

    assert "seen through" in error_of(f, *inputs())


@pytest.mark.parametrize(
    "split",
    [
        lambda h: h.split(4),
        lambda h: h.chunk(2),
        lambda h: (h[:4], h[4:]),
        lambda h: (h[::2], h[1::2]),
        lambda h: h.view(2, 4, 16).unbind(0),
    ],
)
def test_siblings_that_share_no_element_may_be_used(split):
    def f(x, r):
        a, b = split(torch.cat([x, x + 1]))
        y, total = FUSED.maybe_inplace(a, r, W, 1e-6)
        return y, total, b * 2

    compiled_result(f, *inputs())


def test_columns_of_one_matrix_may_be_used():
    def f(x, r):
        q, k = torch.cat([x, x + 1], -1).split(16, -1)
        y, total = FUSED.maybe_inplace(q, r, W, 1e-6)
        return y, total, k * 2

    compiled_result(f, *inputs())


def test_returning_a_donated_value():
    def f(x, r):
        h = x + 1
        y, _total = FUSED.maybe_inplace(h, r, W, 1e-6)
        return y, h

    assert "and it is returned from the compiled region\n" in error_of(f, *inputs())


def test_donating_twice():
    def f(x, r):
        h = x + 1
        y, total = FUSED.maybe_inplace(h, r, W, 1e-6)
        z, total = FUSED.maybe_inplace(h, total, W, 1e-6)
        return y, z

    assert "used again at" in error_of(f, *inputs())


def test_writing_a_donated_value():
    def f(x, r):
        h = x + 1
        y, _total = FUSED.maybe_inplace(h, r, W, 1e-6)
        h.add_(1)
        return y

    assert "used again at" in error_of(f, *inputs())


def test_one_tensor_as_both_activations():
    def f(x):
        return FUSED.maybe_inplace(x, x, W, 1e-6)

    text = error_of(f, *inputs(1))
    line = f.__code__.co_firstlineno
    assert text == (
        "vllm_ir.fused_add_rms_norm.maybe_inplace: 'x' and 'x_residual' are one tensor ('l_x_') "
        "or overlap, got both donated at\n"
        f'    File "{__file__}", line {line + 1}, in f: '
        "return FUSED.maybe_inplace(x, x, W, 1e-6)\n"
        "Call vllm_ir.ops.fused_add_rms_norm(...), which keeps its inputs, or donate "
        "x_residual.clone()."
    )


def test_reuse_inside_the_body_of_a_conditional():
    def f(x, r):
        def yes(a, b):
            h = a + 1
            y, _total = FUSED.maybe_inplace(h, b + 1, W, 1e-6)
            return y + h

        def no(a, b):
            return a - b

        return torch.cond(W.sum() > -1e9, yes, no, (x, r))

    assert "used again at" in error_of(f, *inputs())


def test_a_value_that_lives_across_a_graph_break_is_returned():
    def f(x, r):
        h = x + 1
        y, _total = FUSED.maybe_inplace(h, r, W, 1e-6)
        torch._dynamo.graph_break()
        return y + h

    with pytest.raises(BackendCompilerFailed, match="returned from the compiled region"):
        ir.compile(f)(*inputs())


# ---- alone in an engine's pipeline ---------------------------------------------------------------


def test_the_pass_alone_rewrites_a_dynamo_graph():
    seen = []

    def backend(gm, _):
        ir.compile.FunctionalizePass()(gm.graph)
        seen.extend(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
        return gm.forward

    def f(x, r):
        return FUSED.maybe_inplace(x, r, W, 1e-6)

    x, r = inputs()
    torch.compile(f, backend=backend, fullgraph=True)(x, r)
    assert "vllm_ir.fused_add_rms_norm.donated" in seen
    assert "vllm_ir.fused_add_rms_norm.maybe_inplace" not in seen


def test_lowering_alone_without_functionalisation():
    """Plain Inductor with the post-grad pass: maybe_inplace goes through torch's own wrapper."""

    def f(x, r):
        y, total = FUSED.maybe_inplace(x + 1, r, W, 1e-6)
        return y * 2, total

    lowering = ir.compile.PostGradPass()
    options = {"post_grad_custom_post_pass": lowering}
    x, r = inputs()
    mine, residual = x.clone(), r.clone()
    with fresh_cache():  # on a hit no pass would run
        got = torch.compile(f, options=options, fullgraph=True)(mine, residual)
    torch.testing.assert_close(got, f(x.clone(), r.clone()))
    assert list(lowering.selected_impls["fused_add_rms_norm"].values()) == ["vllm_c"]
    assert torch.equal(mine, x)
