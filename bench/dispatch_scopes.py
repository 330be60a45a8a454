# SPDX-License-Identifier: Apache-2.0
"""Does a priority scope leave memory behind? The process before and after very many of them."""

import gc
import os
from pathlib import Path

import vllm_ir as ir


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def bytes_kept(count: int = 500_000) -> float:
    """Return the bytes that stay for each scope entered and left, two alternating lists."""
    op = ir.ops.rms_norm
    lists = (["native"], ["vllm_c", "native"])

    def enter_and_leave(times: int) -> None:
        for index in range(times):
            with op.set_priority(lists[index % 2]):
                pass

    enter_and_leave(1000)
    gc.collect()
    before = resident_bytes()
    enter_and_leave(count)
    gc.collect()
    return max(0, resident_bytes() - before) / count
