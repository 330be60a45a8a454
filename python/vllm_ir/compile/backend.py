# SPDX-License-Identifier: Apache-2.0
"""The backend `vllm_ir` of `torch.compile`, and `vllm_ir.compile` on top of it."""

import hashlib
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from vllm_ir import _C
from vllm_ir.compile import fingerprint, sink
from vllm_ir.compile.config import CompileConfig, split_options
from vllm_ir.compile.functionalize import functionalize
from vllm_ir.compile.graph import tensors_of
from vllm_ir.compile.pipeline import PostGradPass
from vllm_ir.compile.report import GraphReport
from vllm_ir.guards import guard_selection
from vllm_ir.selection import Selection

POST_PASS = "post_grad_custom_post_pass"


@dataclass
class Compilation:
    """One graph that Dynamo handed over, and where its reports are.

    Attributes:
        code: Code object of the function that it comes from.
        owner: What `torch.compile` wrapped the backend in, when that can be seen.
        refused: Why donations were not taken, by node.
    """

    key: str
    code: Any
    owner: Any
    refused: dict[str, str]

    @property
    def graphs(self) -> list[GraphReport]:
        """The reports so far; backward graphs come when they are compiled."""
        return sink.graphs(self.key)


class Backend:
    """A backend for `torch.compile`: ops are fused, lowered and cleaned up, then Inductor runs.

    Backends with equal configurations compare equal, so that Dynamo shares code between them.

    Args:
        config: The choices; options of a call of the backend come on top.
    """

    __name__ = "vllm_ir"

    def __init__(self, config: CompileConfig | None = None) -> None:
        self.config = config or CompileConfig()
        self.compilations: list[Compilation] = []
        self._lock = threading.Lock()

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
            IrTypeError, IrRuntimeError: As for `PostGradPass`.
        """
        from torch._inductor.compile_fx import compile_fx

        ours, theirs = split_options({**_mode_options(mode), **(options or {})})
        config = CompileConfig(**{**vars(self.config), **ours})
        found = functionalize(gm, config.donate_graph_inputs)
        guard_selection()
        post_grad = self._begin(gm, config, found.refused)
        patches = {**config.inductor_options(), **theirs}
        patches[POST_PASS] = [*_users_passes(patches), post_grad]
        compiled = compile_fx(gm, example_inputs, config_patches=patches)
        return _with_inputs_apart(cast(Callable[..., Any], compiled), gm, found.donated_inputs)

    def _begin(
        self, gm: fx.GraphModule, config: CompileConfig, refused: dict[str, str]
    ) -> PostGradPass:
        selection = Selection.in_force()
        key = uuid.uuid4().hex
        side_file = ""
        identity = fingerprint.of(config, selection)
        if identity is not None:
            side_file = sink.side_file(_graph_digest(gm, identity))
        post_grad = PostGradPass(config, selection, key, side_file)
        code, owner = _caller_of_backend()
        with self._lock:
            self.compilations.append(Compilation(key, code, owner, refused))
        return post_grad


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


def _mode_options(mode: str | None) -> dict[str, Any]:
    if mode is None or mode == "default":
        return {}
    from torch._inductor import list_mode_options

    options: dict[str, Any] = list_mode_options(mode)
    return options


def _users_passes(patches: dict[str, Any]) -> list[Any]:
    """Return the user's own passes, from the options or from Inductor's configuration."""
    import torch._inductor.config as inductor

    passes = patches[POST_PASS] if POST_PASS in patches else getattr(inductor, POST_PASS)
    if passes is None:
        return []
    return list(passes) if isinstance(passes, (list, tuple)) else [passes]


def _graph_digest(gm: fx.GraphModule, identity: str) -> str:
    """Return the name under which the reports of equal graphs are kept."""
    parts = [identity, gm.code, repr((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))]
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            parts += [_described(t) for t in tensors_of(node)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _described(t: Tensor) -> str:
    return f"{t.dtype} {t.device} {tuple(t.shape)} {t.stride()} {t.requires_grad}"


def _caller_of_backend() -> tuple[Any, Any]:
    """Return the code that is being compiled and the wrapper that `torch.compile` made."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        output = InstructionTranslator.current_tx().output
        wrapper = output.compiler_fn
        return output.root_tx.f_code, getattr(wrapper, "_torchdynamo_orig_backend", wrapper)
    except (ImportError, AttributeError):
        return None, None


backend = Backend()
