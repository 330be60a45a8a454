# SPDX-License-Identifier: Apache-2.0
"""Mends of Inductor for kernels that write; each does nothing where torch gets it right.

`keep_new_names`: what reads a value behind a kernel goes on reading it there. The scheduler gives a
buffer a new name when a kernel has overwritten it, and reads behind the kernel are reads of the new
name. For the CPU it may lay out the loops of a node anew, to fuse it; the node's reads are then
worked out anew too, and their new names are forgotten where the node has no other dependencies to
remember. The node could be fused to one in front of the kernel, and would read what was there
before. Seen in torch 2.13.

`copy_nothing_onto_itself`: a kernel that takes exact strides gets another view of the same memory
where only the stride of a dimension of size 1 differs. Inductor takes that view for a copy, and
writes it back to the original: onto itself, which its scheduler can't put in order (KeyError).
Seen in torch 2.13.
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


@functools.cache
def copy_nothing_onto_itself() -> None:
    """Have what a kernel wrote copied back only from other memory, from now on in this process."""
    from torch._inductor.graph import GraphLowering

    method: Callable[..., None] = GraphLowering.propagate_mutation

    @functools.wraps(method)
    def propagate(
        self: Any, node: Any, old_args: Any, old_kwargs: Any, new_args: Any, new_kwargs: Any
    ) -> None:
        args = tuple(map(_old_if_same, old_args, new_args))
        kwargs = {name: _old_if_same(old_kwargs[name], new) for name, new in new_kwargs.items()}
        method(self, node, old_args, old_kwargs, args, kwargs)

    GraphLowering.propagate_mutation = propagate  # type: ignore[method-assign, assignment]


def _old_if_same(old: Any, new: Any) -> Any:
    if isinstance(new, (list, tuple)):
        return type(new)(map(_old_if_same, old, new))
    names = [value.maybe_get_name() for value in (old, new) if hasattr(value, "maybe_get_name")]
    same = len(names) == 2 and names[0] is not None and names[0] == names[1]
    return old if same else new
