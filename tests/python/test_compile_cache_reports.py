# SPDX-License-Identifier: Apache-2.0
"""Reports outlive the passes: in the process, and beside the code that a cache kept."""

import dataclasses
import json
import os
import stat
import threading

import pytest
import torch
from torch._dynamo.utils import counters
from toys import new_toy

import vllm_ir as ir
from vllm_ir.compile import sink
from vllm_ir.compile.report import GraphReport, NodeReport
from vllm_ir.explanation import Decision

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

X = torch.ones(2, 3)


def report_of(kind="forward", node="rms_norm"):
    decision = Decision("native", "selected", "", "file.py:1")
    return GraphReport(
        kind, [NodeReport(node, "rms_norm", "", "", "native", ["native"], [decision])]
    )


@pytest.fixture
def key():
    """A key that nobody else has; its entry is closed in the end."""
    name = f"test-{threading.get_ident()}-{os.urandom(8).hex()}"
    yield name
    sink.close_entry(name)


def test_reports_are_kept_in_order(key):
    sink.open_entry(key)
    assert sink.graphs(key) == []
    first, second = report_of(), report_of("backward")
    sink.add(key, first)
    sink.add(key, second)
    assert sink.graphs(key) == [first, second]
    sink.close_entry(key)
    assert sink.graphs(key) == []


def test_a_report_that_comes_without_an_entry_is_kept(key):
    sink.add(key, report_of())
    assert sink.graphs(key) == [report_of()]


def test_a_later_compilation_finds_the_file(key, tmp_path):
    path = str(tmp_path / "reports" / "a.json")
    sink.open_entry(key, path)
    sink.add(key, report_of())
    sink.open_entry(key, path)  # as another process would, on a hit
    (found,) = sink.graphs(key)
    assert found.cached
    assert found.nodes == report_of().nodes
    assert os.listdir(tmp_path / "reports") == ["a.json"]


def test_what_runs_takes_the_place_of_what_was_kept(key, tmp_path):
    path = str(tmp_path / "a.json")
    sink.open_entry(key, path)
    sink.add(key, report_of("forward", "old"))
    sink.add(key, report_of("backward", "old"))
    sink.open_entry(key, path)
    sink.add(key, report_of("forward", "new"))
    assert sorted((g.kind, g.nodes[0].node, g.cached) for g in sink.graphs(key)) == [
        ("backward", "old", True),
        ("forward", "new", False),
    ]


def test_reports_for_several_sizes_are_kept_side_by_side(key, tmp_path):
    path = str(tmp_path / "a.json")
    variants = {"even": ["Eq(Mod(s7, 2), 0)"], "odd": ["Ne(Mod(s7, 2), 0)", "(s7//2) > 1"]}
    for node, guards in variants.items():
        sink.open_entry(key, path, {"s7": 8})
        sink.add(key, dataclasses.replace(report_of(node=node), guards=guards))
    found = {}
    for size in (4, 5, 3):
        sink.open_entry(key, path, {"s7": size})
        found[size] = [g.nodes[0].node for g in sink.graphs(key)]
    assert found == {4: ["even"], 5: ["odd"], 3: []}
    sink.open_entry(key, path, {"another": 4})
    assert sink.graphs(key) == []


def test_the_dtype_that_autocast_gives_tells_reports_apart(fresh_cache):
    op = new_toy("a")
    op.set_default(["a"])
    kinds = []
    for autocast in (False, True, False):
        torch._dynamo.reset()
        f = torch.compile(lambda x: op(x @ x.t()) * 3, backend="vllm_ir", fullgraph=True)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            f(X)
        kinds.append([g.cached for g in ir.explain(f).graphs])
    assert kinds == [[False], [False], [True]]


