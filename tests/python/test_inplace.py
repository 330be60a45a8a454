# SPDX-License-Identifier: Apache-2.0
"""Who may write what: the default overload nothing, maybe_inplace what is donated."""

import contextlib

import pytest
import torch
from torch import Tensor
from toys import new_name, new_pair, pair_inplace, pair_native, raises_exactly, runs, same_as

import vllm_ir as ir

FUSED = ir.ops.fused_add_rms_norm


def bytes_of(t):
    """All of the memory behind a tensor, not only what it shows."""
    storage = t.untyped_storage()
    return bytes(torch.empty(0, dtype=torch.uint8).set_(storage).tolist())


def routes(overload):
    """Return the fast path and torch's operator."""
    return [overload, overload.torch_op]


def native_of(op, *args):
    return op.impls["native"].impl_fn(*[a.clone() if torch.is_tensor(a) else a for a in args])


def assert_results(got, expected):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


# ---- the default overload ------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 8),
    "padded rows": lambda: torch.randn(4, 16)[:, 2:10],
    "view with an offset": lambda: torch.randn(33)[1:].view(4, 8),
    "transposed": lambda: torch.randn(8, 4).t(),
    "expanded": lambda: torch.randn(1, 8).expand(4, 8),
    "one row": lambda: torch.randn(8),
    "no rows": lambda: torch.randn(0, 8),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_d17_the_default_overload_keeps_every_byte_of_its_inputs(layout):
    x, residual, w = LAYOUTS[layout](), LAYOUTS[layout](), torch.randn(8)
    expected = native_of(FUSED, x, residual, w, 1e-6)
    for call in routes(FUSED):
        before = [bytes_of(t) for t in (x, residual, w)]
        versions = [t._version for t in (x, residual, w)]
        with FUSED.set_priority(["vllm_c", "native"]):
            got = call(x, residual, w, 1e-6)
        assert [bytes_of(t) for t in (x, residual, w)] == before
        assert [t._version for t in (x, residual, w)] == versions
        assert_results(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_d17_in_every_dtype_and_with_every_provider(dtype):
    x, residual = torch.randn(4, 8).to(dtype), torch.randn(4, 8).to(dtype)
    for provider in FUSED.supported_providers():
        before = bytes_of(x), bytes_of(residual)
        with FUSED.set_priority([provider, "native"]):
            norm, total = FUSED(x, residual, None, 1e-6)
        assert (bytes_of(x), bytes_of(residual)) == before
        for result in (norm, total):
            assert result.dtype == dtype
            for t in (x, residual):
                assert not torch._C._is_alias_of(result, t)
        assert not torch._C._is_alias_of(norm, total)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_python_in_place_impl_runs_on_copies(layout):
    op = new_pair("fast")
    x, other = LAYOUTS[layout](), LAYOUTS[layout]()
    for call in routes(op):
        before = bytes_of(x), bytes_of(other)
        with runs(op, fast=1):
            got = call(x, other, 2.0)
        assert (bytes_of(x), bytes_of(other)) == before
        assert_results(got, pair_native(x, other, 2.0))


def test_the_impl_gets_the_copies_and_the_caller_s_other_arguments():
    def native(x: Tensor, w: Tensor, scale: float) -> Tensor:
        return x * w * scale

    seen = []

    def inplace(x: Tensor, w: Tensor, scale: float) -> Tensor:
        seen.append((x, w, scale))
        return x.mul_(w).mul_(scale)

    op = ir.register_op(native, name=new_name(), allow_inplace=True)
    op.register_impl("fast", inplace=True)(inplace)
    op.set_default(["fast"])
    x, w, scale = torch.ones(3), torch.full((3,), 2.0), float("3")
    with runs(op, fast=1):
        result = op(x, w, scale)
    ((got_x, got_w, got_scale),) = seen
    assert got_x is not x
    assert got_w is w
    assert got_scale is scale
    assert result.tolist() == [6.0] * 3
    with runs(op, fast=1):
        assert op.maybe_inplace(x, w, scale) is x
    assert seen[1][0] is x


def test_one_tensor_given_twice_is_copied_twice():
    op = new_pair("fast")
    x = torch.ones(3)
    for call in routes(op):
        with runs(op, fast=1):
            scaled, total = call(x, x, 2.0)
        assert (scaled.tolist(), total.tolist()) == ([4.0] * 3, [2.0] * 3)
        assert x.tolist() == [1.0] * 3
    with FUSED.set_priority(["vllm_c", "native"]):
        y = torch.randn(4, 8)
        assert_results(FUSED(y, y, None, 1e-6), native_of(FUSED, y, y, None, 1e-6))


def test_an_optional_activation_that_is_none():
    def native(x: Tensor | None, x_other: Tensor) -> tuple[Tensor, Tensor]:
        return x_other + 1, x_other + 2

    def inplace(x: Tensor | None, x_other: Tensor) -> tuple[Tensor, Tensor]:
        assert x is None
        return x_other + 1, x_other.add_(2)

    op = ir.register_op(native, name=new_name(), activations=["x", "x_other"], allow_inplace=True)
    op.register_impl("fast", inplace=True)(inplace)
    op.set_default(["fast"])
    other = torch.zeros(2)
    for call in routes(op):
        with runs(op, fast=1):
            assert [t.tolist() for t in call(None, other)] == [[1.0] * 2, [2.0] * 2]
        assert other.tolist() == [0.0] * 2
    with runs(op, fast=1):
        op.maybe_inplace(None, donated := torch.zeros(2))
    assert donated.tolist() == [2.0] * 2


def test_an_in_place_impl_that_fails_half_way_leaves_the_inputs_alone():
    op = new_pair()

    @op.register_impl("fails", inplace=True)
    def fails(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        x.zero_()
        raise RuntimeError("half way")

    op.set_default(["fails"])
    x = torch.ones(3)
    for call in routes(op):
        with pytest.raises(RuntimeError, match="half way"):
            call(x, x)
        assert x.tolist() == [1.0] * 3


# ---- results that are aliases (D18) --------------------------------------------------------------

ALIASES = {
    "itself": lambda x: x,
    "view": lambda x: x.view(-1),
    "slice": lambda x: x[1:],
    "transposed": lambda x: x.t() if x.dim() == 2 else x.unsqueeze(0),
    "detached": lambda x: x.detach(),
    "expanded": lambda x: x.expand(2, *x.shape),
}


def alias_op(kind, provider="alias"):
    def native(x: Tensor, w: Tensor | None = None) -> Tensor:
        return ALIASES[kind](x).clone()

    def alias(x: Tensor, w: Tensor | None = None) -> Tensor:
        return ALIASES[kind](x if w is None else w)

    op = ir.register_op(native, name=new_name(), allow_inplace=True)
    op.register_impl(provider)(alias)
    op.set_default([provider])
    return op


@pytest.mark.parametrize("kind", ALIASES)
def test_d18_an_alias_of_an_input_is_copied_with_one_notice(kind, caplog):
    op = alias_op(kind)
    x = torch.arange(4.0)
    expected = ALIASES[kind](x).clone()
    for call in [*routes(op), *routes(op)]:
        with runs(op, alias=1):
            out = call(x)
        assert torch.equal(out, expected)
        out.add_(1)
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert caplog.messages == [
        f"vllm_ir.{op.name}.alias: a result shares memory with 'x', so it was copied. "
        "Return a new tensor, or register the implementation with inplace=True."
    ]


def test_d18_the_notice_names_the_parameter(caplog):
    op = alias_op("itself")
    x, w = torch.zeros(2), torch.ones(2)
    for call in routes(op):
        call(x, w).add_(5)
        assert w.tolist() == [1.0, 1.0]
    assert len(caplog.messages) == 1
    assert "shares memory with 'w'" in caplog.messages[0]


def test_d18_a_native_that_returns_its_input_is_copied_in_silence(caplog):
    def native(x: Tensor) -> Tensor:
        return x.to(torch.float32)

    op = ir.register_op(native, name=new_name())
    op.set_default(["native"])
    x = torch.zeros(2)
    for call in routes(op):
        with runs(op, native=1):
            out = call(x)
        out.add_(1)
        assert x.tolist() == [0.0, 0.0]
    assert caplog.messages == []


@pytest.mark.parametrize("wrap", [True, False])
def test_d18_under_a_mode_with_either_wrap(wrap):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    op = alias_op("itself")
    x = torch.zeros(2)
    with ir.enable_torch_wrap(wrap), Mode(), runs(op, alias=1):
        out = op(x)
    out.add_(1)
    assert x.tolist() == [0.0, 0.0]


def test_d18_maybe_inplace_copies_what_is_not_donated():
    op = alias_op("itself")
    x, w = torch.zeros(2), torch.ones(2)
    for call in routes(op.maybe_inplace):
        call(x, w).add_(5)
        assert w.tolist() == [1.0, 1.0]
        call(x).add_(5)  # not in place: as under the default overload
        assert x.tolist() == [0.0, 0.0]


def test_d18_one_of_several_results():
    op = new_pair()

    @op.register_impl("half")
    def half(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return (x + x_other) * scale, x_other

    op.set_default(["half"])
    x, other = torch.ones(2), torch.ones(2)
    for call in routes(op):
        with runs(op, half=1):
            for result in call(x, other):
                result.zero_()
        assert (x.tolist(), other.tolist()) == ([1.0] * 2, [1.0] * 2)


def test_d18_an_in_place_impl_that_returns_a_caller_s_weight():
    def native(x: Tensor, w: Tensor) -> Tensor:
        return w.clone()

    def inplace(x: Tensor, w: Tensor) -> Tensor:
        x.zero_()
        return w

    op = ir.register_op(native, name=new_name(), allow_inplace=True)
    op.register_impl("fast", inplace=True)(inplace)
    op.set_default(["fast"])
    w = torch.ones(2)
    for call in [*routes(op), *routes(op.maybe_inplace)]:
        with runs(op, fast=1):
            call(torch.ones(2), w).zero_()
        assert w.tolist() == [1.0, 1.0]


# ---- maybe_inplace -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_maybe_inplace_writes_where_the_activations_are(mode):
    op = new_pair("fast")
    for watched in (contextlib.nullcontext(), torch.profiler.profile()):  # fast, and through torch
        with watched, mode():
            x, other = torch.ones(3), torch.ones(3)
            with runs(op, fast=1):
                results = op.maybe_inplace(x, other, 2.0)
            assert [r.data_ptr() for r in results] == [x.data_ptr(), other.data_ptr()]
            assert (x.tolist(), other.tolist()) == ([4.0] * 3, [2.0] * 3)


def test_the_operator_called_from_a_graph_returns_new_tensors():
    """Its schema says so, and a compiler plans memory by it."""
    for op, args in ((new_pair("fast"), (2.0,)), (FUSED, (torch.randn(8), 1e-6))):
        x, other = torch.randn(4, 8), torch.randn(4, 8)
        expected = native_of(op, x, other, *args)
        before = x.clone(), other.clone()
        with FUSED.set_priority(["vllm_c"]):
            results = op.maybe_inplace.torch_op(x, other, *args)
        assert_results(results, expected)
        assert_results((x, other), before)
        assert not {r.data_ptr() for r in results} & {x.data_ptr(), other.data_ptr()}


def test_maybe_inplace_with_the_kernel_allocates_nothing():
    x, residual, w = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
    expected = native_of(FUSED, x, residual, w, 1e-6)
    with FUSED.set_priority(["vllm_c"]), runs(FUSED, vllm_c=1):
        results = FUSED.maybe_inplace(x, residual, w, 1e-6)
    assert [r.data_ptr() for r in results] == [x.data_ptr(), residual.data_ptr()]
    assert_results(results, expected)
    assert_results((x, residual), expected)


def test_versions_of_donated_tensors_are_bumped_and_of_no_other():
    op = new_pair("fast")
    for overload in (op.maybe_inplace, FUSED.maybe_inplace):
        x, other, w = torch.ones(2, 8), torch.ones(2, 8), torch.ones(8)
        before = [t._version for t in (x, other, w)]
        args = (x, other, 2.0) if overload is op.maybe_inplace else (x, other, w, 1e-6)
        with FUSED.set_priority(["vllm_c"]):
            overload(*args)
        assert x._version > before[0]
        assert other._version > before[1]
        assert w._version == before[2]


def test_autograd_notices_that_a_saved_tensor_was_donated():
    op = new_pair("fast")
    weight, x = torch.ones(2, requires_grad=True), torch.ones(2)
    loss = (weight * x).sum()  # saves x
    op.maybe_inplace(x, torch.ones(2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_view_of_a_donated_tensor_shares_its_version():
    op = new_pair("fast")
    base = torch.ones(2, 4)
    before = base._version
    op.maybe_inplace(base[0], base[1])
    assert base._version > before


def test_with_an_impl_that_is_not_in_place_it_behaves_like_the_default():
    op = new_pair()
    op.register_impl("pure")(same_as(pair_native))
    op.set_default(["pure"])
    for call in routes(op.maybe_inplace):
        x, other = torch.ones(3), torch.ones(3)
        before = x._version, other._version
        with runs(op, pure=1):
            results = call(x, other, 2.0)
        assert (x._version, other._version) == before
        assert (x.tolist(), other.tolist()) == ([1.0] * 3, [1.0] * 3)
        assert_results(results, pair_native(x, other, 2.0))
        assert not any(torch._C._is_alias_of(r, t) for r in results for t in (x, other))


def test_overloads_share_priority_impls_and_counts():
    op = new_pair("fast")
    x = torch.ones(3)
    with op.set_priority(["native"]), runs(op, native=2):
        op(x, x)
        op.maybe_inplace(x, x)
    with runs(op, fast=2):
        op(x, x)
        op.maybe_inplace(x, x.clone())


def test_inference_tensors_are_donated_in_inference_mode_only():
    """As torch has it: outside, its own in-place operations refuse them."""
    op = new_pair("fast")
    with torch.inference_mode():
        x, other = torch.ones(3), torch.ones(3)
        with runs(op, fast=1):
            op.maybe_inplace(x, other)
        assert other.tolist() == [2.0] * 3
    with torch.no_grad(), pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        op.maybe_inplace(x, other)
    with torch.no_grad(), runs(op, fast=1):
        op(x, other)


# ---- views and overlaps (D19) --------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["vllm_c", "native"])
def test_d19_two_rows_of_one_base(provider):
    for call in [*routes(FUSED.maybe_inplace), *routes(FUSED)]:
        base = torch.randn(4, 8)
        before = base.clone()
        expected = native_of(FUSED, base[0], base[2], None, 1e-6)
        with FUSED.set_priority([provider]), runs(FUSED, **{provider: 1}):
            got = call(base[0], base[2], None, 1e-6)
        assert_results(got, expected)
        assert torch.equal(base[1], before[1])
        assert torch.equal(base[3], before[3])


def test_d19_interleaved_columns_of_one_base():
    for call in routes(FUSED.maybe_inplace):
        base = torch.randn(4, 20)
        before = base.clone()
        x, residual = base[:, 2:10], base[:, 11:19]
        expected = native_of(FUSED, x, residual, None, 1e-6)
        with FUSED.set_priority(["vllm_c"]), runs(FUSED, vllm_c=1):
            got = call(x, residual, None, 1e-6)
        assert_results(got, expected)
        for column in (0, 1, 10, 19):
            assert torch.equal(base[:, column], before[:, column])


NO_OVERLAP = 'elements share memory, or may; needs no_overlap("x", "x_residual", "weight")'
base = torch.randn(6, 8)
OVERLAPS = {
    "the same tensor": (base, base, NO_OVERLAP),
    "shifted by a row": (base[:4], base[1:5], NO_OVERLAP),
    "shifted by an element": (
        *(base.view(-1)[:40].view(5, 8), base.view(-1)[1:41].view(5, 8)),
        NO_OVERLAP,
    ),
    "an expanded x": (base[:1].expand(4, 8), torch.randn(4, 8), NO_OVERLAP),
    "an expanded residual": (torch.randn(4, 8), base[:1].expand(4, 8), NO_OVERLAP),
    "a sliding window": (base.view(-1).as_strided((4, 8), (1, 1)), torch.randn(4, 8), NO_OVERLAP),
    "columns of stride 0": (
        *(torch.randn(4, 1).expand(4, 8), torch.randn(4, 8)),
        'x.stride(-1) is 0; needs last_dim_contiguous("x")',
    ),
}  # fmt: skip


def test_d19_a_weight_inside_of_a_donated_tensor_is_rejected_with_the_reason():
    base = torch.randn(5, 8)
    expected = native_of(FUSED, base[:4], torch.ones(4, 8), base[2], 1e-6)
    with FUSED.set_priority(["vllm_c", "native"]):
        for call in [*routes(FUSED.maybe_inplace), *routes(FUSED)]:
            residual = torch.ones(4, 8)
            assert (
                FUSED.explain(base[:4], residual, base[2], 1e-6).decisions[0].reason == NO_OVERLAP
            )
            with runs(FUSED, native=1):
                assert_results(call(base[:4], residual, base[2], 1e-6), expected)
            with runs(FUSED, vllm_c=1):
                call(base[:4].clone(), residual, base[4], 1e-6)


@pytest.mark.parametrize("case", OVERLAPS)
def test_d19_overlapping_donated_tensors_are_rejected_with_the_reason(case):
    x, residual, reason = OVERLAPS[case]
    expected = native_of(FUSED, x, residual, None, 1e-6)
    before = bytes_of(x), bytes_of(residual)
    with FUSED.set_priority(["vllm_c", "native"]):
        explanation = FUSED.explain(x, residual, None, 1e-6)
        assert explanation.selected == "native"
        assert (explanation.decisions[0].status, explanation.decisions[0].reason) == (
            "rejected",
            reason,
        )
        for call in [*routes(FUSED.maybe_inplace), *routes(FUSED)]:
            with runs(FUSED, native=1):
                got = call(x, residual, None, 1e-6)
            assert_results(got, expected)
            assert (bytes_of(x), bytes_of(residual)) == before


def test_the_kernel_itself_refuses_an_overlap():
    """Nothing but the rule stands before the launcher; the torch op has its own check."""
    x = torch.ones(2, 8)
    with raises_exactly(
        ValueError,
        "vllm_ir.fused_add_rms_norm: x and x_residual are both overwritten, so they must not share "
        "memory, got overlapping tensors. Pass a clone of one.",
    ):
        torch.ops.vllm_ir_C.fused_add_rms_norm_(x, x, None, 1e-6)
    with raises_exactly(
        ValueError,
        "vllm_ir.fused_add_rms_norm: x is overwritten, so its rows must not share memory, got "
        "shape (2, 8) with strides (0, 1). Pass a clone.",
    ):
        torch.ops.vllm_ir_C.fused_add_rms_norm_(x[:1].expand(2, 8), x, None, 1e-6)


def test_pair_inplace_is_what_the_toys_say():
    x, other = torch.ones(2), torch.ones(2)
    results = pair_inplace(x, other, 2.0)
    assert results[0] is x
    assert results[1] is other
    assert_results(results, pair_native(torch.ones(2), torch.ones(2), 2.0))
