# SPDX-License-Identifier: Apache-2.0
"""Graphs for the fusion passes, traced without Inductor and run as they are after the passes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from vllm_ir.compile import CompileConfig, fusion
from vllm_ir.compile.collect import collect
from vllm_ir.compile.fusion import registry
from vllm_ir.compile.graph import ir_nodes
from vllm_ir.compile.report import FusionReport


class Fused:
    """A function's graph after the passes.

    Attributes:
        gm: The graph; call it.
        rows: The report.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *args: Any,
        config: CompileConfig | None = None,
        symbolic: bool = False,
        edit: Callable[[fx.Graph], None] | None = None,
    ) -> None:
        with torch.no_grad():
            self.gm = make_fx(fn, tracing_mode="symbolic" if symbolic else "fake")(*args)
        graph = self.gm.graph
        if edit is not None:
            edit(graph)
        collect(graph)
        self.rows: list[FusionReport] = fusion.apply(graph, config or CompileConfig())
        graph.lint()
        for node in graph.nodes:
            assert node.op != "call_function" or "val" in node.meta, node
        self.gm.recompile()

    def __call__(self, *args: Any) -> Any:
        with torch.no_grad():
            return self.gm(*args)

    @property
    def ops(self) -> list[str]:
        """The ops that are called, in order."""
        return [op.name for _, op, _ in ir_nodes(self.gm.graph)]

    @property
    def said(self) -> list[str]:
        """The rows as text."""
        return [str(row) for row in self.rows]

    def calls(self, target: Any) -> list[fx.Node]:
        """The nodes that call a function."""
        return list(self.gm.graph.find_nodes(op="call_function", target=target))

    def call(self, op: str) -> fx.Node:
        """The only node that calls an op."""
        (node,) = [n for n, called, _ in ir_nodes(self.gm.graph) if called.name == op]
        return node


@pytest.fixture(autouse=True)
def passes_as_they_were() -> Iterator[None]:
    """Take out the passes that a test has registered."""
    kept = registry._passes
    yield
    registry._passes = kept