def test_the_file_is_readable_for_all_who_share_the_folder(key, tmp_path):
    old = os.umask(0o022)
    try:
        path = tmp_path / "a.json"
        sink.add(key, report_of(), str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    finally:
        os.umask(old)


@pytest.mark.parametrize("place", ["a file is in the way", "the file is a folder"])
def test_a_folder_that_can_t_be_written_costs_a_message(key, tmp_path, caplog, place):
    caplog.set_level("INFO", logger="vllm_ir")
    if place == "a file is in the way":
        (tmp_path / "reports").write_text("")
        path = tmp_path / "reports" / "a.json"
        error = f"[Errno 17] File exists: '{path.parent}'"
    else:
        path = tmp_path / "a.json"
        path.mkdir()
        error = None
    sink.add(key, report_of(), str(path))
    (message,) = [m for m in caplog.messages if "can't be kept" in m]
    assert message.startswith("vllm_ir.compile: the report can't be kept for cache hits: ")
    if error:
        assert message.endswith(error)
    assert [g for g in sink.graphs(key) if not g.cached] == [report_of()]
    assert len(os.listdir(tmp_path)) == 1  # nothing unfinished is left


BAD = {
    "empty": "",
    "half of it": '[{"kind": "forward", "nodes": [',
    "no list": "7",
    "of another version": '[{"kind": "forward", "nodes": [{"name": "x"}], "fusions": []}]',
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", BAD)
def test_a_file_that_can_t_be_understood_costs_a_message(key, tmp_path, caplog, content):
    caplog.set_level("INFO", logger="vllm_ir")
    path = tmp_path / "a.json"
    data = BAD[content]
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    sink.open_entry(key, str(path))
    assert sink.graphs(key) == []
    (message,) = caplog.messages
    assert message.startswith(f"vllm_ir.compile: the kept report {path} can't be read: ")
    sink.add(key, report_of(), str(path))  # and it is replaced
    assert [g["kind"] for g in json.loads(path.read_text())] == ["forward"]


def test_a_file_that_is_gone_is_no_error(key, tmp_path, caplog):
    caplog.set_level("INFO", logger="vllm_ir")
    sink.open_entry(key, str(tmp_path / "gone.json"))
    assert sink.graphs(key) == []
    assert caplog.messages == []


def test_many_threads_lose_nothing(key, tmp_path):
    path = str(tmp_path / "a.json")
    sink.open_entry(key, path)

    def add(kind):
        for i in range(20):
            sink.add(key, report_of(kind, f"{kind}{i}"), path)

    threads = [threading.Thread(target=add, args=(f"kind{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sink.graphs(key)) == 80
    assert len(json.loads((tmp_path / "a.json").read_text())) == 80


# ---- through Inductor ----------------------------------------------------------------------------


@pytest.fixture
def fresh_cache():
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    counters.clear()
    with fresh_cache():
        yield
    torch._dynamo.reset()


def compiled_twice(between=lambda: None):
    """Compile the same function twice on one cache, and return both reports."""
    op = new_toy("a")
    op.set_default(["a"])
    reports = []
    for step in range(2):
        torch._dynamo.reset()
        f = torch.compile(lambda x: op(x) * 3, backend="vllm_ir", fullgraph=True)
        with torch.no_grad():
            torch.testing.assert_close(f(X), X * 3)
        reports.append(ir.explain(f))
        if step == 0:
            between()
    return reports


def test_h10_a_hit_has_its_report(fresh_cache):
    first, second = compiled_twice()
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert [g.cached for g in (*first.graphs, *second.graphs)] == [False, True]
    assert first.nodes == second.nodes
    assert "code from a cache" in str(second)


def test_equal_graphs_behind_autograd_share_a_report(fresh_cache):
    """Inductor's cache has the code of another function; then AOTAutograd's has the second's."""
    op = new_toy("a")
    op.set_default(["a"])
    spellings = [lambda x: op(x) * 3, lambda x: torch.mul(op(x), 3), lambda x: torch.mul(op(x), 3)]
    reports = []
    for function in spellings:
        torch._dynamo.reset()
        f = torch.compile(function, backend="vllm_ir", fullgraph=True)
        with torch.no_grad():
            torch.testing.assert_close(f(X), X * 3)
        reports.append(ir.explain(f))
    assert (
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
        >= 2
    )
    assert [[g.cached for g in r.graphs] for r in reports] == [[False], [True], [True]]
    assert reports[0].nodes == reports[1].nodes == reports[2].nodes


def test_a_hit_whose_report_was_deleted_is_right_all_the_same(fresh_cache):
    def delete():
        folder = os.path.dirname(sink.side_file("x"))
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))

    _, second = compiled_twice(delete)
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert second.graphs == ()


def test_h2_in_one_process_in_both_orders(fresh_cache):
    op = ir.ops.fused_add_rms_norm
    op.set_default(["vllm_c", "native"])
    weight = torch.ones(16)

    def donating(x, residual):
        y, total = op.maybe_inplace(x, residual, weight, 1e-6)
        return y + 1, total + 1

    def functional(x, residual):
        y, total = op(x, residual, weight, 1e-6)
        return y + 1, total + 1

    for order in ([donating, functional], [functional, donating]):
        counters.clear()
        with torch._inductor.utils.fresh_cache(), torch.no_grad():
            for f in order:
                torch._dynamo.reset()
                args = torch.randn(4, 16), torch.randn(4, 16)
                before = [a.clone() for a in args]
                expected = functional(*before)
                got = torch.compile(f, backend="vllm_ir", fullgraph=True)(*args)
                torch.testing.assert_close(got, expected)
                kept = [torch.equal(a, b) for a, b in zip(args, before, strict=True)]
                assert kept == [f is functional] * 2
        assert counters["inductor"]["fxgraph_cache_miss"] == 2
        assert counters["inductor"]["fxgraph_cache_hit"] == 0
