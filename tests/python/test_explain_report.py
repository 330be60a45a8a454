# SPDX-License-Identifier: Apache-2.0
import vllm_ir as ir
from vllm_ir.explain_report import explain_report
from vllm_ir.sample_args import Sample


def test_it_is_the_op_s_own_explanation_with_the_arguments():
    report = explain_report(ir.ops.rms_norm, Sample(shape=(2, 8), given={"weight": "none"}))
    args, explanation = str(report).split("\n", 1)
    assert (
        args == "Arguments: x=float32[2, 8] on cpu, weight=None, epsilon=1e-06, variance_size=None"
    )
    assert explanation == str(report.explanation)
    assert report.to_dict() == {"args": report.args, **report.explanation.to_dict()}
    assert report.explanation.op == "rms_norm"
