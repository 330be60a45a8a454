# SPDX-License-Identifier: Apache-2.0
"""The roll-up of calls, the trace of decisions, and what both cost when they are off."""

import json
import logging
import sys
import textwrap

import pytest
import torch
from processes import output_of, run_python
from toys import counts, new_toy, same_as, toy_native

import vllm_ir as ir
from vllm_ir import rules
from vllm_ir.explanation import ImplCounts, OpReport, Report

X = torch.ones(2, 8)


def test_counts_by_impl_and_rejections_by_reason():
    op = new_toy()
    impl = same_as(toy_native)
    op.register_impl("half", supports_args=rules.dtype("x", torch.float16))(impl)
    op.register_impl("wide", supports_args=rules.last_dim_multiple_of("x", 16))(impl)
    op.register_impl("asked", supports_args=lambda *args: False)(impl)
    op.set_default(["half", "wide", "asked", "native"])
    for x in (X, X.double(), X.double(), X.half(), torch.ones(16)):
        op(x)
    assert op.report() == OpReport(
        op.name,
        (
            ImplCounts("native", 3, {}),
            ImplCounts("half", 1, {"x.dtype is float64": 2, "x.dtype is float32": 2}),
            ImplCounts("wide", 1, {'not last_dim_multiple_of("x", 16)': 3}),
            ImplCounts("asked", 0, {"supports_args said no": 3}),
        ),
        0,
    )
    assert op.report().calls == 5
    assert str(op.report()) == (
        f"{op.name}: 5 calls; half 1, wide 1, native 3 (half: x.dtype is float64: 2; "
        'half: x.dtype is float32: 2; wide: not last_dim_multiple_of("x", 16): 3; '
        "asked: supports_args said no: 3)"
    )


def test_the_line_of_one_restricted_impl_needs_no_prefix():
    op = new_toy()
    op.register_impl("fast", supports_args=rules.dtype("x", torch.float32))(same_as(toy_native))
    op.set_default(["fast", "native"])
    for x in (X, X, X, X.double()):
        op(x)
    assert str(op.report()) == f"{op.name}: 4 calls; fast 3, native 1 (x.dtype is float64: 1)"


def test_gradient_calls_have_a_reason_of_their_own():
    op = new_toy("a")
    op.set_default(["a"])
    op(X)
    op(X.clone().requires_grad_())
    report = op.report()
    assert report.gradient_calls == 1
    assert str(report) == f"{op.name}: 2 calls; a 1, native 1 (a gradient was needed: 1)"
    assert report.to_dict() == {
        "calls": 2,
        "gradient_calls": 1,
        "impls": {
            "native": {"selected": 1, "rejections": {}},
            "a": {"selected": 1, "rejections": {}},
        },
    }


def test_both_routes_and_maybe_inplace_count():
    from toys import new_pair

    op = new_pair("fast")
    for call in (op, op.torch_op, op.maybe_inplace, op.maybe_inplace.torch_op):
        call(torch.ones(1), torch.ones(1))
    assert op.report().to_dict()["impls"]["fast"]["selected"] == 4


def test_the_report_of_all_ops_lists_those_that_were_called():
    called, silent = new_toy(), new_toy()
    called(X)
    report = ir.report()
    assert isinstance(report, Report)
    names = [o.op for o in report.ops]
    assert called.name in names
    assert silent.name not in names
    assert names == sorted(names)
    assert f"{called.name}: 1 calls; native 1" in str(report).splitlines()
    data = report.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data[called.name]["calls"] == 1


def test_reset():
    op = new_toy()
    op.register_impl("fast", supports_args=rules.dtype("x", torch.float16))(same_as(toy_native))
    op.set_default(["fast", "native"])
    op(X)
    op(X.clone().requires_grad_())
    assert op.report(reset=True).calls == 2
    after = op.report()
    assert (after.calls, after.gradient_calls) == (0, 0)
    assert all(i.rejections == {} for i in after.impls)
    op(X)
    assert op.name in ir.report(reset=True).to_dict()
    assert op.name not in ir.report().to_dict()


def test_the_report_of_an_op_that_was_never_called():
    op = new_toy("a")
    assert op.report().calls == 0
    assert str(op.report()) == f"{op.name}: 0 calls; none ran"


def test_a_call_that_stops_among_the_predicates_leaves_a_report_that_prints():
    def stop(*args):
        raise KeyboardInterrupt

    op = new_toy()
    op.register_impl("half", supports_args=rules.dtype("x", torch.float16))(same_as(toy_native))
    op.register_impl("stops", supports_args=stop)(same_as(toy_native))
    op.set_default(["half", "stops", "native"])
    with pytest.raises(KeyboardInterrupt):
        op(X)
    assert str(op.report()) == f"{op.name}: 0 calls; none ran (x.dtype is float32: 1)"


