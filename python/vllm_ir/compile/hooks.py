# SPDX-License-Identifier: Apache-2.0
"""Inductor's hooks for passes, each shared with the passes that the user has put there."""

from collections.abc import Sequence
from typing import Any

from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

POST_PASS = "post_grad_custom_post_pass"
JOINT_PASS = "joint_custom_post_pass"


def add_pass(patches: dict[str, Any], hook: str, last: CustomGraphPass) -> None:
    """Put a pass behind the user's own, which come from the patches or Inductor's configuration.

    Args:
        patches: Of Inductor's configuration; changed in place.
        hook: Name of the option.
        last: The pass.
    """
    import torch._inductor.config as inductor

    passes = patches[hook] if hook in patches else getattr(inductor, hook)
    several = list(passes) if isinstance(passes, (list, tuple)) else [passes] if passes else []
    patches[hook] = InOrder([*several, last]) if several else last


class InOrder(CustomGraphPass):
    """Several passes as one: not every torch takes a list."""

    def __init__(self, passes: Sequence[Any]) -> None:
        self.passes = tuple(passes)

    def __call__(self, graph: fx.Graph) -> None:
        """Run them."""
        for one in self.passes:
            one(graph)

    def uuid(self) -> Any:
        """Return what caches know all of them by; None where one of them can't be known."""
        known = [p.uuid() if isinstance(p, CustomGraphPass) else None for p in self.passes]
        return None if None in known else tuple(known)
