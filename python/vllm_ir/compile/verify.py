# SPDX-License-Identifier: Apache-2.0
"""The last check of a lowered graph.

Before: whatever the passes left.
After: the same graph, well formed, without one op node in it; else an error that names the node.
"""

from torch import fx

from vllm_ir.compile.graph import ir_nodes, source_line
from vllm_ir.errors import IrRuntimeError


def verify(graph: fx.Graph) -> None:
    """Raise IrRuntimeError when an op is left; lint the graph.

    Raises:
        IrRuntimeError: An op is left.
    """
    for node, op, name in ir_nodes(graph):
        raise IrRuntimeError(
            f"vllm_ir.{op.name}: '{node.name}' ({name}) was not lowered; written at\n"
            f"    {source_line(node)}\nA pass behind lowering must not make op calls: let it "
            "run as a fusion, in front of it."
        )
    graph.lint()
