# SPDX-License-Identifier: Apache-2.0
"""The pass `add_rms_norm`: what it fuses, what it must leave, and that values stay the same."""

import pytest
import torch
from fusion_graphs import Fused
from torch import Tensor

import vllm_ir as ir
from vllm_ir.compile import CompileConfig

ALONE = CompileConfig(fusions=("add_rms_norm",))
STRICT = CompileConfig(fusions=("add_rms_norm",), strict_numerics=True)
ADD = torch.ops.aten.add.Tensor


@pytest.fixture(autouse=True)
def native_alone():
    """Providers add up in an order of their own; the fused op's needn't be that of the norm's."""
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        op.set_default(["native"])


def sample(dtype: torch.dtype = torch.float32, rows: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((rows, 16), (rows, 16), (16,))
    x, r, w = (torch.randn(s, dtype=torch.float32).to(dtype) for s in shapes)
    return x, r, w


def equal(got, want) -> bool:
    return all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-5, 0.25, 3])
@pytest.mark.parametrize("variance_size", [None, 1, 8, 16])
@pytest.mark.parametrize("with_weight", [True, False])
def test_a_float32_sum_and_its_norm_are_fused_to_the_same_bits(epsilon, variance_size, with_weight):
    def layer(x, r, w):
        s = x + r
        return ir.ops.rms_norm(s, w if with_weight else None, epsilon, variance_size), s

    args = sample()
    fused = Fused(layer, *args, config=ALONE)
    assert fused.ops == ["fused_add_rms_norm"]
    assert fused.call("fused_add_rms_norm").args[3:] == (epsilon, variance_size)
    assert not fused.calls(ADD)
    assert equal(fused(*args), layer(*args))


def test_each_layer_of_a_chain_is_fused_with_its_own_epsilon():
    def model(x, r, w):
        for epsilon in (1e-6, 1e-5, 1e-4):
            r = torch.relu(x) + r
            x = ir.ops.rms_norm(r, w, epsilon)
        return x, r

    args = sample()
    fused = Fused(model, *args, config=ALONE)
    assert fused.ops == ["fused_add_rms_norm"] * 3
    found = fused.calls(torch.ops.vllm_ir.fused_add_rms_norm.default)
    assert [n.args[3] for n in found] == [1e-6, 1e-5, 1e-4]
    assert {n.args[2] for n in found} == {found[0].args[2]}  # one weight for all
    assert equal(fused(*args), model(*args))
    assert fused.said == [
        "add_rms_norm at rms_norm: 'add' and 'rms_norm' became 'fused_add_rms_norm'",
        "add_rms_norm at rms_norm_1: 'add_1' and 'rms_norm_1' became 'fused_add_rms_norm_1'",
        "add_rms_norm at rms_norm_2: 'add_2' and 'rms_norm_2' became 'fused_add_rms_norm_2'",
    ]


def test_the_sum_may_have_other_readers():
    def layer(x, r, w):
        s = x + r
        early = s * 2
        y = ir.ops.rms_norm(s, w, 1e-6)
        return y, early, s.view(-1), torch.relu(s)

    args = sample()
    fused = Fused(layer, *args, config=ALONE)
    assert fused.ops == ["fused_add_rms_norm"]
    assert equal(fused(*args), layer(*args))


