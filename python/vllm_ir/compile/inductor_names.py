# SPDX-License-Identifier: Apache-2.0
"""A mend of Inductor's scheduler: what reads a value behind a kernel goes on reading it there.

The scheduler gives a buffer a new name when a kernel has overwritten it, and reads behind the
kernel are reads of the new name. For the CPU it may lay out the loops of a node anew, to fuse it;
the node's reads are then worked out anew too, and their new names are forgotten where the node has
no other dependencies to remember. The node could be fused to one in front of the kernel, and would
read what was there before. Seen in torch 2.13; where torch remembers the names, this does nothing.
"""

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def keep_new_names() -> None:
    """Have the scheduler keep the new names, from now on in this process."""
    from torch._inductor.scheduler import SchedulerNode

    method: Callable[..., None] = SchedulerNode.recompute_size_and_body

    @functools.wraps(method)
    def recompute(self: Any, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        self.set_read_writes(self.read_writes.rename(self.mutation_renames))

    SchedulerNode.recompute_size_and_body = recompute  # type: ignore[method-assign]
