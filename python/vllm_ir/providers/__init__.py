# SPDX-License-Identifier: Apache-2.0
"""The in-tree providers; importing this package registers their implementations."""

from vllm_ir.providers import vllm_c

__all__ = ["vllm_c"]
