# SPDX-License-Identifier: Apache-2.0
"""Fusion and transformation passes on op calls, in front of lowering.

They see every op call as `default`, with all arguments by position, so one pattern fits however a
model wrote the call. They run in one documented order (`passes()`); `CompileConfig.fusions` chooses
among them by name, and None takes those that are on by default:

| pass | default | what it does |
|---|---|---|
| `add_rms_norm` | on | residual addition + `rms_norm` → `fused_add_rms_norm` |
| `sequence_parallelism` | off | all_reduce + norm → reduce_scatter + norm + all_gather |

A pattern of one's own: what stands in the graph, what takes its place, and a name.

    import torch, vllm_ir as ir
    from vllm_ir.compile.fusion import KeywordArg, call, register_fusion

    norm = call(ir.ops.rms_norm, KeywordArg("x"), KeywordArg("weight"), KeywordArg("epsilon"))
    product = call(torch.ops.aten.mul.Tensor, norm, KeywordArg("factor"))

    @register_fusion("rms_norm_scale", product, before="add_rms_norm")
    def fused(x, weight, epsilon, factor):
        return rms_norm_scale(x, weight, epsilon, factor)  # an op of one's own

`examples/custom_fusion.py` is a complete one. Scalars are captured like tensors, so one pattern has
every epsilon; a product may have its factor on either side, so give both patterns. A value in the
middle that something else reads is left alone, unless the pattern lists it as an output. A `check`
refuses a match with a reason. What a pattern can't say is a function of a `Rewriter`
(`register_pass`). Every place that a pass rewrote or nearly did is a row of the compile report.
"""

from vllm_ir.compile.fusion.patterns import (
    CallFunction,
    KeywordArg,
    Match,
    MultiOutputPattern,
    call,
    register_fusion,
)
from vllm_ir.compile.fusion.registry import FusionPass, passes, register_pass, unregister
from vllm_ir.compile.fusion.rewriter import Rewriter
from vllm_ir.compile.fusion.run import apply, fingerprint, ops_made

from vllm_ir.compile.fusion import add_rms_norm, sequence_parallelism  # isort: skip  # noqa: F401

__all__ = [
    "CallFunction",
    "FusionPass",
    "KeywordArg",
    "Match",
    "MultiOutputPattern",
    "Rewriter",
    "apply",
    "call",
    "fingerprint",
    "ops_made",
    "passes",
    "register_fusion",
    "register_pass",
    "unregister",
]
