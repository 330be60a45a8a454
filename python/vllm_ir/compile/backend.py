# SPDX-License-Identifier: Apache-2.0
"""The backend `vllm_ir` of `torch.compile`, and `vllm_ir.compile` on top of it."""

import uuid
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import fx

from vllm_ir import _C
from vllm_ir.compile import fingerprint
from vllm_ir.compile.choose import node_report
from vllm_ir.compile.compilations import (
    Compilation,
    caller_of_backend,
    enter,
    unwrapped_calls,
)
from vllm_ir.compile.config import CompileConfig, mode_options, split_options
from vllm_ir.compile.functionalize import functionalize
from vllm_ir.compile.graph import ir_nodes, tensors_of
from vllm_ir.compile.hooks import JOINT_PASS, POST_PASS, add_pass
from vllm_ir.compile.pipeline import PostGradPass
from vllm_ir.compile.report import GraphReport
from vllm_ir.compile.report_names import NameByGraph, report_file
from vllm_ir.compile.size_guards import sizes_of
from vllm_ir.compile.trace import fake_values
from vllm_ir.errors import IrRuntimeError
from vllm_ir.guards import guard_selection
from vllm_ir.log import logger
from vllm_ir.op import IrOp
from vllm_ir.selection import Selection, token_now


class Backend:
    """A backend for `torch.compile`: ops are fused, lowered and cleaned up, then Inductor runs.

    Backends with equal configurations compare equal, so that Dynamo shares code between them.

    Args:
        config: The choices; options of a call of the backend come on top.
    """

    __name__ = "vllm_ir"

    def __init__(self, config: CompileConfig | None = None) -> None:
        self.config = config or CompileConfig()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backend) and self.config == other.config

    def __hash__(self) -> int:
        return hash(self.config)

    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: list[Any],
        *,
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compile one graph of Dynamo's.

        Raises:
            DonationError: A donated value is used again.
            IrTypeError, IrRuntimeError: As for `PostGradPass`; or another thread changed a
                priority meanwhile.
        """
        from torch._inductor.compile_fx import compile_fx

        ours, theirs = split_options({**mode_options(mode), **(options or {})})
        config = CompileConfig(**{**vars(self.config), **ours})
        autograd = _what_autograd_takes(gm)
        found = functionalize(gm, config.donate_graph_inputs)
        guard_selection()
        count = len(IrOp.registry)
        token = token_now(count)
        post_grad, identity = _begin(gm, config, found.refused, autograd)
        patches = {**config.inductor_options(), **theirs}
        add_pass(patches, POST_PASS, post_grad)
        if identity is not None:
            add_pass(patches, JOINT_PASS, NameByGraph(post_grad.key, identity))
        compiled = compile_fx(gm, example_inputs, config_patches=patches)
        if token_now(count) != token:  # what the guard will be compared with
            raise IrRuntimeError(
                "vllm_ir.compile: priorities must stay as they are while code is compiled, got a "
                "change by another thread. Call the function again."
            )
        return _with_inputs_apart(cast(Callable[..., Any], compiled), gm, found.donated_inputs)


def _begin(
    gm: fx.GraphModule,
    config: CompileConfig,
    refused: dict[str, str],
    autograd: GraphReport | None,
) -> tuple[PostGradPass, str | None]:
    """Enter the compilation into the ledger; return its pass, and the identity of its choices."""
    selection = Selection.in_force()
    key = uuid.uuid4().hex
    ops = fingerprint.ops_called(gm)
    identity = fingerprint.of(config, selection, ops)
    file = "" if identity is None else report_file(gm, identity)
    code, owner = caller_of_backend()
    enter(Compilation(key, code, owner, refused, autograd, unwrapped_calls(gm)))
    return PostGradPass(config, selection, key, file, ops, sizes_of(gm.graph)), identity


def _what_autograd_takes(gm: fx.GraphModule) -> GraphReport | None:
    """Report the calls that autograd will look into: native, operator by operator."""
    if not torch.is_grad_enabled():
        return None
    report = GraphReport("autograd")
    for node, op, _ in ir_nodes(gm.graph):
        if not any(t.requires_grad for a in node.all_input_nodes for t in tensors_of(a)):
            continue
        args = op.bind(*fake_values(node.args), **fake_values(node.kwargs))
        report.nodes.append(node_report(node, op.explain(*args)))
    if not report.nodes:
        return None
    logger.info(
        "%d op calls run native because a gradient is needed; compile under torch.no_grad() or "
        "torch.inference_mode() to choose implementations",
        len(report.nodes),
    )
    return report


def _with_inputs_apart(
    compiled: Callable[..., Any], gm: fx.GraphModule, donated: list[fx.Node]
) -> Callable[..., Any]:
    """Copy a donated input first where it shares memory with another input of the call.

    No guard says that inputs are apart, and the compiler has ordered reads and writes as if.
    """
    if not donated:
        return compiled
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    positions = tuple(inputs.index(n) for n in donated)

    def run(*args: Any) -> Any:
        return compiled(*_C.keep_apart(args, positions))

    return run


backend = Backend()