def test_the_line_of_the_documentation_and_the_one_of_an_idle_process():
    script = """
        import torch, vllm_ir as ir
        print(ir.report())
        w = torch.ones(8)
        for dtype, times in ((torch.float32, 105), (torch.float64, 52)):
            for _ in range(times):
                ir.ops.rms_norm(torch.ones(2, 8, dtype=dtype), w, 1e-6)
        print(ir.report())
    """
    assert output_of(script).splitlines() == [
        "no vllm_ir op was called",
        "rms_norm: 157 calls; vllm_c 105, native 52 (x.dtype is float64: 52)",
    ]


# ---- tracing -------------------------------------------------------------------------------------

TRACED = """
    import torch, vllm_ir as ir
    x, w = torch.ones(2, 8), torch.ones(8)
    for _ in range(3):
        ir.ops.rms_norm(x, w, 1e-6)
        ir.ops.rms_norm(x.double(), w, 1e-6)
        ir.ops.rms_norm.torch_op(x, w, 1e-6)
"""
DECISIONS = [
    "DEBUG vllm_ir: vllm_ir.rms_norm: vllm_c runs",
    "  vllm_c  selected",
    "  native  not reached",
    "  triton  not in the priority list",
    "DEBUG vllm_ir: vllm_ir.rms_norm: native runs",
    '  vllm_c  rejected: x.dtype is float64; needs dtype("x") in {float32, float16, bfloat16}',
    "  native  selected",
    "  triton  not in the priority list",
]


def test_debug_level_shows_each_decision_once_and_another_level_none():
    script = textwrap.dedent(TRACED)
    done = run_python("-c", script, env={"VLLM_LOGGING_LEVEL": "DEBUG"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == DECISIONS
    done = run_python("-c", script, env={"VLLM_LOGGING_LEVEL": "INFO"})
    assert (done.returncode, done.stderr) == (0, "")


def test_the_level_may_change_in_a_running_process(caplog):
    op = new_toy("a")
    op.set_default(["a"])
    logging.getLogger("vllm_ir").setLevel(logging.DEBUG)
    op(X)
    assert caplog.messages == []  # the core has not been told
    ir.refresh_log_level()
    op(X)
    op(X)
    assert caplog.messages == [
        f"vllm_ir.{op.name}: a runs\n  a       selected\n  native  not in the priority list"
    ]
    logging.getLogger("vllm_ir").setLevel(logging.INFO)
    ir.refresh_log_level()
    with op.set_priority(["native"]):
        op(X)
    assert len(caplog.messages) == 1


# ---- the cost when it is off ---------------------------------------------------------------------


def python_calls_during(f):
    """Return the names of the Python functions that run while f does, f's own apart."""
    seen = []

    def profile(frame, event, arg):
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        f()
    finally:
        sys.setprofile(None)
    assert seen[0] == f.__name__
    return seen[1:]


def test_an_eager_call_of_a_c_impl_runs_no_python():
    x, residual, w = torch.ones(2, 8), torch.ones(2, 8), torch.ones(8)
    norm, fused = ir.ops.rms_norm, ir.ops.fused_add_rms_norm
    donating = fused.maybe_inplace
    norm(x, w, 1e-6)

    def calls():
        norm(x, w, 1e-6)
        norm(x, weight=w, epsilon=1e-6)
        fused(x, residual, None, 1e-6, 4)
        donating(x, residual, w, 1e-6)

    before = [counts(op).get("vllm_c", 0) for op in (norm, fused)]
    assert python_calls_during(calls) == []
    assert [counts(op).get("vllm_c", 0) for op in (norm, fused)] == [before[0] + 2, before[1] + 2]


def test_a_python_impl_is_the_only_python_of_its_call():
    op = new_toy()
    op.set_default(["native"])
    op(X)

    def call():
        op(X, scale=2.0)

    assert python_calls_during(call) == ["toy_native"]


def test_a_scope_runs_no_python():
    op = ir.ops.rms_norm
    x = torch.ones(2, 8)
    with op.set_priority(["vllm_c", "native"]):
        pass

    def calls():
        with op.set_priority(["vllm_c", "native"]):
            op(x, None, 1e-6)

    assert python_calls_during(calls) == []


def test_the_profile_of_this_file_does_see_python():
    """The tests above mean nothing when the profiler is blind."""

    def call():
        ir.ops.rms_norm.dispatch(X, None, 1e-6)

    assert "dispatch" in python_calls_during(call)
