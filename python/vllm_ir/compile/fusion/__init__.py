# SPDX-License-Identifier: Apache-2.0
"""Fusion and transformation passes on op calls."""

from torch import fx

from vllm_ir.compile.config import CompileConfig
from vllm_ir.compile.report import FusionReport


def apply(graph: fx.Graph, config: CompileConfig) -> list[FusionReport]:
    """Run the passes that the configuration asks for."""
    return []


def fingerprint(config: CompileConfig) -> str | None:
    """Return what identifies the passes of a configuration, None when it can't be known."""
    return repr(config.fusions)
