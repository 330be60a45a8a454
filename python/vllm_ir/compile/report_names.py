# SPDX-License-Identifier: Apache-2.0
"""Under which names the reports of a compilation are kept for cache hits.

AOTAutograd's cache goes by Dynamo's graph, Inductor's by the one behind AOTAutograd; two of the
first kind may become one of the second. So a report is kept under both.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from vllm_ir.compile import sink
from vllm_ir.compile.graph import tensors_of
from vllm_ir.compile.size_guards import guards_of


def report_file(gm: fx.GraphModule, identity: str) -> str:
    """Return the file that keeps the reports of equal graphs, lowered by equal choices.

    What autocast and the default dtype do shows in the values, bodies of operators included.
    """
    parts = [identity, repr((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))]
    parts += guards_of(gm.graph)
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            parts.append(module.code)
            parts += [_described(t) for node in module.graph.nodes for t in tensors_of(node)]
    return sink.side_file(hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32])


def _described(t: Tensor) -> str:
    return f"{t.dtype} {t.device} {tuple(t.shape)} {t.stride()} {t.requires_grad}"


class NameByGraph(CustomGraphPass):
    """Names the reports by the graph behind AOTAutograd; it runs where Inductor's cache is asked.

    Args:
        key: Of the compilation.
        identity: Of the choices.
    """

    def __init__(self, key: str, identity: str) -> None:
        self.key, self.identity = key, identity

    def __call__(self, graph: fx.Graph) -> None:
        """Look at the graph; nothing changes."""
        if graph.owning_module is not None:
            sink.keep_also(self.key, report_file(graph.owning_module, self.identity))

    def uuid(self) -> Any:
        """Return what caches know it by: it changes nothing, whatever it names."""
        return "vllm_ir.compile.NameByGraph"
