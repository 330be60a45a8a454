# SPDX-License-Identifier: Apache-2.0
"""What Dynamo puts into a graph for a call of an op.

Dynamo runs `how_traced` for real while it traces and takes the answer for a constant; the guards
that the answer needs are installed on the way.
"""

import sys
from enum import Enum
from typing import Any

import torch

from vllm_ir import _C
from vllm_ir.guards import guard_selection, guard_text
from vllm_ir.registry import registry
from vllm_ir.torch_wrap import switch

OPERATOR = "operator"  # torch.ops.vllm_ir.<op>: for passes that know ops
NATIVE = "native"  # the native function, operator by operator, so that Inductor fuses it
DEFAULT = "default"  # the operator that keeps its inputs, whatever was called: for export
UNWRAPPED = "unwrapped"  # what the implementation does that eager would select
UNWRAPPED_COMPILING = "unwrapped_compiling"  # the same by the priorities for generated code


def how_traced(op_name: str) -> str:
    """Return what stands for a call of this op in the graph that Dynamo is making.

    Wrapped calls are operators. Unless somebody asked for that, plain Inductor gets the native
    function where nothing else would run: it can't look into operators, and fuses what it can see.
    """
    if torch.compiler.is_exporting():
        return DEFAULT
    guard_text("torch wrap", "torch_wrap", "switch", "state")
    compiler = _compiler()
    if switch.state == "off":
        guard_selection(compiling=compiler is not Compiler.OTHER)
        return UNWRAPPED if compiler is Compiler.OTHER else UNWRAPPED_COMPILING
    if compiler is Compiler.LOWERING:
        guard_selection(compiling=True)  # the pass chooses; our backend asks for this guard itself
    if switch.state == "on" or compiler is not Compiler.INDUCTOR:
        return OPERATOR
    guard_selection(compiling=True)
    alone = _C.priority_of(op_name, True)[0] == ["native"]
    return NATIVE if alone else OPERATOR


# What torch.compiler.assume_constant_result sets; calling it would import Dynamo.
how_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


def run_in_graph(op_name: str, how: str, *arguments: Any) -> Any:
    """Run the selected implementation where a tracer sees it; out of place, whoever calls.

    It is a node of Dynamo's graph, and AOTAutograd traces through it.
    """
    return registry[op_name]._run_unwrapped(arguments, how == UNWRAPPED_COMPILING)


class Compiler(Enum):
    """Who gets the graph."""

    OTHER = "other"  # runs it as it is, or does something that isn't known
    INDUCTOR = "inductor"  # generates code, and takes an operator for what can't be looked into
    LOWERING = "lowering"  # the same, behind a pass that lowers ops


def _compiler() -> Compiler:
    torch._dynamo.allow_in_graph(run_in_graph)  # type: ignore[no-untyped-call]
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        backend: Any = InstructionTranslator.current_tx().output.compiler_fn
    except (ImportError, AttributeError):
        return Compiler.OTHER
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    if isinstance(backend, torch._TorchCompileInductorWrapper):
        lowers = any(map(_lowers_ops, _custom_passes(backend.config)))
        return Compiler.LOWERING if lowers else Compiler.INDUCTOR
    ours = getattr(getattr(backend, "compiler_fn", backend), "__name__", "") == "vllm_ir"
    return Compiler.LOWERING if ours else Compiler.OTHER


def _custom_passes(options: dict[str, Any]) -> list[Any]:
    import torch._inductor.config as inductor

    names = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")
    found: list[Any] = []
    for name in names:
        value = options[name] if name in options else getattr(inductor, name, None)
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


def _lowers_ops(custom_pass: object) -> bool:
    pipeline = sys.modules.get("vllm_ir.compile.pipeline")
    return pipeline is not None and isinstance(custom_pass, pipeline.PostGradPass)
