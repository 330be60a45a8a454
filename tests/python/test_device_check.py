# SPDX-License-Identifier: Apache-2.0
"""The device check tells the truth: rehearsed on the CPU, with a stand-in for CUDA where needed."""

import json
import math
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import FakeCuda, FakeGraph
from processes import run_python

import vllm_ir as ir

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import device_cases
import device_check
import device_conformance
import device_contenders
import device_facts
import device_graphs
import device_table
import device_timings
from contenders import Problem
from device_clock import EventClock, HostClock, Lane, Spread, Walk, rounds_of, spread
from device_findings import Budget, Findings, Progress, finite
from device_problems import activation_bytes, goals_of, problems, set_count
from device_table import table

BENCH = Path(device_check.__file__).parent
OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul")
BF16 = torch.bfloat16


def findings() -> Findings:
    return Findings({}, {})


def run_check(tmp_path: Path, *options: str, before: str = "") -> tuple[int, dict, str]:
    """Run the check in a fresh process; return its exit code, JSON document and output."""
    file = tmp_path / "found.json"
    arguments = ["--device", "cpu", "--quick", "--json", str(file), *options]
    script = f"import sys\nsys.path.insert(0, {str(BENCH)!r})\n{before}\nimport device_check\n"
    done = run_python("-c", f"{script}sys.exit(device_check.main({arguments!r}))")
    assert file.exists(), done.stderr
    return done.returncode, json.loads(file.read_text()), done.stdout + done.stderr


