# SPDX-License-Identifier: Apache-2.0
"""The pass `sequence_parallelism` on graphs: what becomes of the collectives, and what is left.

The process group here only says who is in it; values are tested by two real processes in
`test_compile_sequence_parallelism_ranks.py`.
"""

import operator
import re

import pytest
import torch
from fusion_graphs import Fused
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import vllm_ir as ir
from vllm_ir.compile import CompileConfig, fusion
from vllm_ir.compile.collect import is_donating

C10D = torch.ops._c10d_functional
ALL_REDUCE, WAIT = C10D.all_reduce.default, C10D.wait_tensor.default
REDUCE_SCATTER = C10D.reduce_scatter_tensor.default
ALL_GATHER = C10D.all_gather_into_tensor.default
SLICE = torch.ops.aten.slice.Tensor
CONFIG = CompileConfig(fusions=("sequence_parallelism",))
BOTH = CompileConfig(fusions=("add_rms_norm", "sequence_parallelism"))
RANK, RANKS, HIDDEN = 1, 2, 16


@pytest.fixture(autouse=True)
def ranks():
    """Be rank 1 of 2."""
    distributed.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=RANKS)
    yield
    distributed.destroy_process_group()


def reduced(x, kind="sum", group=None):
    name = (group or distributed.group.WORLD).group_name
    return C10D.wait_tensor(C10D.all_reduce(x, kind, name))


def sample(rows: int = 8, dtype: torch.dtype = torch.float32):
    return torch.ones(rows, HIDDEN, dtype=dtype), torch.ones(HIDDEN, HIDDEN, dtype=dtype)


def layers(x, w, n):
    """Run layers as a model does, with the fused op."""
    y, r = ir.ops.rms_norm(x, None, 1e-6), x
    for _ in range(n):
        y, r = ir.ops.fused_add_rms_norm(reduced(y @ w), r, None, 1e-6)
    return y, r


def chain(x, w):
    return layers(x, w, 3)[0]


def one_layer(x, w):
    return layers(x, w, 1)[0]


def counted(fused: Fused) -> dict[str, int]:
    names = {
        "all_reduce": ALL_REDUCE, "reduce_scatter": REDUCE_SCATTER, "all_gather": ALL_GATHER,
        "cuts": SLICE,
    }  # fmt: skip
    return {name: n for name, target in names.items() if (n := len(fused.calls(target)))}


def gathered(fused: Fused) -> list[str]:
    """Return what is gathered: "norm" or "sum" of a fused op, else the node's name."""
    found = []
    for gather in fused.calls(ALL_GATHER):
        value = gather.args[0]
        if value.target is operator.getitem:
            found.append(("norm", "sum")[value.args[1]])
        else:
            found.append(value.name)
    return found


def test_a_chain_keeps_the_residual_divided():
    fused = Fused(chain, *sample(), config=CONFIG)
    assert counted(fused) == {"reduce_scatter": 3, "all_gather": 3, "cuts": 1}
    assert gathered(fused) == ["norm", "norm", "norm"]
    assert fused.ops == ["rms_norm", *["fused_add_rms_norm"] * 3]
    for node in fused.calls(torch.ops.vllm_ir.fused_add_rms_norm.default):
        assert [a.meta["val"].shape for a in node.args[:2]] == [(4, HIDDEN), (4, HIDDEN)]
    (cut,) = fused.calls(SLICE)
    assert cut.args == (fused.gm.graph.find_nodes(op="placeholder")[0], 0, 4, 8)


