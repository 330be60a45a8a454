# SPDX-License-Identifier: Apache-2.0
"""The in-tree providers; importing this package registers their implementations."""

from vllm_ir.providers import triton, vllm_c

__all__ = ["triton", "vllm_c"]
