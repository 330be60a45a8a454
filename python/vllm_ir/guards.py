# SPDX-License-Identifier: Apache-2.0
"""Guards of compiled code on things that Dynamo can't see, through torch's private interface.

Where that interface has moved, nothing is installed and a warning says so once: call
`torch.compiler.reset()` after a change of priority.
"""

from vllm_ir.log import warning_once
from vllm_ir.registry import registry

_FALLBACK = (
    "vllm_ir.compile: this torch has no place for a guard on %s (%s). Call "
    "torch.compiler.reset() after changing it."
)


def guard_selection(compiling: bool = True) -> None:
    """Let the code that is being compiled hold only while ops select as they do now.

    Args:
        compiling: By the lists for generated code; False: by those for eager calls.
    """
    from vllm_ir.selection import token_name  # which knows ops, and those know guards

    guard_text("priorities", "selection", "tokens", token_name(len(registry), compiling))


def guard_text(what: str, *path: str) -> None:
    """Let the code that is being compiled hold only while a text of this package stays the same.

    Args:
        what: For the warning.
        path: Attributes to follow from the package; the last one is a str.
    """
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
        warning_once(("guards", path), _FALLBACK, what, error)
