# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys

import pytest
from processes import run_python

import vllm_ir as ir
from vllm_ir.__main__ import main


@pytest.fixture(autouse=True)
def restore():
    yield
    for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        op.set_default([])


@pytest.fixture
def run(capsys):
    """Run the command line here; return its exit code, stdout and stderr."""

    def run_main(*args):
        code = main(args)
        return code, *capsys.readouterr()

    return run_main


def test_list_shows_every_op_and_how_it_is_chosen(run):
    code, out, err = run("list")
    assert (code, err) == (0, "")
    assert out.startswith(f"Platform {ir.current_platform().name}. The first implementation in ")
    for op in ir.IrOp.registry.values():
        assert f"\n{op.name}" in out
        for impl in op.impls.values():
            assert impl.source in out


def test_list_of_one_op_under_a_priority_from_the_command_line(run):
    code, out, err = run("list", "rms_norm", "--ir-op-priority.rms_norm=native")
    assert (code, err) == (0, "")
    assert "priority, eager:     native\n" in out
    assert "fused_add_rms_norm" not in out


def test_list_as_json(run):
    code, out, err = run("list", "rms_norm", "--json")
    assert (code, err) == (0, "")
    (op,) = json.loads(out)["ops"]
    assert op["name"] == "rms_norm"
    assert op["priority"]["compiling"] == ["native"]
    assert {impl["provider"] for impl in op["impls"]} == set(ir.ops.rms_norm.impls)


def test_explain_prints_the_arguments_and_the_decision_for_each_implementation(run):
    code, out, err = run("explain", "rms_norm", "--dtype", "float64", "--shape", "2,8")
    assert (code, err) == (0, "")
    first, *decisions = out.splitlines()
    assert first == (
        "Arguments: x=float64[2, 8] on cpu, weight=float64[8] on cpu, epsilon=1e-06, "
        "variance_size=None"
    )
    assert decisions[0].startswith("vllm_ir.rms_norm: native runs")
    assert any("vllm_c" in line and "rejected" in line for line in decisions)


def test_explain_takes_single_arguments_and_a_priority(run):
    code, out, _ = run(
        *("explain", "rms_norm", "--arg", "weight=none", "--arg", "variance_size=8"),
        "--ir-op-priority.rms_norm=native",
    )
    assert code == 0
    assert "weight=None" in out
    assert "variance_size=8" in out
    assert "vllm_ir.rms_norm: native runs" in out


def test_explain_as_json(run):
    code, out, _ = run("explain", "rms_norm", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["op"] == "rms_norm"
    assert answer["args"]["x"] == "float32[4, 64] on cpu"
    assert answer["selected"] in ir.ops.rms_norm.impls
    assert {impl["provider"] for impl in answer["impls"]} == set(ir.ops.rms_norm.impls)


def test_env_as_text_and_json_hold_the_same(run):
    _, text, _ = run("env")
    code, out, err = run("env", "--json")
    assert (code, err) == (0, "")
    for section in json.loads(out):
        assert f"{section}:" in text


ERRORS = [
    (("list", "rmsnorm"), "vllm_ir: unknown op 'rmsnorm'. Known: "),
    (("explain", "rmsnorm"), "vllm_ir: unknown op 'rmsnorm'. Known: "),
    (("explain", "rms_norm", "--shape", "4x64"), "vllm_ir.explain: a shape is sizes such as 4,64"),
    (("explain", "rms_norm", "--arg", "weight"), "vllm_ir.explain: --arg takes NAME=VALUE, got 'w"),
    (("list", "--ir-op-priority.rms_norm=vlm_c"), "vllm_ir.rms_norm: unknown provider 'vlm_c'."),
    (("list", "--ir-op-priority.rms_norm=a,,b"), "vllm_ir.rms_norm: entry 2 of the priority is e"),
]


@pytest.mark.parametrize(("args", "text"), ERRORS)
def test_an_error_is_one_line_on_stderr_and_exit_code_2(run, args, text):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err.startswith(f"vllm-ir: error: {text}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("args", [(), ("show",), ("explain",), ("env", "--yaml")])
def test_a_wrong_command_line_is_a_usage_error(args, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(args)
    assert exit_.value.code == 2
    assert "usage: vllm-ir" in capsys.readouterr().err


def test_it_runs_as_a_module_and_says_what_is_wrong():
    done = run_python("-m", "vllm_ir", "list", "rmsnorm")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("vllm-ir: error: vllm_ir: unknown op 'rmsnorm'.")


def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, "-m", "vllm_ir", "env"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_bad_variable_stops_the_import_with_the_allowed_values():
    done = run_python("-m", "vllm_ir", "env", env={"VLLM_IR_STRICT": "maybe"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "vllm_ir.errors.IrValueError: vllm_ir: VLLM_IR_STRICT must be one of 0, 1, false or true, "
        "got 'maybe'. Correct it or unset it."
    )
