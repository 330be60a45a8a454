# SPDX-License-Identifier: Apache-2.0
"""The operators can be found by name before anything has called them.

Generated code that comes from a cache, and exported programs, ask `torch.ops.vllm_ir_triton` for
an operator in a process that has not imported Triton. A stand-in for the namespace defines the
operators then.
"""

import importlib
from types import ModuleType
from typing import Any

import torch

NAMESPACE = "vllm_ir_triton"


class _StandIn(ModuleType):
    """Makes way for torch's own namespace when the first operator is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        vars(torch.ops).pop(NAMESPACE, None)
        try:
            importlib.import_module("vllm_ir.providers.triton.operators")
        except ImportError as error:
            setattr(torch.ops, NAMESPACE, self)
            raise AttributeError(
                f"vllm_ir.triton: torch.ops.{NAMESPACE}.{name} needs Triton, got {error}. "
                "Install triton, or lower to another provider."
            ) from error
        return getattr(getattr(torch.ops, NAMESPACE), name)


def define_when_asked() -> None:
    """Put the stand-in in its place."""
    setattr(torch.ops, NAMESPACE, _StandIn(f"torch.ops.{NAMESPACE}"))