def test_two_norms_of_one_sum_share_the_fused_one():
    def layer(x, r, w):
        s = x + r
        return ir.ops.rms_norm(s, w, 1e-6), ir.ops.rms_norm(s, None, 1e-5)

    args = sample()
    fused = Fused(layer, *args, config=ALONE)
    assert fused.ops == ["fused_add_rms_norm", "rms_norm"]
    assert equal(fused(*args), layer(*args))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_fused_unless_numerics_are_strict(dtype):
    def layer(x, r, w):
        s = x + r
        return ir.ops.rms_norm(s, w, 1e-6), s

    args = sample(dtype)
    name = str(dtype).removeprefix("torch.")
    fused = Fused(layer, *args, config=ALONE)
    assert fused.ops == ["fused_add_rms_norm"]
    assert equal(fused(*args), ir.ops.fused_add_rms_norm(*args, 1e-6))
    assert torch.equal(fused(*args)[1], args[0] + args[1])

    apart = Fused(layer, *args, config=STRICT)
    assert apart.ops == ["rms_norm"]
    assert equal(apart(*args), layer(*args))
    assert apart.said == [
        f"add_rms_norm at rms_norm: not fused: strict_numerics: the addition rounds the sum to "
        f"{name} before the norm reads it, the fused op doesn't"
    ]


def test_strict_numerics_leaves_float32_fused():
    assert Fused(norm_of_sum, *sample(), config=STRICT).ops == ["fused_add_rms_norm"]


def norm_of_sum(x, r, w):
    return ir.ops.rms_norm(x + r, w, 1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x, r, w: (x.double(), r.double(), w), "the sum is float64, and the fused op adds "
         "in float32"),
        (lambda x, r, w: (x, r.bfloat16(), w), "the addends are float32 and bfloat16"),
        (lambda x, r, w: (x, r[:1], w), "the addition broadcasts [4, 16] and [1, 16]"),
        (lambda x, r, w: (x, r[0], w), "the addition broadcasts [4, 16] and [16]"),
    ],
)  # fmt: skip
def test_what_the_fused_op_would_do_otherwise_is_left_with_a_reason(change, reason):
    args = change(*sample())
    fused = Fused(norm_of_sum, *args, config=ALONE)
    assert fused.said == [f"add_rms_norm at rms_norm: not fused: {reason}"]
    assert fused.ops == ["rms_norm"]
    assert torch.equal(fused(*args), norm_of_sum(*args))


def test_a_number_is_not_a_residual():
    fused = Fused(lambda x: ir.ops.rms_norm(x + 1, None, 1e-6), sample()[0], config=ALONE)
    assert fused.said == ["add_rms_norm at rms_norm: not fused: a number is added, not a residual"]


def test_a_scaled_addition_is_left():
    def layer(x, r, w):
        return ir.ops.rms_norm(torch.add(x, r, alpha=2), w, 1e-6)

    args = sample()
    fused = Fused(layer, *args, config=ALONE)
    assert fused.said == [
        "add_rms_norm at rms_norm: not fused: 'add' has alpha=2, which isn't in the pattern"
    ]
    assert torch.equal(fused(*args), layer(*args))


def test_a_weight_computed_from_the_sum_would_close_a_circle():
    def layer(x, r, w):
        s = x + r
        return ir.ops.rms_norm(s, w * s[0], 1e-6)

    args = sample()
    fused = Fused(layer, *args, config=ALONE)
    assert fused.ops == ["rms_norm"]
    assert fused.said == [
        "add_rms_norm at rms_norm: not fused: its argument 'mul' is computed from what would be "
        "replaced"
    ]
    assert torch.equal(fused(*args), layer(*args))


def test_readers_of_the_sum_step_behind_a_late_weight():
    def layer(x, r, w):
        s = x + r
        early = torch.relu(s)
        late = w + 1
        return ir.ops.rms_norm(s, late, 1e-6), early * 2

    args = sample()
    fused = Fused(layer, *args, config=ALONE)
    assert fused.ops == ["fused_add_rms_norm"]
    assert equal(fused(*args), layer(*args))


