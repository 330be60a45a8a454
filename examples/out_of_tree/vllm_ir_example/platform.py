# SPDX-License-Identifier: Apache-2.0
"""A platform that prefers the provider `example`. It is available when EXAMPLE_PLATFORM=1."""

import os

import vllm_ir as ir


class ExamplePlatform(ir.Platform):
    """Put `example` first, in eager and when compiling alike."""

    name = "example"

    def is_available(self) -> bool:
        """Look at a variable; a real platform asks its driver, without starting a device."""
        return os.environ.get("EXAMPLE_PLATFORM") == "1"

    def get_default_ir_op_priority(self, compiling: bool = False) -> ir.IrOpPriorityConfig:
        """Name the op of this package too: it is registered by the time the lists are used."""
        lists = ["example", "native"]
        return ir.IrOpPriorityConfig(
            rms_norm=lists, fused_add_rms_norm=["vllm_c", "native"], example_scale=lists
        )
