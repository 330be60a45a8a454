# SPDX-License-Identifier: Apache-2.0
"""The pass `sequence_parallelism` in two real processes, against the model as it is written."""

import json
from pathlib import Path

import pytest
from processes import run_python

pytestmark = pytest.mark.slow
# The fused op doesn't round the sum in front of the norm; everything else is the same bits.
TOLERANCE = {"float32": 0.0, "bfloat16": 2e-2, "float16": 3e-3}
WHOLE = {"all_reduce": 3, "reduce_scatter_tensor": 0, "all_gather_into_tensor": 0}
DIVIDED = {"all_reduce": 0, "reduce_scatter_tensor": 3}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return what each of the ranks saw."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("sequence_parallel_ranks.py")
    done = run_python(str(script), str(folder))
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_every_form_dtype_and_weight_gives_the_values_of_the_plain_model(seen):
    for rank in seen:
        assert len(rank["graphs"]) == 54
        for case in rank["graphs"]:
            by_a_pass = case["form"] == "fused by a pass"
            allowed = TOLERANCE[case["dtype"]] if by_a_pass else 0.0
            assert case["difference"] <= allowed, case


def test_a_layer_has_a_reduce_scatter_and_an_all_gather(seen):
    for case in seen[0]["graphs"]:
        gathers = 3 + case["residual"]  # the residual only at the end, for the caller
        assert case["calls"] == {**DIVIDED, "all_gather_into_tensor": gathers}, case
        norm = "rms_norm" if case["form"] == "apart" else "fused_add_rms_norm"
        assert case["ops"] == ["rms_norm", *[norm] * 3]


def test_random_programs_keep_their_values(seen):
    for rank in seen:
        for case in rank["random"]:
            assert case["difference"] <= 1e-6, case
    assert sum(case["scattered"] for case in seen[0]["random"]) > 60
    assert [c["scattered"] for c in seen[0]["random"]] == [
        c["scattered"] for c in seen[1]["random"]
    ]


def test_compiled_code_is_right_for_every_batch_and_sends_what_the_report_says(seen):
    for rank in seen:
        for run in (rank["first"], rank["again"]):  # "again" has its code from the caches
            assert set(run["differences"].values()) == {0.0}
            for rows, ran in run["ran"].items():
                divided = {**DIVIDED, "all_gather_into_tensor": 4}
                assert ran == (WHOLE if int(rows) % 2 else divided), rows


def test_even_and_odd_batches_have_one_graph_each(seen):
    for rank in seen:
        even, odd = rank["first"]["report"]["graphs"]
        assert [f["matched"] for f in even["fusions"]] == [True] * 3
        assert [f["matched"] for f in odd["fusions"]] == [False] * 3
        for graph in (even, odd):
            ran = [n["selected"] for n in graph["nodes"] if n["op"] == "fused_add_rms_norm"]
            assert ran == ["vllm_c"] * 3
            kept = [c["activation"] for n in graph["nodes"] for c in n["clones"] if c["kept"]]
            assert kept == ["x_residual"]  # the caller's own, of the first layer


def test_the_second_compilation_came_from_the_caches(seen):
    for rank in seen:
        assert [g["cached"] for g in rank["again"]["report"]["graphs"]] == [True, True]
