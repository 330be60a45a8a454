# SPDX-License-Identifier: Apache-2.0
"""The declared ops by name; public as `IrOp.registry`."""

from typing import TYPE_CHECKING

from vllm_ir.errors import UnknownNameError, unknown_name

if TYPE_CHECKING:
    from vllm_ir.op import IrOp


class Registry(dict[str, "IrOp"]):
    """A dictionary in order of declaration; an unknown name is an error that lists the ops."""

    def __missing__(self, name: str) -> "IrOp":
        raise UnknownNameError(unknown_name("vllm_ir", "op", name, self))


registry = Registry()