# --- the whole run


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """Run the check as a person does, on the CPU."""
    file = tmp_path_factory.mktemp("rehearsal") / "found.json"
    options = ("--device", "cpu", "--quick", "--json", str(file))
    done = run_python(str(BENCH / "device_check.py"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text()), done.stdout


def test_a_rehearsal_passes_and_says_so(rehearsal):
    found, said = rehearsal
    verdict = found["verdict"]
    assert (found["schema"], verdict["passed"], verdict["finished"]) == (1, True, True)
    assert found["failures"] == []
    assert verdict["skipped"] == len(found["skipped"])
    assert 0 < verdict["seconds"] < found["settings"]["seconds"]
    assert said.splitlines()[-1].startswith("device_check passed: ")


def test_the_machine_and_the_build_are_told(rehearsal):
    found, said = rehearsal
    assert found["machine"]["torch"] == torch.__version__
    assert re.match(r"\d+\.\d+\S*, \w+, by \w+ \d", found["machine"]["vllm_ir"])
    for value in found["machine"].values():
        assert value in said


@pytest.mark.parametrize(("version", "told"), [("0.8", "0.8, "), (None, "version unknown, ")])
def test_a_build_that_does_not_know_its_version(monkeypatch, version, told):
    monkeypatch.setattr(device_facts, "package_version", lambda: version)
    assert device_facts.describe("cpu")["vllm_ir"].startswith(told)


def test_every_provider_ran_in_every_dtype(rehearsal):
    found, said = rehearsal
    rows = {(r["op"], r["provider"], r["dtype"]): r for r in found["conformance"]}
    for name in OPS:
        for provider in ("native", "vllm_c"):
            assert f"{name}.{provider}" in said
            for dtype in ("float32", "float16", "bfloat16"):
                row = rows[name, provider, dtype]
                shapes = len(device_cases.QUICK)
                per_shape = {"silu_and_mul": 1, "gelu_and_mul": 2}.get(name, 3)
                assert row["cases"] == shapes * per_shape
                assert (row["failed"], row["refused"], row["skipped"]) == (0, {}, 0)
                assert row["values"] > 1000
                assert 0 < row["of_bound"] <= 1
                assert (
                    row["rtol"] == ir.IrOp.registry[name].get_tolerance(getattr(torch, dtype)).rtol
                )
    assert all(r["differing"] == 0 for r in rows.values() if r["provider"] == "native")


def test_every_problem_has_times_above_zero(rehearsal):
    found, _ = rehearsal
    rows = found["timings"]
    assert {r["problem"] for r in rows} == {str(p) for p in problems(quick=True)}
    for problem in problems(quick=True):
        mine = {r["contender"] for r in rows if r["problem"] == str(problem)}
        assert mine >= {"copy", "native", "vllm_c"}
    assert any(r["contender"] == "compiled" for r in rows)
    assert any(r["contender"] == "F.rms_norm" for r in rows)
    assert any(r["contender"] == "vllm_c in place" for r in rows)
    for r in rows:
        assert r["eager_us"] > 0
        assert r["eager_noise_us"] >= 0
        assert r["rounds"] >= 3
        assert (r["graph_us"], r["graph_note"], r["basis"]) == (None, "CUDA only", "eager")
        assert r["rotated_bytes"] > found["settings"]["cache_bytes"]


def test_the_fraction_of_a_copy_comes_from_bytes_and_times(rehearsal):
    found, _ = rehearsal
    copies = {r["problem"]: r for r in found["timings"] if r["contender"] == "copy"}
    moved = {str(p): p.bytes_moved for p in problems(quick=True)}
    for r in found["timings"]:
        copy = copies[r["problem"]]
        assert abs(copy["bytes_moved"] - moved[r["problem"]]) <= 1
        if r is not copy:
            assert r["bytes_moved"] == moved[r["problem"]]
        assert r["noise"] == pytest.approx(r["eager_noise_us"] / r["eager_us"])
        assert r["noisy"] == (max(r["noise"], copy["noise"]) > 0.1)
        speed = r["bytes_moved"] / r["eager_us"] / 1e3
        assert r["gb_per_s"] == pytest.approx(speed)
        assert r["of_copy"] == pytest.approx(speed / (copy["bytes_moved"] / copy["eager_us"] / 1e3))


def test_calls_are_measured_by_each_route(rehearsal):
    found, _ = rehearsal
    rows = {r["route"]: r for r in found["overhead"]}
    kernel = rows["torch.ops.vllm_ir_C.rms_norm"]
    assert kernel["of_kernel"] == 1
    for route in ("op call, vllm_c", "torch.ops.vllm_ir.rms_norm, vllm_c", "op call, native"):
        assert rows[route]["ns"] > 0
        assert rows[route]["of_kernel"] == pytest.approx(rows[route]["ns"] / kernel["ns"])
    assert rows["op call, vllm_c"]["ns"] < rows["op call, native"]["ns"]


def test_graphs_are_said_to_be_for_cuda(rehearsal):
    found, said = rehearsal
    assert {(r["provider"], r["check"]) for r in found["graphs"]} >= {
        (provider, check) for provider in ("native", "vllm_c") for check in device_graphs.CHECKS
    }
    assert {r["status"] for r in found["graphs"]} == {"CUDA only"}
    skipped = {(n["part"], n["what"]): n["why"] for n in found["skipped"]}
    for row in found["graphs"]:
        assert skipped["graphs", f"{row['provider']}: {row['check']}"] == "CUDA only"
    assert "graphs: vllm_c: side stream: CUDA only" in said


def test_the_last_line_counts_what_ran(rehearsal):
    found, said = rehearsal
    itself = sum(r["cases"] for r in found["conformance"] if r["provider"] == "native")
    others = sum(r["cases"] for r in found["conformance"] if r["provider"] != "native")
    assert 0 < itself <= others  # vllm_c runs every case
    assert found["verdict"]["against_native"] == others
    assert found["verdict"]["native_itself"] == itself
    assert found["verdict"]["graph_checks"] == 0
    assert said.splitlines()[-1].startswith(
        f"device_check passed: {others} cases of other providers against native, "
        f"{itself} of native against itself, 0 graph checks, "
        f"{len(found['timings'])} timings; 0 failures, {len(found['skipped'])} skipped, "
    )


PLANTED = """
import torch
import vllm_ir as ir
from vllm_ir import rules

op = ir.ops.rms_norm

def native_in(x, weight, epsilon, variance_size):
    return op.impls["native"].impl_fn(x, weight, epsilon, variance_size)

@op.register_impl("a_hundred_off")
def hundred(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float,
            variance_size: int | None = None) -> torch.Tensor:
    y = native_in(x, weight, epsilon, variance_size)
    bits = y.view(torch.int32 if y.dtype is torch.float32 else torch.int16)
    return torch.where((y.abs() > 0.1) & (y.abs() < 100), bits + 100, bits).view(y.dtype)

@op.register_impl("wide_only", supports_args=rules.dtype("x", torch.float32))
def wide(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float,
         variance_size: int | None = None) -> torch.Tensor:
    return native_in(x, weight, epsilon, variance_size)

@op.register_impl("narrow", supports_args=rules.last_dim_at_most("x", 100))
def narrow(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float,
           variance_size: int | None = None) -> torch.Tensor:
    return native_in(x, weight, epsilon, variance_size)

@op.register_impl("elsewhere", supports_args=rules.device("x", "cuda"))
def elsewhere(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float,
              variance_size: int | None = None) -> torch.Tensor:
    raise AssertionError("never on a CPU")

@op.register_impl("not_built", supported=False, unsupported_reason="there is no such library")
def not_built(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float,
              variance_size: int | None = None) -> torch.Tensor:
    raise AssertionError("never at all")
"""


def test_planted_providers_are_found_by_name(tmp_path):
    expect = "vllm_c,elsewhere,missing"
    code, found, said = run_check(tmp_path, "--no-compiled", "--expect", expect, before=PLANTED)
    assert code == 1
    assert not found["verdict"]["passed"]
    why = {}
    for note in found["failures"]:
        why.setdefault((note["part"], note["what"]), []).append(note["why"])
    rows = {(r["provider"], r["dtype"]): r for r in found["conformance"] if r["op"] == "rms_norm"}

    for dtype in ("float32", "float16", "bfloat16"):
        assert rows["a_hundred_off", dtype]["failed"] > 0
    assert any(
        "a_hundred_off: result 0 must be native's within" in text
        for text in why["conformance", "rms_norm.a_hundred_off"]
    )
    assert any("a_hundred_off" in what for part, what in why if part == "timings")
    assert not any(r["contender"] == "a_hundred_off" for r in found["timings"])
    assert "rms_norm.a_hundred_off" in said
    assert "device_check FAILED" in said

    never = why["conformance", "rms_norm.wide_only float16"]
    assert never == [
        'never ran: rejected: x.dtype is float16; needs dtype("x") in {float32} (27 cases)'
    ]
    assert rows["wide_only", "float32"]["cases"] == 27

    assert rows["narrow", "float32"]["refused"] == {
        'rejected: x.shape[-1] is 769; needs last_dim_at_most("x", 100)': 3
    }
    skipped = {note["what"]: note["why"] for note in found["skipped"]}
    assert skipped["rms_norm.narrow float32"].startswith("did not run in some cases: rejected: x.s")

    assert why["conformance", "rms_norm.elsewhere"] == [
        'did not run: rejected: x is on cpu; needs device("x") in {cuda}'
    ]
    assert why["conformance", "missing"] == ["expected here, but registered for no op"]
    assert skipped["rms_norm.not_built"] == "did not run: unsupported: there is no such library"
    for provider in ("native", "vllm_c"):
        assert all(r["failed"] == 0 for (p, _), r in rows.items() if p == provider)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_quick_run_on_the_gpu(tmp_path):
    """What the build has no kernels for is not expected, but all else must pass."""
    on_gpu = ("--device", "cuda", "--expect", "native", "--no-compiled")
    code, found, said = run_check(tmp_path, *on_gpu)
    assert code == 0, said
    assert {r["status"] for r in found["graphs"]} == {"ok"}
    assert any(r["basis"] == "graph" for r in found["timings"])


# --- where there is no GPU


def test_cuda_without_a_cuda_torch_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert device_check.main(["--device", "cuda"]) == 2
    assert capsys.readouterr().err == (
        "device_check: --device cuda needs a torch that was built for CUDA, "
        f"got torch {torch.__version__}. Install one, or say --device cpu.\n"
    )


def test_cuda_without_a_gpu_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_check.main([]) == 2
    assert capsys.readouterr().err == (
        f"device_check: --device cuda needs a GPU, and torch {torch.__version__} "
        "(CUDA 13.0) finds none. Look at nvidia-smi, or say --device cpu.\n"
    )


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device_check, "describe", lambda device: pytest.fail("it went on"))
    folder = tmp_path / "missing"
    cases = {
        folder / "found.json": f"needs the folder {folder}, and there is none. "
        "Make it, or name another file.",
        tmp_path: "can't be written: Is a directory. Name another file.",
    }
    for file, why in cases.items():
        assert device_check.main(["--device", "cpu", "--quick", "--json", str(file)]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"device_check: --json {file} {why}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_can_be_written_keeps_what_it_had(tmp_path):
    file = tmp_path / "found.json"
    file.write_text("of the last run")
    assert device_check.why_unwritable(file) == device_check.why_unwritable(None) == ""
    assert file.read_text() == "of the last run"


def a_tool(tmp_path, monkeypatch, text):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_clocks_are_those_of_the_tool(tmp_path, monkeypatch):
    a_tool(tmp_path, monkeypatch, "echo '570.1, 1980 MHz, 1980 MHz, 3201 MHz, 3201 MHz, 31, 700 W'")
    facts = device_facts.smi_facts()
    assert facts["driver_version"] == "570.1"
    assert (facts["clocks.sm"], facts["temperature.gpu"], facts["power.limit"]) == (
        "1980 MHz",
        "31",
        "700 W",
    )


def test_a_tool_that_fails_is_quoted(tmp_path, monkeypatch):
    a_tool(tmp_path, monkeypatch, "echo 'no driver'; exit 9")
    assert device_facts.smi_facts() == {"nvidia-smi": "exit code 9: no driver"}
    monkeypatch.setenv("PATH", "")
    assert device_facts.smi_facts() == {"nvidia-smi": "not on PATH"}


def test_a_cache_has_the_size_that_the_device_says(monkeypatch):
    assert [device_facts.parse_size(t) for t in ("32K", "32768K\n", "2M", "77")] == [
        *(32 * 1024, 32 * 2**20, 2 * 2**20),
        77,
    ]
    properties = SimpleNamespace(L2_cache_size=50 * 2**20)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert device_facts.cache_bytes("cuda") == 50 * 2**20
    assert device_facts.cache_bytes("cpu") >= 2**15


# --- bytes


@pytest.mark.parametrize(
    ("op", "dtype", "moved", "read"),
    [
        # rows 3, width 8, 2 bytes: x is 48, as is each other matrix; a weight is 16
        ("rms_norm", BF16, 48 + 48 + 16, 48),
        ("fused_add_rms_norm", BF16, 48 + 48 + 48 + 48 + 16, 48 + 48),
        ("silu_and_mul", BF16, 96 + 48, 96),
        ("gelu_and_mul", BF16, 96 + 48, 96),
        ("rms_norm", torch.float32, 96 + 96 + 32, 96),
        ("fused_add_rms_norm", torch.float32, 4 * 96 + 32, 192),
        ("silu_and_mul", torch.float32, 192 + 96, 192),
    ],
)
def test_the_bytes_of_a_call(op, dtype, moved, read):
    problem = Problem(op, 3, 8, dtype)
    assert (problem.bytes_moved, activation_bytes(problem)) == (moved, read)
    args = device_contenders.rotation(problem, "cpu", 0)[0]
    tensors = [a for a in args if isinstance(a, torch.Tensor) and a.dim() == 2]
    assert sum(t.nbytes for t in tensors) == read
    results = ir.IrOp.registry[op](*args)
    results = results if isinstance(results, tuple) else (results,)
    weights = [a for a in args if isinstance(a, torch.Tensor) and a.dim() == 1]
    assert sum(t.nbytes for t in (*tensors, *results, *weights)) == moved
    copy = device_contenders.copy_of_the_same_bytes(problem, "cpu", 0)
    assert sum(t.nbytes for t in copy.sets[0]) == moved


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cache", [0, 10_000, 1_000_000])
def test_a_rotation_exceeds_the_cache(op, cache):
    problem = Problem(op, 4, 64, BF16)
    sets = device_contenders.rotation(problem, "cpu", cache)
    copies = device_contenders.copy_of_the_same_bytes(problem, "cpu", cache).sets
    first = [[a for a in s if isinstance(a, torch.Tensor) and a.dim() == 2] for s in sets]
    places = {(t.data_ptr(), t.nbytes) for tensors in first for t in tensors}
    assert len(places) == sum(map(len, first)) >= 2  # no two share memory
    assert sum(size for _, size in places) > cache
    assert len({source.data_ptr() for _, source in copies}) == len(copies) >= 2
    assert sum(source.nbytes for _, source in copies) > cache


def test_more_sets_than_the_cache_holds():
    assert set_count(read_bytes=8192, cache=50 * 2**20) == 9601
    assert set_count(read_bytes=2**30, cache=50 * 2**20) == 2


def test_goals_are_those_of_the_design():
    large = Problem("rms_norm", 4096, 4096, BF16)
    (reached,), (missed,) = (goals_of(large, "vllm_c", of_copy) for of_copy in (0.91, 0.89))
    assert str(reached).startswith("rms_norm bfloat16 4096x4096: vllm_c ÷ copy")
    assert (reached.reached, missed.reached) == (True, False)
    assert goals_of(Problem("rms_norm", 256, 4096, BF16), "vllm_c", 0.1) == []
    assert goals_of(Problem("rms_norm", 100_000, 128, BF16), "vllm_c", 0.1) == []
    assert goals_of(Problem("silu_and_mul", 8192, 8192, BF16), "vllm_c", 0.1) == []


# --- time


def test_what_did_not_fit_is_listed(tmp_path, capsys):
    file = tmp_path / "found.json"
    options = ["--device", "cpu", "--quick", "--seconds", "0", "--json", str(file)]
    assert device_check.main(options) == 1
    found = json.loads(file.read_text())
    skipped = {note["what"]: note["why"] for note in found["skipped"]}
    for problem in problems(quick=True):
        assert skipped[str(problem)] == "no time was left"
    assert skipped["rms_norm.vllm_c bfloat16: 27 cases"] == "no time was left"
    failed = {note["what"]: note["why"] for note in found["failures"]}
    assert failed["rms_norm.vllm_c bfloat16"] == "never ran: no time was left"
    assert found["timings"] == []
    assert "rms_norm bfloat16 16x4096: no time was left" in capsys.readouterr().out


@pytest.mark.parametrize("expected", [["vllm_c"], ["native"]])
def test_time_that_ends_halfway_fails_only_who_was_expected(expected):
    """A clock that goes on by one second a look: 20 of 27 cases are begun."""
    ticks = iter(range(1000))
    found, impl = findings(), ir.ops.silu_and_mul.impls["vllm_c"]
    budget = Budget(20.5, clock=lambda: float(next(ticks)))
    device_conformance.check_provider(found, impl, "cpu", device_cases.QUICK, expected, budget)
    assert sum(row.cases for row in found.conformance) == 20
    assert all(row.cases for row in found.conformance)
    cut = [row for row in found.conformance if row.skipped]
    failed = [
        f"conformance: silu_and_mul.vllm_c {row.dtype}: expected, but {row.skipped} of 9 cases did "
        "not run: no time was left; give more with --seconds"
        for row in cut
    ]
    skipped = [
        f"conformance: silu_and_mul.vllm_c {row.dtype}: {row.skipped} cases: no time was left"
        for row in cut
    ]
    must = expected == ["vllm_c"]
    assert [str(note) for note in found.failures] == (failed if must else [])
    assert [str(note) for note in found.skipped] == ([] if must else skipped)
    found.finished = True
    assert found.to_dict()["verdict"]["passed"] is not must
    lines = list(table(found))
    assert lines[-1].startswith("device_check FAILED: " if must else "device_check passed: ")
    assert f"  {(failed if must else skipped)[0]}" in lines


def test_time_that_ends_before_the_graphs_fails_only_who_was_expected():
    found = graph_findings(FakeCuda(), seconds=0)
    assert found.graphs == []
    left_out = [
        f"{check}, {problem}"
        for problem in ("1x4096 bfloat16", "33x1024 float16", "5x768 float32")
        for check in device_graphs.CHECKS
    ]
    assert [note.what for note in found.failures] == [f"vllm_c: {text}" for text in left_out]
    assert [note.what for note in found.skipped] == [f"native: {text}" for text in left_out]
    assert {note.why for note in [*found.failures, *found.skipped]} == {"no time was left"}


def test_a_budget_counts_from_its_making():
    now = [10.0]
    budget = Budget(100, clock=lambda: now[0])
    now[0] = 30.0
    part = budget.part(0.5)
    assert (budget.spent, budget.left, part.seconds) == (20, 80, 40)
    now[0] = 200.0
    assert (part.left, budget.part(0.5).seconds) == (-130, 0)


def test_a_part_that_stops_is_a_failure_and_keeps_what_was_found(tmp_path, capsys):
    found = Findings({}, {}, json_file=tmp_path / "found.json")
    found.write()
    assert json.loads(found.json_file.read_text())["verdict"]["finished"] is False

    def stop():
        raise RuntimeError("an illegal memory access")

    device_check.part(found, "graphs", stop)
    found.finished = True
    assert not found.verdict["passed"]
    (note,) = json.loads(found.json_file.read_text())["failures"]
    assert note == {
        "part": "graphs",
        "what": "the part stopped",
        "why": "RuntimeError: an illegal memory access",
    }
    assert "Traceback" in capsys.readouterr().err
    assert "graphs: the part stopped: RuntimeError: an illegal memory access" in "\n".join(
        table(found)
    )


def test_json_has_no_number_that_json_lacks():
    assert finite({"a": [1.5, math.inf], "b": (math.nan,), "c": "x"}) == {
        "a": [1.5, "inf"],
        "b": ["nan"],
        "c": "x",
    }


# --- the clock


def adding(seen):
    def call(i):
        seen.append(i)
        return -i

    return call


def test_a_walk_goes_on_where_it_ended_and_keeps_results():
    seen, kept = [], [None] * 3
    contender = device_contenders.Contender("c", adding(seen), ((1,), (2,), (3,)))
    walk = Walk(contender, kept)
    walk.run(2)
    assert kept == [-1, -2, None]
    walk.run(3)
    assert seen == [1, 2, 3, 1, 2]
    assert kept == [-1, -2, -3]


def test_results_that_are_not_new_leave_the_kept_ones_alone():
    kept = ["memory"] * 2
    contender = device_contenders.Contender("c", abs, ((1,), (2,)), fresh=False)
    Walk(contender, kept).run(4)
    assert kept == ["memory"] * 2


def test_rounds_take_turns_and_divide_by_the_calls():
    order = []

    class Ticks(HostClock):
        def time(self, batch):
            batch()
            return 600.0

    lanes = [
        Lane(name, lambda name=name: order.append(name), calls)
        for name, calls in (("a", 1), ("b", 2), ("c", 3))
    ]
    spent = Budget(0)
    assert [s.median for s in rounds_of(lanes, Ticks(), spent)] == [600, 300, 200]
    assert "".join(order) == "abcbcacab"


def test_the_median_and_the_noise():
    assert spread([5.0, 1.0, 2.0, 3.0, 100.0]) == (3.0, 1.5, 5)


# --- graphs, on a stand-in


def graph_findings(cuda, seconds=60):
    """Make the graph checks as on a GPU, with tensors on the CPU."""
    found, budget = findings(), Budget(seconds)
    assert {"native", "vllm_c"} <= set(device_graphs.providers())
    for provider in ("native", "vllm_c"):
        own = device_graphs.ops_of(provider, "cpu")
        device_graphs.check_provider(found, provider, own, "cpu", ["vllm_c"], budget, cuda)
    return found


def test_graphs_and_streams_give_the_bits_of_eager():
    cuda = FakeCuda()
    found = graph_findings(cuda)
    assert [str(note) for note in found.failures] == []
    checks = {(r.provider, r.check, r.problem) for r in found.graphs}
    assert len(checks) == 2 * len(device_graphs.CHECKS) * len(device_graphs.PROBLEMS)
    assert {r.status for r in found.graphs} == {"ok"}
    assert {r.ops for r in found.graphs} == {", ".join(OPS)}
    assert found.verdict["graph_checks"] == len(checks)
    assert f", {len(checks)} graph checks, " in list(table(found))[-1]


def test_a_capture_is_warmed_up_on_a_side_stream():
    cuda, calls = FakeCuda(), []
    _, value = device_graphs.captured(cuda, lambda: calls.append(cuda._current.name))
    assert (calls, value) == (["side"] * device_graphs.WARM_UPS + ["main"], None)
    assert cuda.log == ["side waits for main", "on side", "main waits for side", "capture"]


def test_a_graph_that_replays_nothing_is_found(monkeypatch):
    monkeypatch.setattr(FakeGraph, "replay", lambda self: None)
    found = graph_findings(FakeCuda())
    broken = {r.check for r in found.graphs if r.status != "ok"}
    assert broken == {"graph, functional", "graph, in place"}
    assert all("other bits than eager in results" in note.why for note in found.failures)
    assert {note.what.partition(":")[0] for note in found.failures} == {"native", "vllm_c"}


def test_a_capture_that_raises_is_a_failure_with_its_text(monkeypatch):
    def refuse(self, graph):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(FakeCuda, "graph", refuse)
    found = graph_findings(FakeCuda())
    assert {r.status for r in found.graphs if r.check != "side stream"} == {
        "RuntimeError: operation not permitted when stream is capturing"
    }


def test_a_chain_with_other_bits_on_a_side_stream_is_found(monkeypatch):
    cuda = FakeCuda()

    def by_stream(*inputs):
        return tuple(t + (cuda.current_stream().name == "side") for t in inputs)

    monkeypatch.setitem(device_graphs.CHAINS, "functional", by_stream)
    status = device_graphs.side_stream(cuda, 2, 8, torch.float32, "cpu")
    assert status == "functional chain: other bits than eager in results 0, 1, 2, 3"
    assert cuda.log == ["side waits for main", "on side", "sleep", "synchronize"]


def test_a_provider_that_does_not_run_in_a_chain_is_found(monkeypatch):
    monkeypatch.setitem(
        device_graphs.CHECKS,
        "graph, functional",
        lambda *_: "",  # a chain without an op
    )
    found = findings()
    device_graphs.check_provider(found, "vllm_c", ["rms_norm"], "cpu", [], Budget(60), FakeCuda())
    assert "vllm_c did not run rms_norm" in {r.status for r in found.graphs}


def test_times_of_graphs_are_measured_beside_launches():
    problem, found = Problem("fused_add_rms_norm", 4, 64, BF16), findings()
    with torch.inference_mode():
        device_timings.measure_problem(
            found, problem, "cpu", False, 4096, EventClock(FakeCuda()), Budget(0)
        )
    rows = {r.contender: r for r in found.timings}
    assert list(rows) == ["copy", "native", "vllm_c", "vllm_c in place"]
    copy, ours = rows["copy"], rows["vllm_c"]
    assert (rows["native"].graph_us, rows["native"].basis) == (None, "eager")
    assert rows["native"].graph_note == "native launches too many kernels"
    for row in (copy, ours, rows["vllm_c in place"]):
        assert (row.basis, row.graph_note) == ("graph", "")
        assert row.graph_us > 0
    assert ours.of_copy == pytest.approx(
        (ours.bytes_moved / ours.graph_us) / (copy.bytes_moved / copy.graph_us)
    )
    text = "\n".join(table(found))
    assert f"{rows['native'].eager_us:.2f}*" in text
    assert "  * launched from the host, where others are replayed from a graph" in text


def noisy_row(own, of_copy, label="vllm_c", basis="graph"):
    """Return the row of a contender of 200 us beside a copy of 100 us, with a noise of each."""
    problem = Problem("rms_norm", 4096, 4096, BF16)
    sets = ((torch.empty(2**20),),)
    copy = device_contenders.Contender("copy", abs, sets)
    ours = device_contenders.Contender(label, abs, sets, provider=label)
    times = {"copy": Spread(1e5, of_copy * 1e5, 9), label: Spread(2e5, own * 2e5, 9)}
    still = {"copy": Spread(1e5, 0.0, 9), label: Spread(2e5, 0.0, 9)}
    pair = (still, times) if basis == "graph" else (times, {})
    row = device_timings.timed(problem, copy if label == "copy" else ours, copy, *pair, "")
    assert row.basis == basis
    return row


@pytest.mark.parametrize("basis", ["graph", "eager"])
@pytest.mark.parametrize(
    ("own", "of_copy", "time", "fraction"),
    [
        (0.09, 0.09, "200.00", "number"),
        (0.11, 0.0, "200.00~", "~"),
        (0.0, 0.11, "200.00", "~"),
        (0.5, 0.5, "200.00~", "~"),
    ],
)
def test_noisy_times_are_marked_and_compared_with_nothing(basis, own, of_copy, time, fraction):
    row = noisy_row(own, of_copy, basis=basis)
    assert row.noise == pytest.approx(own)
    assert row.noisy is (fraction == "~")
    told = device_table.cell(row, replayed=False).split()
    assert told == [time, f"{row.of_copy:.2f}" if fraction == "number" else "~"]
    found = findings()
    found.timings.append(row)
    foot = "  ~ noise above 10% of the time; such a time is compared with nothing"
    assert (foot in list(table(found))) is row.noisy


def test_a_goal_is_not_judged_by_noisy_times():
    problem = Problem("rms_norm", 4096, 4096, BF16)
    (clear,) = device_timings.goals_for(problem, noisy_row(0.01, 0.01), "cuda")
    assert str(clear).endswith(" pass")
    for own, of_copy in ((0.11, 0.0), (0.0, 0.11)):
        (goal,) = device_timings.goals_for(problem, noisy_row(own, of_copy), "cuda")
        assert str(goal).endswith("≥ 0.9       too noisy to tell")
        assert not goal.reached
    assert device_timings.goals_for(problem, noisy_row(0.0, 0.0), "cpu") == []
    assert device_timings.goals_for(problem, noisy_row(0.0, 0.0, "native"), "cuda") == []


def test_a_walk_that_is_too_long_gets_no_graph():
    contender = device_contenders.Contender("c", abs, ((1,),) * 20_001)
    assert device_timings.try_graph(contender, EventClock(FakeCuda())) == (
        None,
        "too many sets for a graph",
    )


# --- contenders


def test_a_contender_with_wrong_results_gets_no_time():
    problem = Problem("rms_norm", 4, 64, BF16)
    sets = device_contenders.rotation(problem, "cpu", 0)
    wrong = device_contenders.Contender("theirs", lambda x, w, eps: x, sets)
    found, told = findings(), []
    assert not device_timings.admitted(found, wrong, problem, lambda *note: told.append(note))
    assert found.failures == []
    assert told[0][0] == "theirs"
    assert told[0][1].startswith("not native's result: Tensor-likes are not close!")


def test_results_may_lie_in_the_arguments():
    problem = Problem("fused_add_rms_norm", 4, 64, BF16)
    sets = device_contenders.rotation(problem, "cpu", 0)

    def into_arguments(x, residual, w, eps):
        torch.ops.vllm_ir_C.fused_add_rms_norm_(x, residual, w, eps, None)

    before = sets[0][0].clone()
    ours = device_contenders.Contender("in place", into_arguments, sets, fresh=False)
    assert device_contenders.check(ours, problem) == ""
    assert torch.equal(sets[0][0], before)


@pytest.mark.parametrize("op", OPS)
def test_packages_of_others_are_called_as_they_say(op, monkeypatch):
    """Stand-ins with the parameters of those packages, computed by native."""
    norm, fused = (ir.IrOp.registry[n].impls["native"].impl_fn for n in OPS[:2])

    def in_place(input, residual, weight, eps=1e-6):
        normed, total = fused(input, residual, weight, eps)
        input.copy_(normed)
        residual.copy_(total)

    def quack(x, weight=None, bias=None, residual=None, *, eps=1e-6, prenorm=False):
        if residual is None:
            return norm(x, weight, eps)
        assert prenorm
        return fused(x, residual, weight, eps)

    modules = {
        "flashinfer.norm": SimpleNamespace(
            rmsnorm=lambda input, weight, eps=1e-6, out=None: norm(input, weight, eps),
            fused_add_rmsnorm=in_place,
        ),
        "flashinfer.activation": SimpleNamespace(
            silu_and_mul=ir.ops.silu_and_mul, gelu_and_mul=ir.ops.gelu_and_mul
        ),
        "quack.rmsnorm": SimpleNamespace(rmsnorm=quack),
        "liger_kernel.transformers.functional": SimpleNamespace(
            liger_rms_norm=lambda X, W, eps, in_place=True: norm(X, W, eps),
            liger_fused_add_rms_norm=lambda X, R, W, eps, in_place=True: fused(X, R, W, eps),
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    device_contenders.absent_packages.cache_clear()
    try:
        assert device_contenders.absent_packages() == {}
        problem, told = Problem(op, 4, 64, BF16), []
        rows = device_contenders.contenders_of(problem, "cpu", 0, False, lambda *n: told.append(n))
        others = [r for r in rows if r.label.split()[0] in ("flashinfer", "quack", "liger")]
        assert len(others) == len(device_contenders.OTHERS[op])
        for row in others:
            assert device_contenders.check(row, problem) == "", row.label
            assert row.fresh == (not row.label.endswith("in place"))
    finally:
        device_contenders.absent_packages.cache_clear()


# --- conformance


def test_a_layout_keeps_values_between_rows_of_nan():
    t = device_cases.normal((4, 6), seed=1)
    for layout in ("contiguous", "row stride", "unaligned"):
        laid = device_cases.lay_out(t, layout)
        assert torch.equal(laid, t)
        storage = torch.empty(0).set_(laid.untyped_storage())
        assert storage.isnan().sum() == storage.numel() - t.numel()
    assert device_cases.lay_out(t, "unaligned").data_ptr() % 8 == 4
    assert device_cases.lay_out(t, "row stride").stride() == (18, 1)
    assert device_cases.lay_out(t, "three dims").shape == (2, 2, 6)
    with pytest.raises(ValueError, match=r"^No layout is called 'diagonal'\.$"):
        device_cases.lay_out(t, "diagonal")


def test_the_matrix_has_every_dtype_weight_layout_and_special_row():
    for op in map(ir.IrOp.registry.get, OPS):
        for shapes in (device_cases.QUICK, device_cases.FULL):
            cases = [c for d in device_cases.DTYPES for c in device_cases.cases_of(op, d, shapes)]
            assert {c.dtype for c in cases} == set(device_cases.DTYPES)
            assert {c.shape.layout for c in cases} >= {"contiguous", "row stride", "unaligned"}
            assert {c.shape.values for c in cases} >= {"normal", "nan row", "inf row"}
            assert any(c.shape.rows == 0 for c in cases)
            assert any(c.shape.width % 2 for c in cases)
            if op.name in device_cases.NORMS:
                assert {c.weight for c in cases} == set(device_cases.WEIGHTS)
        if op.name == "gelu_and_mul":
            assert {c.more for c in cases} == {("none",), ("tanh",)}


def test_a_provider_that_ran_another_one_is_a_failure(monkeypatch):
    """Native's answer is right, but it isn't the provider's."""
    impl = ir.ops.silu_and_mul.impls["vllm_c"]
    monkeypatch.setattr(device_conformance, "refusal", lambda *args: "")
    found = findings()
    case = next(device_cases.cases_of(impl.op, torch.float32, (device_cases.Shape(2, 8),)))
    monkeypatch.setattr(
        device_cases.Case, "args", lambda self, device: (torch.ones(2, 8, dtype=torch.float64),)
    )
    row = device_conformance.new_row(impl, torch.float32)
    device_conformance.check_case(found, row, impl, case, "cpu")
    assert row.failed == 1
    (note,) = found.failures
    assert "vllm_ir.silu_and_mul.vllm_c: it must be the one that runs, got native" in note.why
    assert "rejected: x.dtype is float64" in note.why


def test_progress_says_how_late_it_is(capsys):
    now = [0.0]
    progress = Progress(Budget(420, clock=lambda: now[0]))
    now[0] = 7.4
    progress("timing a thing")
    assert capsys.readouterr().out == "[    7 s of 420] timing a thing\n"
