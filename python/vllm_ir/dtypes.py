# SPDX-License-Identifier: Apache-2.0
"""Dtypes by the names that messages, rules and the command line use: "float16"."""

import torch

BY_NAME = {
    name: value for name in dir(torch) if isinstance(value := getattr(torch, name), torch.dtype)
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return "float16" for torch.float16."""
    return str(dtype).removeprefix("torch.")
