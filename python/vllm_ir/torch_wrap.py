# SPDX-License-Identifier: Apache-2.0
"""Whether a call that tracers can see goes through the torch operator.

With wrap on (the default) a tracer, a mode or a subclass meets `torch.ops.vllm_ir.<op>`. With wrap
off it meets what the selected implementation does. A plain eager call takes the fast path in both
settings, and results are the same. Where nobody has said either, plain `torch.compile` meets the
native function of an op whose priority for compiling is native alone, so that Inductor can fuse it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from vllm_ir import _C
from vllm_ir.flags import check_flag

_default: bool | None = None  # nobody has said
_scoped: ContextVar[bool | None] = ContextVar("vllm_ir_torch_wrap", default=None)


class _Switch:
    """The switch as a text, for guards of compiled code: they read attributes."""

    @property
    def state(self) -> str:
        """What is in force here: "on" or "off" when somebody said so, else "auto"."""
        scoped = _scoped.get()
        flag = _default if scoped is None else scoped
        return "auto" if flag is None else "on" if flag else "off"


switch = _Switch()


def torch_wrap_enabled() -> bool:
    """Return whether wrap is on, here and now."""
    return switch.state != "off"


def set_default_torch_wrap(flag: bool) -> None:
    """Set wrap for the whole process; scopes override it.

    Args:
        flag: Whether calls that aren't plain eager go through the torch operator.

    Raises:
        IrTypeError: Not a bool.
    """
    global _default
    _default = check_flag("flag", flag, "vllm_ir.set_default_torch_wrap")
    _ask_from_now_on(flag)


@contextmanager
def enable_torch_wrap(flag: bool = True) -> Iterator[None]:
    """Set wrap inside a with block, in this thread or async task; exceptions restore it too.

    Args:
        flag: As for `set_default_torch_wrap`.

    Raises:
        IrTypeError: Not a bool.

    Example:
        >>> import torch, vllm_ir as ir
        >>> from torch.fx.experimental.proxy_tensor import make_fx
        >>> def layer(x):
        ...     return ir.ops.rms_norm(x, None, 1e-6)
        >>> with ir.enable_torch_wrap(False):
        ...     graph = make_fx(layer)(torch.ones(1, 8))
        >>> [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
        ['vllm_ir_C.rms_norm.default']
    """
    check_flag("flag", flag, "vllm_ir.enable_torch_wrap")
    _ask_from_now_on(flag)
    token = _scoped.set(flag)
    try:
        yield
    finally:
        _scoped.reset(token)


def _ask_from_now_on(flag: bool) -> None:
    # The C++ call asks this module only once somebody has turned wrap off: a cheap flag, never
    # taken back, since another thread may still be inside its scope.
    if not flag:
        _C.set_ask_unwrapped(True)
