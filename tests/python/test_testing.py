# SPDX-License-Identifier: Apache-2.0
"""The conformance checks themselves: each one must fail for an implementation that breaks it."""

import pytest
import torch
from torch import Tensor
from toys import new_name, new_pair, new_toy, pair_native

import vllm_ir as ir
from vllm_ir import testing
from vllm_ir.testing import ConformanceError, Memory, assert_matches_native, copied, measure


def norm_native(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    total = x.float() + x_other.float()
    return (total * scale).to(x.dtype), total.to(x.dtype)


def op_with(body, **options):
    """Return an op whose provider `mine` is `body`."""
    op = ir.register_op(norm_native, name=new_name("checked"), allow_inplace=True)
    op.register_impl("mine", **options)(body)
    return op


def sample(dtype=torch.float32, shape=(3, 8)):
    return torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), 0.5


def test_a_right_implementation_passes_and_tells_how_far_it_is():
    def mine(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        out, total = norm_native(x, x_other, scale)
        out[0, 0] = torch.nextafter(out[0, 0], torch.tensor(9.0))
        return out, total

    op = op_with(mine)
    first, second = assert_matches_native(op, "mine", *sample(), donating=True)
    assert (first.differing, first.largest_ulp, first.share) == (1, 1, 1 / 24)
    assert (second.differing, second.largest_ulp) == (0, 0)
    assert "1 of 24 values differ (4.167%), the largest distance is 1 ULP" in str(first)


def test_keywords_and_defaults_are_bound():
    op = op_with(norm_native)
    x, r, _ = sample()
    assert_matches_native(op, "mine", x, x_other=r)


def test_the_caller_may_hold_a_gradient_and_any_mode():
    op = op_with(norm_native)
    x, r, s = sample()
    assert_matches_native(op, "mine", x.requires_grad_(), r, s)
    with torch.inference_mode():
        assert_matches_native(op, "mine", *sample(), donating=True)


BROKEN = {
    "must be as native's, float32": lambda x, r, s: tuple(t.double() for t in norm_native(x, r, s)),
    "with strides": lambda x, r, s: tuple(t.t().contiguous().t() for t in norm_native(x, r, s)),
    "float32\\[24\\]": lambda x, r, s: tuple(t.flatten() for t in norm_native(x, r, s)),
    "values differ": lambda x, r, s: tuple(t * 1.01 for t in norm_native(x, r, s)),
    "leave its inputs": lambda x, r, s: norm_native(x.mul_(1.0).add_(1).sub_(1e-3), r, s),
    "result 1 must be native's within": lambda x, r, s: (norm_native(x, r, s)[0], r.clone()),
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_implementation_is_found(text):
    def mine(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return BROKEN[text](x, x_other, scale)

    op = op_with(mine)
    with pytest.raises(ConformanceError, match=text) as caught:
        assert_matches_native(op, "mine", *sample())
    assert str(caught.value).startswith(f"vllm_ir.{op.name}.mine: ")
    assert isinstance(caught.value, AssertionError)


def test_nan_for_a_number_is_found():
    def mine(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        out, total = norm_native(x, x_other, scale)
        out[1, 1] = float("nan")
        return out, total

    with pytest.raises(ConformanceError, match="1 of 24 values differ"):
        assert_matches_native(op_with(mine), "mine", *sample())


def test_a_write_beside_the_inputs_is_found():
    def mine(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        x.as_strided((1,), (1,), x.storage_offset() + 8).add_(1)  # the element after the first row
        return norm_native(x, x_other, scale)

    base = torch.randn(6, 8)
    with pytest.raises(ConformanceError, match="leave its inputs"):
        assert_matches_native(op_with(mine), "mine", base[::2], *sample()[1:])


def test_a_write_outside_of_the_donated_tensors_is_found():
    def mine(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        out, total = norm_native(x, x_other, scale)
        end = x.storage_offset() + x.shape[-1]
        if end < x.untyped_storage().nbytes() // 4:  # the clone of the default overload is dense
            x.as_strided((1,), (1,), end).fill_(-7)
        x.copy_(out)
        x_other.copy_(total)
        return x, x_other

    op = op_with(mine, inplace=True)
    base, r, s = torch.randn(1, 16), torch.randn(1, 8), 0.5
    assert_matches_native(op, "mine", base[:, :8].clone(), r, s, donating=True)
    with pytest.raises(ConformanceError, match="write to the donated tensors only"):
        assert_matches_native(op, "mine", base[:, :8], r, s, donating=True)


def test_an_in_place_implementation_passes():
    op = new_pair("mine")
    assert_matches_native(op, "mine", *sample(), donating=True)
    base = torch.randn(3, 16)
    assert_matches_native(op, "mine", base[:, :8], base[:, 8:], 0.5, donating=True)


def test_another_implementation_running_is_a_failure():
    op = op_with(norm_native, supports_args=lambda x, x_other, scale=1.0: scale < 0.4)
    with pytest.raises(
        ConformanceError,
        match=r"must be the one that runs, got native\n(.|\n)*mine +"
        r"rejected: supports_args returned False",
    ):
        assert_matches_native(op, "mine", *sample())


def test_an_unsupported_implementation_is_a_failure_with_its_reason():
    op = op_with(norm_native, supported=False, unsupported_reason="no such device")
    with pytest.raises(ConformanceError, match="unsupported: no such device"):
        assert_matches_native(op, "mine", *sample())


def test_a_fake_that_promises_other_strides_is_found():
    op = op_with(norm_native)

    @op.register_fake
    def fake(x, x_other, scale=1.0):
        return x.new_empty(x.shape[::-1]).t(), torch.empty_like(x)

    with pytest.raises(ConformanceError, match="result 0 must be what the op's fake promises"):
        assert_matches_native(op, "mine", *sample())


def test_an_implementation_that_raises_is_found():
    def mine(x: Tensor, x_other: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        raise AttributeError("no symbol")

    op = op_with(mine)
    with pytest.raises(ir.IrRuntimeError, match=f"vllm_ir.{op.name}.mine.*no symbol"):
        assert_matches_native(op, "mine", *sample())


def test_an_unknown_provider_is_an_error():
    with pytest.raises(ir.UnknownNameError):
        assert_matches_native(new_toy(), "nobody", torch.ones(2))


# --- cases from the registry


def test_cases_cover_each_implementation_of_an_op_with_a_generator():
    op = new_pair("mine")
    assert testing.conformance_cases(op) == []

    @op.register_input_generator
    def inputs(hidden_size=4, dtype=torch.float32):  # takes some of the keywords only
        return torch.randn(2, hidden_size).to(dtype), torch.randn(2, hidden_size).to(dtype)

    cases = testing.conformance_cases(op, dtypes=[torch.float16], sizes=[(2, 4), (2, 8)])
    assert [str(c) for c in cases] == [
        f"{op.name}-{provider}-float16-2x{width}"
        for provider in ("native", "mine")
        for width in (4, 8)
    ]
    for case in cases:
        assert case.refusal() == ""
        assert len(case.check()) == 2
    assert torch.equal(cases[0].args()[0], cases[0].args()[0])


def test_a_case_gives_the_reason_of_a_refusal():
    op = op_with(norm_native, supported=False, unsupported_reason="no such device")
    op.register_input_generator(lambda **_: sample())
    refusals = {c.impl.provider: c.refusal() for c in testing.conformance_cases(op)}
    assert refusals == {"native": "", "mine": "unsupported: no such device"}


# --- measuring


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
    ids=str,
)
def test_neighbours_are_one_step_apart(dtype):
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
        torch.empty(0, dtype=dtype).element_size()
    ]
    a = torch.tensor([0, 1, 40], dtype=bits).view(dtype)
    b = torch.tensor([1, 2, 43], dtype=bits).view(dtype)
    assert (measure(a, b).differing, measure(a, b).largest_ulp) == (3, 3)


def test_zeros_and_nans_are_alike_and_signs_are_apart():
    nan, inf = float("nan"), float("inf")
    assert measure(torch.tensor([0.0, nan, inf]), torch.tensor([-0.0, -nan, inf])).differing == 0
    step = torch.finfo(torch.float32).tiny * torch.finfo(torch.float32).eps
    assert measure(torch.tensor([step]), torch.tensor([-step])).largest_ulp == 2
    assert measure(torch.tensor([nan]), torch.tensor([1.0])).differing == 1
    big = torch.tensor([1e300], dtype=torch.float64)
    assert measure(big, -big).largest_ulp >= 2**62
    assert (
        measure(
            torch.tensor([3], dtype=torch.int8), torch.tensor([-2], dtype=torch.int8)
        ).largest_ulp
        == 5
    )
    assert measure(torch.empty(0, 4), torch.empty(0, 4)).share == 0.0


# --- memory


def test_memory_sees_every_byte_and_leaves_out_what_it_is_told():
    base = torch.zeros(4, 6, dtype=torch.bfloat16)
    view = base.t()[1:3]
    before = Memory([view, None, [base]])
    assert not before.changed()
    view[0, 0] = 1
    assert before.changed()
    assert not before.changed(except_in=[view])
    base[0, 0] = 1
    assert before.changed(except_in=[view])
    assert not before.changed(except_in=[view, base[0:1, 0:1].expand(3, 3)])


def test_copies_keep_layout_and_shared_memory():
    base = torch.randn(4, 6)
    x, y = base[:, 1:3], base.t()
    a, b, n, (c,) = copied((x, y, 3, [base]))
    assert (a.stride(), a.storage_offset(), n) == (x.stride(), x.storage_offset(), 3)
    assert torch.equal(a, x)
    assert torch.equal(b, y)
    a.fill_(9)
    assert torch.equal(b[1:3], torch.full((2, 4), 9.0))
    assert torch.equal(c[:, 1:3], a)
    assert not (base == 9).any()


def test_toys_do_what_native_does():
    x, r, s = sample()
    op = new_pair("mine")
    for got, want in zip(op(x, r, s), pair_native(x, r, s), strict=True):
        assert torch.equal(got, want)
