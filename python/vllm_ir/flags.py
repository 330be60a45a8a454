# SPDX-License-Identifier: Apache-2.0
"""Flags that callers give: a bool and nothing else."""

from vllm_ir.errors import IrTypeError


def check_flag(name: str, value: object, where: str) -> bool:
    """Return the flag; anything but a bool is an error, since a string is always true."""
    if not isinstance(value, bool):
        raise IrTypeError(f"{where}: {name} must be a bool, got {type(value).__name__}.")
    return value