def test_an_addition_inside_a_matrix_product_is_taken_out_again():
    def layer(x, r, w):
        h = torch.addmm(r, x, w)
        return ir.ops.rms_norm(h, None, 1e-6), h

    x, r, _ = sample()
    w = torch.randn(16, 16)
    fused = Fused(layer, x, r, w, config=ALONE)
    assert fused.ops == ["fused_add_rms_norm"]
    assert len(fused.calls(torch.ops.aten.mm.default)) == 1
    for got, want in zip(fused(x, r, w), layer(x, r, w), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("bias", "options", "reason"),
    [
        (torch.ones(16), {}, "the addition broadcasts [4, 16] and [16]"),
        (torch.ones(4, 16), {"beta": 2}, "'addmm' has beta=2, which isn't in the pattern"),
    ],
)
def test_other_matrix_products_stay(bias, options, reason):
    def layer(x, r, w):
        return ir.ops.rms_norm(torch.addmm(r, x, w, **options), None, 1e-6)

    fused = Fused(layer, sample()[0], bias, torch.ones(16, 16), config=ALONE)
    assert fused.said == [f"add_rms_norm at rms_norm: not fused: {reason}"]


def test_a_symbolic_batch_adds_no_guard():
    def layer(x, r, w):
        s = x + r
        return ir.ops.rms_norm(s, w, 1e-6), s

    args = sample()
    fused = Fused(layer, *args, config=ALONE, symbolic=True)
    assert fused.ops == ["fused_add_rms_norm"]
    for rows in (4, 5, 9):
        other = sample(rows=rows)
        assert equal(fused(*other), layer(*other))


def test_views_of_the_sum_are_views_of_the_new_one():
    """Alias analysis asks fake values: a view must lie in the memory of what it is a view of."""

    def layer(x, r, w):
        s = x + r
        a, b = s.split(8, -1)
        return ir.ops.rms_norm(s, w, 1e-6), a * 2, b.t()

    fused = Fused(layer, *sample(), config=ALONE)
    total = next(iter(fused.calls(torch.ops.aten.split.Tensor))).args[0]
    memory = total.meta["val"].untyped_storage()._cdata
    split = fused.calls(torch.ops.aten.split.Tensor)[0]
    views = list(split.meta["val"])
    views += [n.meta["val"] for n in split.users]
    views += [n.meta["val"] for n in fused.calls(torch.ops.aten.t.default)]
    assert len(views) == 5
    assert {v.untyped_storage()._cdata for v in views} == {memory}


def test_strides_of_the_sum_are_kept():
    def layer(x, r):
        s = x.t() + r.t()
        return ir.ops.rms_norm(s, None, 1e-6), s

    args = torch.randn(16, 4), torch.randn(16, 4)
    fused = Fused(layer, *args, config=ALONE)
    assert fused.ops == ["fused_add_rms_norm"]
    for got, want in zip(fused(*args), layer(*args), strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()


def test_a_norm_without_a_sum_is_no_near_miss():
    fused = Fused(lambda x: ir.ops.rms_norm(x, None, 1e-6), sample()[0], config=ALONE)
    assert fused.said == ["add_rms_norm: no match"]


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    ("norm", "fused", "fuses"),
    [
        ([], ["vllm_c"], True),
        (["vllm_c"], ["vllm_c"], True),
        (["vllm_c"], [], False),
        (["native"], ["vllm_c"], True),
    ],
)
def test_a_provider_that_was_asked_for_is_not_passed_over(norm, fused, fuses):
    def f(x, r, w):
        total = x + r
        return ir.ops.rms_norm(total, w, 1e-6), total

    ir.ops.rms_norm.set_default(norm)
    ir.ops.fused_add_rms_norm.set_default(fused)
    torch._dynamo.reset()
    compiled = ir.compile(f, fullgraph=True)
    x, w = torch.randn(4, 16), torch.ones(16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, x * 2, w), f(x, x * 2, w))
    report = ir.explain(compiled)
    assert [n.op for n in report.nodes] == ["fused_add_rms_norm" if fuses else "rms_norm"]
    if not fuses:
        (row,) = report.graphs[0].fusions
        assert (
            row.reason == "'vllm_c' comes first for rms_norm, and 'native' for fused_add_rms_norm"
        )
