# SPDX-License-Identifier: Apache-2.0
"""The rows of bench_dispatch.py, in groups of one question each."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from dispatch_ops import (
    CHOSEN,
    HALF_RULE,
    is_half,
    load_counterparts,
    make_fused_op,
    make_op,
    norm,
    trivial,
)
from dispatch_states import NoFunctionMode, debug_log, default_device, grad_mode
from python_dispatcher import PythonDispatcher, PythonImpl
from stopwatch import Case
from torch import Tensor

import vllm_ir as ir

EPSILON = 1e-6
CALL = "op(x, w, eps, none)"
x, residual, w = torch.randn(1, 16), torch.randn(1, 16), torch.randn(16)
NAMES: dict[str, Any] = {"x": x, "w": w, "eps": EPSILON, "none": None}


def all_cases() -> list[Case]:
    """Register the ops and return every row."""
    native = load_counterparts()
    op = make_op("bench_noop", "noop")
    rows = [*route_cases(native), *call_cases(op), *selection_cases(), *useful_cases()]
    return [*rows, *inplace_cases(), *state_cases(op), *slow_cases(op)]


def check_norm(value: Tensor) -> None:
    """Raise unless `value` is the norm of `x`."""
    torch.testing.assert_close(value, norm(x, w, EPSILON))


def check_chosen(op: ir.IrOp) -> Callable[[Any], None]:
    """Return a check that the impl that a row is about is the one that runs."""

    def check(value: Any) -> None:
        explanation = op.explain(x, w, EPSILON)
        if explanation.selected != CHOSEN:
            raise AssertionError(str(explanation))

    return check


def plain_case(label: str, function: Any, **more: Any) -> Case:
    """Return a row that calls anything with the four arguments."""
    return Case(label, CALL, NAMES | {"op": function}, **more)


def op_case(
    label: str, op: ir.IrOp, statement: str = CALL, around: Any = None, **names: Any
) -> Case:
    """Return a row that calls an IR op."""
    more = {"around": around} if around else {}
    return Case(label, statement, NAMES | {"op": op} | names, check=check_chosen(op), **more)


def route_cases(native: ModuleType) -> list[Case]:
    """What a call costs without the package."""
    ops = torch.ops.vllm_ir_bench
    no, last = PythonImpl(trivial, is_half), PythonImpl(ops.rms.default)
    first, third = PythonDispatcher([last]), PythonDispatcher([no, no, last])
    keywords = "op(x, w, epsilon=eps, variance_size=none)"
    return [
        plain_case("Python function", trivial),
        plain_case("METH_FASTCALL, no-op", native.noop),
        plain_case("METH_FASTCALL, rms [1,16]", native.rms, check=check_norm),
        plain_case("METH_FASTCALL, rms [1,16], lean", native.rms_lean, check=check_norm),
        plain_case("torch.ops, no-op", ops.noop),
        plain_case("torch.ops .default, no-op", ops.noop.default),
        plain_case("torch.ops, rms [1,16]", ops.rms, check=check_norm),
        plain_case("torch.ops .default, rms [1,16]", ops.rms.default, check=check_norm),
        Case("torch.ops, rms [1,16], keywords", keywords, NAMES | {"op": ops.rms}),
        plain_case("dispatcher in Python, first impl: torch.ops rms", first, check=check_norm),
        plain_case("dispatcher in Python, third impl: torch.ops rms", third, check=check_norm),
        Case("torch.empty_like", "f(x)", NAMES | {"f": torch.empty_like}),
        Case("F.rms_norm [1,16]", "f(x, s, w, eps)", NAMES | {"f": F.rms_norm, "s": (16,)}),
    ]


def call_cases(op: ir.IrOp) -> list[Case]:
    """Forms of calling the same op."""
    frozen = torch.nn.Parameter(w.clone(), requires_grad=False)
    module = ModuleType("holder")
    module.op = op  # type: ignore[attr-defined]
    return [
        op_case("op call, no-op impl", op),
        op_case("op call, default filled", op, "op(x, w, eps)"),
        op_case("op call, keywords", op, "op(x, weight=w, epsilon=eps)"),
        op_case("op call, Parameter as weight", op, w=frozen),
        op_case("op call, no weight", op, "op(x, none, eps, none)"),
        op_case("op call, through a module", op, "module.op(x, w, eps, none)", module=module),
    ]


def selection_cases() -> list[Case]:
    """By what stands in front of the impl that runs, and by who asks."""
    rule: dict[str, Any] = {"supports_args": HALF_RULE}
    ask: dict[str, Any] = {"supports_args": is_half}
    memo: dict[str, Any] = {"supports_args": is_half, "memoise": True}
    third, python = "op call, third impl, no-op", "op call, Python impl"
    eighth = "op call, eighth impl, no-op, 7 rules reject"
    return [
        op_case(f"{third}, 2 rules reject", make_op("bench_rules", "noop", 2, **rule)),
        op_case(eighth, make_op("bench_eighth", "noop", 7, **rule)),
        op_case(f"{third}, 2 callables reject", make_op("bench_ask", "noop", 2, **ask)),
        op_case(f"{third}, 2 memoised callables reject", make_op("bench_memo", "noop", 2, **memo)),
        op_case(python, make_op("bench_python", trivial)),
        op_case(f"{python}, third, 2 rules reject", make_op("bench_py3", trivial, 2, **rule)),
        op_case(f"{python}, third, 2 callables reject", make_op("bench_py_ask", trivial, 2, **ask)),
        op_case(
            f"{python}, third, 2 memoised callables reject",
            make_op("bench_py_memo", trivial, 2, **memo),
        ),
    ]


def useful_cases() -> list[Case]:
    """Calls that do the work, the shipped op among them."""
    op, rule = ir.ops.rms_norm, {"supports_args": HALF_RULE}
    first = {"around": lambda: op.set_priority(["native"]), "check": check_norm}
    return [
        op_case("op call, rms [1,16]", make_op("bench_rms", "rms")),
        op_case(
            "op call, rms [1,16], third, 2 rules reject", make_op("bench_rms3", "rms", 2, **rule)
        ),
        op_case("op call, rms [1,16], lean", make_op("bench_lean", "rms_lean")),
        plain_case("ir.ops.rms_norm as shipped [1,16]", op, check=check_norm),
        plain_case("torch.ops.vllm_ir_C.rms_norm [1,16]", torch.ops.vllm_ir_C.rms_norm),
        plain_case("torch.ops.vllm_ir.rms_norm [1,16]", op.torch_op, check=check_norm),
        plain_case("ir.ops.rms_norm, native [1,16]", op, **first),
    ]


def inplace_cases() -> list[Case]:
    """The two overloads over an in-place kernel, against torch.ops."""
    op, ops = make_fused_op("bench_fused"), torch.ops.vllm_ir_bench
    call = "op(x, r, w, eps, none)"

    def case(label: str, function: Any) -> Case:
        own = {"x": x.clone(), "r": residual.clone(), "op": function}
        return Case(label, call, NAMES | own)

    return [
        case("in-place impl, default overload, 2 clones", op),
        case("in-place kernel, functional torch.ops, 2 clones", ops.fused_add),
        case("in-place impl, maybe_inplace", op.maybe_inplace),
        case("in-place kernel, mutating torch.ops", ops.fused_add_),
    ]


def state_cases(op: ir.IrOp) -> list[Case]:
    """The no-op call while something is switched on in the process."""
    other, order = make_op("bench_other", "noop"), [CHOSEN, "native"]
    scope = {"enter": op.set_priority, "order": order}
    return [
        Case("priority scope, entered and left", "with enter(order): pass", scope),
        op_case("op call, in a scope of this op", op, around=lambda: op.set_priority(order)),
        op_case("op call, in a scope of another op", op, around=lambda: other.set_priority(order)),
        op_case("op call, set_default_device", op, around=default_device),
        op_case("op call, grad mode, nothing needs a gradient", op, around=grad_mode),
        op_case("op call, debug log on", op, around=debug_log),
        Case("report of this op", "report()", {"report": op.report}),
    ]


def slow_cases(op: ir.IrOp) -> list[Case]:
    """Calls that torch's own dispatcher has to take."""
    trained = torch.nn.Parameter(w.clone())
    return [
        op_case("slow path: torch.ops.vllm_ir, no-op", op, "t(x, w, eps, none)", t=op.torch_op),
        op_case("slow path: a torch-function mode is on", op, around=NoFunctionMode),
        op_case("slow path: the weight needs a gradient", op, around=grad_mode, w=trained),
    ]
