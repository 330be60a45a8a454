# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import torch

import vllm_ir as ir
from vllm_ir import rules
from vllm_ir.errors import UnknownNameError
from vllm_ir.list_report import list_report

_number = itertools.count()


def native(x: torch.Tensor) -> torch.Tensor:
    """Copy."""
    return x.clone()


def copied(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def wide(x: torch.Tensor) -> bool:
    return x.shape[-1] > 8


@pytest.fixture
def op():
    op = ir.register_op(native, name=f"list_op_{next(_number)}")
    op.register_impl("ruled", supports_args=rules.device("x", "cpu"), batch_invariant=True)(copied)
    op.register_impl("asked", supports_args=wide)(copied)
    op.register_impl("off", supported=False, unsupported_reason="no such chip")(copied)
    op.set_default(["off", "ruled", "native", "asked"])
    return op


def test_text_of_one_op(op):
    text = str(list_report([op])).split("\n\n")[1]
    impls = op.impls
    assert text == "\n".join(
        [
            f"{op.name}: Copy.",
            "  priority, eager:     ruled, native",
            "    without off: no such chip",
            "    without asked: unreachable behind native",
            "  priority, compiling: ruled, native",
            "    without off: no such chip",
            "    without asked: unreachable behind native",
            "  provider  supported         in place  batch invariant  source",
            f"  native    yes               no        yes              {impls['native'].source}",
            f"  ruled     yes               no        yes              {impls['ruled'].source}",
            f"  asked     yes               no        no               {impls['asked'].source}",
            f"  off       no: no such chip  no        no               {impls['off'].source}",
            "  native accepts everything",
            '  ruled accepts device("x") in {cpu}',
            "  asked accepts what its supports_args says",
            "  off accepts everything",
        ]
    )


def test_the_report_as_data(op):
    data = list_report([op]).to_dict()
    assert data["platform"] == ir.current_platform().name
    (row,) = data["ops"]
    assert row["activations"] == ["x"]
    assert row["priority"] == {mode: ["ruled", "native"] for mode in ("eager", "compiling")}
    assert row["impls"][3] == {
        "provider": "off",
        "supported": False,
        "reason": "no such chip",
        "accepts": "everything",
        "inplace": False,
        "batch_invariant": False,
        "source": op.impls["off"].source,
    }


def test_no_ops_given_means_all_by_name():
    assert [row.name for row in list_report().ops] == sorted(ir.IrOp.registry)


def test_an_unknown_op_names_the_nearest():
    assert ir.IrOp.registry["rms_norm"] is ir.ops.rms_norm
    with pytest.raises(UnknownNameError, match=r"unknown op 'rms_nrom'.* Did you mean 'rms_norm'"):
        ir.IrOp.registry["rms_nrom"]
