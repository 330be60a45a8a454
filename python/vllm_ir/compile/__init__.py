# SPDX-License-Identifier: Apache-2.0
"""The compiler half: ops in `torch.compile`.

The module is also the function `vllm_ir.compile(model, ...)`.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from vllm_ir.compile.backend import Backend, backend
from vllm_ir.compile.config import CompileConfig
from vllm_ir.compile.functionalize import functionalize
from vllm_ir.compile.pipeline import PostGradPass

__all__ = ["Backend", "CompileConfig", "PostGradPass", "backend", "functionalize"]


class _CallableModule(ModuleType):
    def __call__(
        self,
        model: Callable[..., Any],
        *,
        config: CompileConfig | None = None,
        **options: Any,
    ) -> Any:
        """Compile a function or module with the backend `vllm_ir`."""
        return torch.compile(model, backend=Backend(config), **options)


sys.modules[__name__].__class__ = _CallableModule
