# SPDX-License-Identifier: Apache-2.0
"""Guards of compiled code on things that Dynamo can't see, through torch's private interface.

Where that interface has moved, nothing is installed and a warning says so once: call
`torch.compiler.reset()` after a change of priority.
"""

from vllm_ir.log import warning_once
from vllm_ir.op import IrOp

_FALLBACK = (
    "vllm_ir.compile: this torch has no place for a guard on priorities (%s). Call "
    "torch.compiler.reset() after a change of priority."
)


def guard_selection() -> None:
    """Let the code that is being compiled hold only while ops select as they do now."""
    _guard("selection", "tokens", f"first_{len(IrOp.registry)}")


def _guard(*path: str) -> None:
    try:
        from torch._dynamo.guards import GuardBuilder, install_guard
        from torch._dynamo.source import AttrSource, ImportSource
        from torch._guards import TracingContext

        if TracingContext.try_get() is None:
            return  # not under Dynamo: an engine calls the backend itself
        source = ImportSource("vllm_ir")
        for name in path:
            source = AttrSource(source, name)  # type: ignore[assignment]
        install_guard(source.make_guard(GuardBuilder.CONSTANT_MATCH))
    except (ImportError, AttributeError, TypeError) as error:
        warning_once(("guards", path), _FALLBACK, error)