def test_the_report_counts_collectives_and_bytes_of_each_layer():
    fused = Fused(lambda x, w: layers(x, w, 3), *sample(), config=CONFIG)
    row = HIDDEN * 4
    assert [r.costs for r in fused.rows] == [
        {
            "before": {"all_reduce": 1, "bytes_per_row": row},
            "after": {"reduce_scatter": 1, "all_gather": gathers, "bytes_per_row": sent},
        }
        for gathers, sent in ((1, row), (1, row), (2, row * 3 // 2))
    ]
    assert fused.said[0] == (
        "sequence_parallelism at all_reduce: reduce_scatter in place of all_reduce; rows of each "
        "rank: fused_add_rms_norm; cut: x_1; gathered: getitem; before: all_reduce 1, "
        "bytes_per_row 64; after: reduce_scatter 1, all_gather 1, bytes_per_row 64"
    )


def test_a_residual_that_is_read_is_gathered_once_where_it_is_read():
    def model(x, w):
        y, r = ir.ops.fused_add_rms_norm(reduced(x @ w), x, None, 1e-6)
        y, r2 = ir.ops.fused_add_rms_norm(reduced(y @ w), r, None, 1e-6)
        return y, r * 2, torch.relu(r), r2.shape[0]

    fused = Fused(model, *sample(), config=CONFIG)
    assert counted(fused) == {"reduce_scatter": 2, "all_gather": 3, "cuts": 1}
    assert gathered(fused) == ["norm", "sum", "norm"]


def test_an_embedding_is_scattered_and_is_the_first_residual():
    def model(x, w):
        h = reduced(x)
        y = ir.ops.rms_norm(h, None, 1e-6)
        return ir.ops.fused_add_rms_norm(reduced(y @ w), h, None, 1e-6)[0]

    fused = Fused(model, *sample(), config=CONFIG)
    assert counted(fused) == {"reduce_scatter": 2, "all_gather": 2}


def test_a_norm_of_a_norm_needs_no_gather_in_between():
    def model(x, w):
        y = ir.ops.rms_norm(reduced(x @ w), None, 1e-6)
        return ir.ops.fused_add_rms_norm(y, x, None, 1e-6)[0]

    fused = Fused(model, *sample(), config=CONFIG)
    assert counted(fused) == {"reduce_scatter": 1, "all_gather": 1, "cuts": 1}


@pytest.mark.parametrize("residual_first", [True, False])
def test_a_residual_may_be_added_by_itself(residual_first):
    def model(x, w):
        y, r = ir.ops.rms_norm(x, None, 1e-6), x
        for _ in range(3):
            p = reduced(y @ w)
            r = r + p if residual_first else p + r
            y = ir.ops.rms_norm(r, None, 1e-6)
        return y

    for config, ops in ((BOTH, "fused_add_rms_norm"), (CONFIG, "rms_norm")):
        fused = Fused(model, *sample(), config=config)
        assert counted(fused) == {"reduce_scatter": 3, "all_gather": 3, "cuts": 1}
        assert fused.ops == ["rms_norm", *[ops] * 3]


def test_an_addition_that_no_norm_reads_stays_whole():
    def model(x, w):
        y, r = ir.ops.fused_add_rms_norm(reduced(x @ w), x, None, 1e-6)
        return y, r + x

    fused = Fused(model, *sample(), config=CONFIG)
    (addition,) = fused.calls(torch.ops.aten.add.Tensor)
    assert addition.meta["val"].shape == (8, HIDDEN)
    assert sorted(gathered(fused)) == ["norm", "sum"]


def test_more_than_two_dimensions_are_divided_by_the_first():
    def model(x):
        return ir.ops.fused_add_rms_norm(reduced(torch.relu(x)), x, None, 1e-6)[0]

    fused = Fused(model, torch.ones(2, 3, 5), config=CONFIG)
    node = fused.call("fused_add_rms_norm")
    assert node.args[0].meta["val"].shape == (1, 3, 5)
    assert fused.rows[0].costs["before"]["bytes_per_row"] == 3 * 5 * 4


def test_a_donated_residual_is_donated_in_part():
    def model(x, w):
        return torch.ops.vllm_ir.fused_add_rms_norm.donated(reduced(x @ w), x, None, 1e-6)[0]

    fused = Fused(model, *sample(), config=CONFIG)
    assert is_donating(fused.call("fused_add_rms_norm"))
    kept = Fused(one_layer, *sample(), config=CONFIG)
    assert not is_donating(kept.call("fused_add_rms_norm"))


def test_values_of_another_group_are_gathered_and_cut_anew():
    other = distributed.new_group([0, 1])

    def model(x, w):
        y, r = ir.ops.fused_add_rms_norm(reduced(x @ w), x, None, 1e-6)
        return ir.ops.fused_add_rms_norm(reduced(y @ w, group=other), r, None, 1e-6)[0]

    fused = Fused(model, *sample(), config=CONFIG)
    assert counted(fused) == {"reduce_scatter": 2, "all_gather": 3, "cuts": 2}
    assert gathered(fused) == ["norm", "sum", "norm"]


def test_a_dynamic_batch_gets_a_guard():
    fused = Fused(chain, *sample(), config=CONFIG, symbolic=True)
    assert counted(fused) == {"reduce_scatter": 3, "all_gather": 3, "cuts": 1}
    assert fused.said[0].split("; ")[-3] == "a guard: the rows are a multiple of 2"
    norm = fused.call("rms_norm")
    env = norm.meta["val"].fake_mode.shape_env
    (guard,) = [str(g.expr) for g in env.guards if "Mod" in str(g.expr)]
    assert re.fullmatch(r"Eq\(Mod\(s[0-9]+, 2\), 0\)", guard)
    final = fused.gm.graph.output_node().args[0]
    assert final.meta["val"].shape[0] == norm.meta["val"].shape[0]


def near_miss(model, *args, **options) -> str:
    fused = Fused(model, *args, config=CONFIG, **options)
    assert "reduce_scatter" not in counted(fused)
    assert [r.matched for r in fused.rows] == [False] * len(fused.rows)
    head = "sequence_parallelism at all_reduce: not fused: "
    assert fused.said[0].startswith(head)
    return fused.said[0].removeprefix(head)


def test_an_odd_batch_is_left():
    assert near_miss(one_layer, *sample(7)) == "7 rows can't be divided by 2 ranks"
    said = near_miss(one_layer, *sample(7), symbolic=True)
    assert re.fullmatch(
        "s[0-9]+ rows can't be divided by 2 ranks; a guard holds such batches apart", said
    )


def test_a_batch_that_can_not_be_guarded_is_left():
    def freeze(graph):
        value = graph.find_nodes(op="placeholder")[0].meta["val"]
        value.fake_mode.shape_env.freeze()

    said = near_miss(one_layer, *sample(), symbolic=True, edit=freeze)
    assert re.fullmatch("whether s[0-9]+ rows can be divided by 2 ranks is not known", said)


def test_no_rows_are_left():
    assert near_miss(one_layer, *sample(0)) == "there are no rows"


def test_only_a_sum_is_taken_apart():
    def model(x, w):
        return ir.ops.fused_add_rms_norm(reduced(x @ w, "avg"), x, None, 1e-6)[0]

    assert near_miss(model, *sample()) == "it reduces by 'avg', and only a sum is taken apart"


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (lambda p: torch.relu(p), "'relu' reads all rows of 'wait_tensor'"),
        (lambda p: p, "the caller reads all rows of 'wait_tensor'"),
        (lambda p: p + 1, "'add' reads all rows of 'wait_tensor'"),
    ],
)
def test_a_reduced_value_that_is_read_whole_is_left(reader, said):
    def model(x, w):
        p = reduced(x @ w)
        return ir.ops.fused_add_rms_norm(p, x, None, 1e-6)[0], reader(p)

    assert near_miss(model, *sample()) == said


