# SPDX-License-Identifier: Apache-2.0
"""The ledger of this process: every graph that the backend was given, with its reports."""

import threading
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from vllm_ir.compile import sink
from vllm_ir.compile.report import GraphReport
from vllm_ir.traced import run_in_graph


@dataclass
class Compilation:
    """One graph that Dynamo handed over, and where its reports are.

    Attributes:
        key: Of its reports in the sink.
        code: Code object of the function that it comes from, when that can be seen.
        owner: What `torch.compile` wrapped the backend in, a weak reference; None: not seen.
        refused: Why donations were not taken, by node.
        autograd: What became native because a gradient is needed; None: nothing did.
        unwrapped: How many calls were traced through because wrap was off, by op.
    """

    key: str
    code: Any
    owner: "weakref.ref[Any] | None"
    refused: dict[str, str] = field(default_factory=dict)
    autograd: GraphReport | None = None
    unwrapped: dict[str, int] = field(default_factory=dict)

    @property
    def graphs(self) -> list[GraphReport]:
        """The reports so far; a backward graph's comes when that is compiled."""
        first = [self.autograd] if self.autograd else []
        return first + sink.graphs(self.key)

    @property
    def is_live(self) -> bool:
        """Whether somebody still holds the compiled function."""
        return self.owner is None or self.owner() is not None


_ledger: list[Compilation] = []
_lock = threading.Lock()


def enter(compilation: Compilation) -> None:
    """Add a compilation; those whose functions are gone are dropped."""
    with _lock:
        dead = [c for c in _ledger if not c.is_live]
        _ledger[:] = [c for c in _ledger if c.is_live]
        _ledger.append(compilation)
    for old in dead:
        sink.close_entry(old.key)


def live() -> list[Compilation]:
    """Return the compilations of this process, in order, but for functions that are gone."""
    with _lock:
        return [c for c in _ledger if c.is_live]


def everything() -> list[Compilation]:
    """Return every compilation in the ledger, also of functions that have just gone."""
    with _lock:
        return list(_ledger)


def caller_of_backend() -> "tuple[Any, weakref.ref[Any] | None]":
    """Return the code that Dynamo compiles and the wrapper around the backend, if it says so."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        output = InstructionTranslator.current_tx().output
        wrapper = innermost(output.compiler_fn)
        return output.root_tx.f_code, weakref.ref(wrapper)
    except (ImportError, AttributeError, TypeError):
        return None, None


def innermost(backend: Any) -> Any:
    """Return what torch's debugging wrappers are around."""
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return backend


def unwrapped_calls(gm: fx.GraphModule) -> dict[str, int]:
    """Count the calls in Dynamo's graph that bypass the operator, by op: wrap was off for them."""
    graphs = [m.graph for m in gm.modules() if isinstance(m, fx.GraphModule)]
    calls = [n for g in graphs for n in g.find_nodes(op="call_function", target=run_in_graph)]
    return dict(Counter(str(n.args[0]) for n in calls))
