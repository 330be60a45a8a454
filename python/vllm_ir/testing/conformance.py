# SPDX-License-Identifier: Apache-2.0
"""`assert_matches_native`: everything that an op's contract asks of an implementation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from vllm_ir.dtypes import dtype_name
from vllm_ir.errors import IrError, IrRuntimeError
from vllm_ir.impl import IrOpImpl
from vllm_ir.op import IrOp
from vllm_ir.testing.agreement import Agreement, measure, same_bits
from vllm_ir.testing.memory import Memory, copied, mapped, tensors_in


class ConformanceError(IrError, AssertionError):
    """An implementation breaks the contract of its op."""


def assert_matches_native(
    op: IrOp, provider: str, *args: Any, donating: bool = False, **kwargs: Any
) -> tuple[Agreement, ...]:
    """Check one implementation against the contract of its op, for one set of arguments.

    It must be the implementation that runs: an unsupported one, or one that rejects the arguments,
    fails with the reasons. Then its results must have native's dtype, shape, device and strides,
    and native's values within `op.get_tolerance`; no input may change, to the byte, nor anything
    around it; the traceable body must give the bits of the C++ entry; and the op's fake must
    promise what the result is. Gradients are out of scope: native computes them.

    Strides are compared where they matter: not of empty results, nor of dimensions of size 1.

    Args:
        op: Any op.
        provider: Any registered provider of it, native too.
        *args: The arguments of the call; they stay as they are.
        donating: Also call `op.maybe_inplace`, on copies: same values, and nothing outside of the
            donated tensors may change.
        **kwargs: More arguments, by name.

    Returns:
        For each result how far it is from native's.

    Raises:
        ConformanceError: It is an AssertionError too; the message names op, provider and rule.
        UnknownNameError: The provider is not registered.

    Example:
        >>> import torch, vllm_ir as ir
        >>> from vllm_ir.testing import assert_matches_native
        >>> args = ir.ops.rms_norm.generate_inputs(num_tokens=2, dtype=torch.bfloat16)
        >>> print(*assert_matches_native(ir.ops.rms_norm, "vllm_c", *args))
        bfloat16: 0 of 128 values differ (0.000%), the largest distance is 0 ULP
    """
    bound = op.bind(*args, **kwargs)
    with torch.no_grad(), op.set_priority([provider]):
        impl = op.impls[provider]
        want = _results(op.impls["native"].impl_fn(*copied(bound)))
        got = _run_default(impl, bound)
        agreements = tuple(
            _compare(impl, i, *pair) for i, pair in enumerate(zip(got, want, strict=True))
        )
        if donating:
            _check_donating(impl, bound, want)
        _check_body(impl, bound, got)
        _check_fake(impl, bound, got)
    return agreements


def refusal(op: IrOp, provider: str, *args: Any, **kwargs: Any) -> str:
    """Return why a provider would not run for these arguments, "" when it would.

    Example:
        >>> import torch, vllm_ir as ir
        >>> from vllm_ir.testing import refusal
        >>> refusal(ir.ops.rms_norm, "vllm_c", torch.ones(2, 8, dtype=torch.float64), None, 1e-6)
        'rejected: x.dtype is float64; needs dtype("x") in {float32, float16, bfloat16}'
    """
    with op.set_priority([provider]):
        explanation = op.explain(*args, **kwargs)
    if explanation.selected == provider:
        return ""
    return next(str(d) for d in explanation.decisions if d.provider == provider)


def _run_default(impl: IrOpImpl, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    before, rule = Memory(args), "the default overload must leave its inputs as they are"
    try:
        got = _results(_counted(impl, impl.op, args))
    except IrRuntimeError as error:
        if before.changed():  # the call noticed it itself, by the version counters
            raise _broken(impl, rule) from error
        raise
    if before.changed():
        raise _broken(impl, rule)
    return got


def _check_donating(impl: IrOpImpl, args: tuple[Any, ...], want: Sequence[Tensor]) -> None:
    op, copies = impl.op, copied(args)
    before = Memory(copies)
    got = _results(_counted(impl, op.maybe_inplace, copies))
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        _compare(impl, i, g, w, strides=False)  # those of the donated tensor, as a rule
    named = zip(op.signature.parameters, copies, strict=True)
    if before.changed(except_in=[*tensors_in([a for n, a in named if n in op.activations])]):
        raise _broken(impl, "maybe_inplace must write to the donated tensors only")


def _check_body(impl: IrOpImpl, args: tuple[Any, ...], entry: Sequence[Tensor]) -> None:
    if not impl.entry:
        return
    body = _results(impl.impl_fn(*copied(args)))
    for i, (b, e) in enumerate(zip(body, entry, strict=True)):
        if _facts(b)[:3] != _facts(e)[:3] or not same_bits(b, e):
            rule = f"the traceable body must give the bits of the entry {impl.entry}"
            raise _broken(impl, rule, f"{_text(b)} and {_text(e)} with other bits for result {i}")


def _check_fake(impl: IrOpImpl, args: tuple[Any, ...], got: Sequence[Tensor]) -> None:
    with FakeTensorMode() as mode:
        promised = _results(impl.op.torch_op(*mapped(mode.from_tensor, args)))
    for i, (real, fake) in enumerate(zip(got, promised, strict=True)):
        if _facts(real) != _facts(fake):
            rule = f"result {i} must be what the op's fake promises, {_text(fake)}"
            raise _broken(impl, rule, _text(real))


def _counted(impl: IrOpImpl, call: Any, args: tuple[Any, ...]) -> Any:
    """Call, and make sure that the implementation is the one that ran."""
    rule = "it must be the one that runs"
    explanation = impl.op.explain(*args)
    if explanation.selected != impl.provider:
        raise _broken(impl, rule, f"{explanation.selected}\n{explanation}\n")
    before = _times_run(impl)
    result = call(*args)
    if _times_run(impl) == before:
        raise _broken(impl, rule, "another one; see vllm_ir.report()")
    return result


def _times_run(impl: IrOpImpl) -> int:
    return next(i.selected for i in impl.op.report().impls if i.provider == impl.provider)


def _compare(
    impl: IrOpImpl, index: int, got: Tensor, want: Tensor, *, strides: bool = True
) -> Agreement:
    checked = None if strides else 3
    if _facts(got)[:checked] != _facts(want)[:checked]:
        raise _broken(impl, f"result {index} must be as native's, {_text(want)}", _text(got))
    agreement = measure(got, want)
    atol, rtol = impl.op.get_tolerance(got.dtype)
    comparable = (got, want) if got.element_size() > 1 else (got.float(), want.float())
    try:
        torch.testing.assert_close(*comparable, atol=atol, rtol=rtol, equal_nan=True)
    except AssertionError as error:
        rule = f"result {index} must be native's within atol {atol:g} and rtol {rtol:g}"
        raise _broken(impl, rule, f"{agreement}. {error}") from None
    return agreement


def _results(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _facts(t: Tensor) -> tuple[str, tuple[int, ...], str, tuple[int, ...]]:
    """Return dtype, shape, device and the strides that matter."""
    pairs = zip(t.shape, t.stride(), strict=True)
    strides = tuple(s for n, s in pairs if n > 1 and t.numel() > 0)
    return dtype_name(t.dtype), tuple(t.shape), str(t.device), strides


def _text(t: Tensor) -> str:
    return f"{dtype_name(t.dtype)}{list(t.shape)} on {t.device} with strides {t.stride()}"


def _broken(impl: IrOpImpl, rule: str, got: str = "") -> ConformanceError:
    ending = f", got {got}" if got else ""
    return ConformanceError(f"vllm_ir.{impl.op.name}.{impl.provider}: {rule}{ending}.")
