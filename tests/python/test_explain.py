# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
import torch
from toys import line_of, new_toy, runs, same_as, toy_native

import vllm_ir as ir
from vllm_ir import rules
from vllm_ir.explanation import Decision, Explanation

X = torch.ones(2, 8)


def test_every_status_appears_with_its_reason():
    op = new_toy()
    impl = same_as(toy_native)
    op.register_impl("ruled", supports_args=rules.dtype("x", torch.float16))(impl)  # ruled here
    op.register_impl("asked", supports_args=lambda *args: False)(impl)
    op.register_impl("off", supported=False, unsupported_reason="no such chip")(impl)
    op.register_impl("runs")(impl)
    op.register_impl("late", supports_args=rules.is_none("y"))(impl)
    op.register_impl("unlisted")(impl)
    op.set_default(["off", "ruled", "asked", "runs", "late"])
    explanation = op.explain(X)
    assert str(explanation) == "\n".join(
        [
            f"vllm_ir.{op.name}: runs runs (priority: ruled, asked, runs)",
            '  ruled     rejected: x.dtype is float32; needs dtype("x") in {float16}',
            "  asked     rejected: supports_args returned False",
            "  runs      selected",
            "  off       unsupported: no such chip",
            "  late      unreachable behind runs",
            "  native    not in the priority list",
            "  unlisted  not in the priority list",
        ]
    )
    assert [d.status for d in explanation.decisions] == [
        *("rejected", "rejected", "selected", "unsupported", "unreachable"),
        *("not in the priority list", "not in the priority list"),
    ]
    assert len(explanation.decisions) == len(op.impls)
    assert explanation.decisions[0].source == line_of("ruled here", __file__)


def test_not_reached():
    op = new_toy()
    op.register_impl("first", supports_args=rules.is_none("y"))(same_as(toy_native))
    op.set_default(["first", "native"])
    assert str(op.explain(X)) == (
        f"vllm_ir.{op.name}: first runs (priority: first, native)\n"
        "  first   selected\n"
        "  native  not reached"
    )


def test_unsupported_without_a_reason_says_what_was_declared():
    op = new_toy()
    op.register_impl("off", supported=False)(same_as(toy_native))
    op.set_default(["off"])
    assert "  off     unsupported: supported=False" in str(op.explain(X)).splitlines()


def test_it_is_a_value_and_goes_to_json_and_back():
    op = new_toy("a")
    op.set_default(["a"])
    explanation = op.explain(X, scale=2)
    assert isinstance(explanation, Explanation)
    assert explanation == op.explain(X)
    assert explanation.op == op.name
    assert explanation.selected == "a"
    assert explanation.priority == ("a",)
    data = explanation.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data == {
        "op": op.name,
        "selected": "a",
        "priority": ["a"],
        "impls": [
            {"provider": "a", "status": "selected", "reason": "", "source": op.impls["a"].source},
            {
                "provider": "native",
                "status": "not in the priority list",
                "reason": "",
                "source": op.source,
            },
        ],
    }
    with pytest.raises(AttributeError):
        explanation.selected = "b"


def test_decisions_print_alone():
    for status, reason, text in [
        ("selected", "", "selected"),
        ("rejected", "x", "rejected: x"),
        ("unsupported", "y", "unsupported: y"),
        ("unreachable", "unreachable behind b", "unreachable behind b"),
    ]:
        decision = Decision("a", status, reason, "f.py:1")
        assert str(decision) == text
        assert decision.to_dict() == {
            "provider": "a",
            "status": status,
            "reason": reason,
            "source": "f.py:1",
        }


def test_it_runs_and_counts_nothing():
    op = new_toy("a")
    op.register_impl("no", supports_args=rules.is_given("y"))(same_as(toy_native))
    op.set_default(["no", "a"])
    with runs(op):
        op.explain(X)
        op.dispatch(X)
        op.impls["no"].supports_args(X)
    assert all(i.rejections == {} for i in op.report().impls)


def test_it_knows_the_scope():
    op = new_toy("a", "b")
    with op.set_priority(["b"]):
        assert op.explain(X).selected == "b"
        assert op.explain(X).priority == ("b",)
    assert op.explain(X).selected == "native"


@pytest.mark.parametrize("kind", ["fake", "meta", "parameter", "subclass"])
def test_other_tensors_will_do(kind):
    op = new_toy("a")
    op.register_impl("half", supports_args=rules.dtype("x", torch.float16))(same_as(toy_native))
    op.set_default(["half", "a"])
    if kind == "fake":
        with torch._subclasses.FakeTensorMode():
            x = torch.empty(2, 8)
    elif kind == "meta":
        x = torch.empty(2, 8, device="meta")
    elif kind == "parameter":
        x = torch.nn.Parameter(torch.ones(2, 8))
    else:
        x = torch.ones(2, 8).as_subclass(type("Sub", (torch.Tensor,), {}))
    with torch.no_grad():
        explanation = op.explain(x)
        assert explanation.selected == op.dispatch(x).provider == "a"
        assert (
            explanation.decisions[0].reason == 'x.dtype is float32; needs dtype("x") in {float16}'
        )
        assert op.explain(x.half()).selected == "half"

    def test_of_the_shipped_norms():
        x, w = torch.randn(2, 8), torch.ones(8)
        assert str(ir.ops.rms_norm.explain(x, w, 1e-6)) == (
            "vllm_ir.rms_norm: vllm_c runs (priority: vllm_c, native)\n"
            "  vllm_c  selected\n"
            "  native  not reached"
        )
        assert str(ir.ops.rms_norm.explain(x.double(), w, 1e-6)) == (
            "vllm_ir.rms_norm: native runs (priority: vllm_c, native)\n"
            "  vllm_c  rejected: x.dtype is float64; "
            'needs dtype("x") in {float32, float16, bfloat16}\n'
            "  native  selected"
        )


def test_where_a_gradient_is_needed_native_is_named_and_the_reason():
    op = new_toy("a")
    op.set_default(["a"])
    x = torch.ones(2, requires_grad=True)
    explanation = op.explain(x)
    assert explanation.selected == op.dispatch(x).provider == "native"
    assert [str(d) for d in explanation.decisions] == [
        "selected",
        "rejected: a gradient is needed, so native runs; torch.no_grad() or "
        "torch.inference_mode() lets others run",
    ]
    with torch.no_grad():
        assert op.explain(x).selected == "a"


def test_numbers_of_other_types_count_as_torch_counts_them():
    op, x = ir.ops.rms_norm, torch.ones(2, 8)
    for size in (np.int64(3), True):
        assert op.explain(x, None, 1e-6, size).selected == "vllm_c"
    for epsilon in (0, np.float32(1e-6)):
        assert op.explain(x, None, epsilon).selected == "vllm_c"
