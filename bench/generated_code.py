# SPDX-License-Identifier: Apache-2.0
"""Reads in Inductor's generated code what a compiled function does, call by call."""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch._inductor.utils import run_and_get_code

# Calls that compute nothing: checks, allocations and views.
BOOKKEEPING = ("assert_", "empty_strided", "reinterpret_tensor", "_empty_strided", "get_raw_stream")
COPIES = ("clone", "copy")
CAST = "_to_copy"  # a change of dtype


@dataclass(frozen=True)
class Code:
    """What the generated code calls.

    Attributes:
        kernels: names of the generated kernels, once for each call.
        externs: names of the other functions that compute: matrix products, torch's operators.
        allocated: number of buffers that the code itself allocates.
    """

    kernels: tuple[str, ...]
    externs: tuple[str, ...]
    allocated: int

    @property
    def calls(self) -> int:
        """Number of calls that compute."""
        return len(self.kernels) + len(self.externs)

    @property
    def copies(self) -> int:
        """Number of calls that copy, alone or with other things in one kernel."""
        names = [name.replace(CAST, "") for name in (*self.kernels, *self.externs)]
        return sum(any(word in name for word in COPIES) for name in names)


def code_of(function: Callable[..., Any], *args: Any) -> Code:
    """Compile by a first call with `args`, and read the code; caches must not have it."""
    _, sources = run_and_get_code(function, *args)
    return read_code(sources)


def read_code(sources: Sequence[str]) -> Code:
    """Read the function `call` of each module that Inductor wrote."""
    kernels: list[str] = []
    externs: list[str] = []
    allocated = 0
    for source in sources:
        for name in called(source):
            kind = name.rpartition(".")[2]
            if is_kernel(name):
                kernels.append(name.removesuffix(".run"))
            elif "empty_strided" in kind:
                allocated += 1
            elif "." in name and not kind.startswith(BOOKKEEPING) and is_operator(name):
                externs.append(name)
    return Code(tuple(kernels), tuple(externs), allocated)


def is_kernel(name: str) -> bool:
    """Whether Inductor generated the function."""
    return name.startswith("cpp_fused") or (name.startswith("triton_") and name.endswith(".run"))


def is_operator(name: str) -> bool:
    """Whether the name is that of an operator: `torch.ops.aten.mm.default`, `buf3.copy_`."""
    return name.startswith(("torch.ops.", "aten.", "extern_kernels.")) or name.endswith(".copy_")


def called(source: str) -> list[str]:
    """Return the dotted names of what `call` calls, in order; the innermost of an expression first.

    Raises:
        ValueError: the source has no function `call`.
    """
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "call"
    ]
    if len(functions) != 1:
        raise ValueError(f"Inductor's module must have one function 'call', got {len(functions)}.")
    calls = [node for node in ast.walk(functions[0]) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))
    return [ast.unparse(call.func) for call in calls]