def test_a_group_of_one_is_left():
    alone = distributed.new_group([RANK])

    def model(x, w):
        return ir.ops.rms_norm(reduced(x @ w, group=alone), None, 1e-6)

    assert near_miss(model, *sample()) == "its group has one rank"


def test_an_unknown_group_is_left():
    def model(x, w):
        p = C10D.wait_tensor(C10D.all_reduce(x @ w, "sum", "nobody"))
        return ir.ops.rms_norm(p, None, 1e-6)

    said = near_miss(model, *sample())
    assert said.startswith("nothing is known about the process group 'nobody': ")


def test_a_layout_that_collectives_do_not_take_is_left():
    def model(x, w):
        return ir.ops.rms_norm(reduced(x.t().relu()), None, 1e-6)

    assert near_miss(model, *sample(16)) == "'wait_tensor' isn't contiguous"


def test_a_reduced_weight_is_not_divided():
    def model(x, w):
        return ir.ops.rms_norm(x, reduced(w[0] * 2), 1e-6)

    fused = Fused(model, *sample(), config=CONFIG)
    assert fused.said == ["sequence_parallelism: no match"]


def test_an_all_reduce_without_a_norm_is_no_near_miss():
    def model(x, w):
        return ir.ops.rms_norm(x, None, 1e-6), reduced(x @ w) * 2

    fused = Fused(model, *sample(), config=CONFIG)
    assert fused.said == ["sequence_parallelism: no match"]


def test_it_is_off_by_default():
    fused = Fused(chain, *sample())
    assert counted(fused) == {"all_reduce": 3}
    assert fused.said == ["add_rms_norm: no match"]


def test_the_fingerprint_knows_the_rank():
    """A cache folder may be shared by the ranks, and each one cuts other rows."""
    found = {fusion.fingerprint(CONFIG)}
    distributed.destroy_process_group()
    found.add(fusion.fingerprint(CONFIG))
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    found.add(fusion.fingerprint(CONFIG))
    distributed.new_group([0])
    found.add(fusion.fingerprint(CONFIG))
    assert None not in found
    assert len(found) == 4
