# SPDX-License-Identifier: Apache-2.0
"""Which platform this process runs on, and the priorities that it starts with.

A platform is found without touching a device: torch's build flags and, for CUDA and ROCm, the
driver's management library. Out-of-tree platforms come from the entry-point group
`vllm_ir.platforms` and go before the built-in ones.
"""

import importlib
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from vllm_ir import _C, entry_points, log
from vllm_ir.declare import on_declare
from vllm_ir.entry_points import Loaded
from vllm_ir.errors import IrTypeError, UnknownNameError
from vllm_ir.op import IrOp
from vllm_ir.priority import IrOpPriorityConfig


class Platform(ABC):
    """A kind of machine and what runs best on it.

    Example:
        >>> import vllm_ir as ir
        >>> class MyPlatform(ir.Platform):
        ...     name = "my_platform"
        ...
        ...     def get_default_ir_op_priority(self, compiling=False):
        ...         return ir.IrOpPriorityConfig(rms_norm=["my_provider", "native"])
    """

    name: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.name:
            cls.name = cls.__name__

    def is_available(self) -> bool:
        """Return whether this process runs on the platform. Must not initialise a device."""
        return True

    @abstractmethod
    def get_default_ir_op_priority(self, compiling: bool = False) -> IrOpPriorityConfig:
        """Return the lists that stand behind the user's.

        Args:
            compiling: For code that a compiler generates (Inductor); False: eager or Dynamo only.
                An override may leave the parameter out when both are the same.
        """

    def import_ir_kernels(self) -> None:
        """Import the modules that register this platform's implementations."""
        importlib.import_module("vllm_ir.providers")


class _BuiltIn(Platform):
    """Native when compiling, so that Inductor can fuse it; in eager, `eager_provider` first."""

    eager_provider = "vllm_c"

    def get_default_ir_op_priority(self, compiling: bool = False) -> IrOpPriorityConfig:
        names = ["native"] if compiling else [self.eager_provider, "native"]
        return IrOpPriorityConfig.from_dict(dict.fromkeys(_in_tree_ops(), names))


class CudaPlatform(_BuiltIn):
    """NVIDIA GPUs."""

    name = "cuda"

    def is_available(self) -> bool:
        """Ask the driver's management library; CUDA stays uninitialised."""
        return torch.version.cuda is not None and torch.cuda.device_count() > 0


class RocmPlatform(_BuiltIn):
    """AMD GPUs."""

    name = "rocm"

    def is_available(self) -> bool:
        """Ask the driver's management library; HIP stays uninitialised."""
        return torch.version.hip is not None and torch.cuda.device_count() > 0


class XpuPlatform(_BuiltIn):
    """Intel GPUs."""

    name = "xpu"
    eager_provider = "xpu_kernels"

    def is_available(self) -> bool:
        """Count the devices of a torch that was built for them."""
        return getattr(torch.version, "xpu", None) is not None and torch.xpu.device_count() > 0


class CpuPlatform(_BuiltIn):
    """Any machine."""

    name = "cpu"


_BUILT_IN = (CudaPlatform, RocmPlatform, XpuPlatform, CpuPlatform)
_lock = threading.RLock()
_chosen: Platform | None = None
_detected: Platform | None = None
_plugins: list[Loaded[Platform | None]] = []


def current_platform() -> Platform:
    """Return the platform of this process.

    It is the one given to `set_platform`, else an available plugin, else the first of CUDA, ROCm,
    XPU and CPU that is available. Detection runs once.
    """
    global _detected
    if _chosen is not None:
        return _chosen
    with _lock:
        if _detected is None:
            _detected = _from_plugins() or _built_in()
        return _detected


def set_platform(platform: Platform | None) -> None:
    """Use `platform` from here on and put its priority defaults in place of the former ones.

    Args:
        platform: None goes back to the detected one.

    Raises:
        IrTypeError: Something else than a Platform.
        UnknownNameError: Strict mode, see `apply_platform_defaults`; then nothing changes.
    """
    global _chosen
    if platform is not None and not isinstance(platform, Platform):
        raise IrTypeError(
            f"vllm_ir.set_platform: needs an instance of vllm_ir.Platform or None, "
            f"got {platform!r} ({type(platform).__name__})."
        )
    with _lock:
        before, _chosen = _chosen, platform
        try:
            apply_platform_defaults()
        except Exception:
            _chosen = before
            raise


def apply_platform_defaults() -> None:
    """Give every op the lists of the current platform, for eager and for compiling.

    A default may name an op or a provider that isn't registered. It is skipped with one notice, so
    that what is left of the list runs, `native` at the end.

    Raises:
        UnknownNameError: Strict mode, and something was not registered; then nothing was set.
    """
    platform = current_platform()
    defaults = {
        compiling: default_priority(platform, compiling=compiling) for compiling in (False, True)
    }
    missing = {
        key: f"{text} The platform '{platform.name}' names it in its default priority."
        for config in defaults.values()
        for key, text in config.unknown_names().items()
    }
    if missing and _C.is_strict():
        raise UnknownNameError("\n".join(missing.values()))
    for key, text in missing.items():
        log.warning_once(("platform default", platform.name, *key), "%s It is skipped.", text)
    for op in IrOp.registry.values():
        _give_defaults(op, defaults)
    # An op that is declared later gets its lists then.
    on_declare[:] = [lambda op: _give_defaults(op, defaults)]


def _give_defaults(op: IrOp, defaults: Mapping[bool, IrOpPriorityConfig]) -> None:
    for compiling, config in defaults.items():
        op.set_platform_default(list(config.get(op.name, ())), compiling=compiling)


def default_priority(platform: Platform, *, compiling: bool) -> IrOpPriorityConfig:
    """Ask a platform for its lists, also one whose method takes no `compiling`."""
    method = platform.get_default_ir_op_priority
    takes_it = "compiling" in inspect.signature(method).parameters
    lists = method(compiling=compiling) if takes_it else method()
    return IrOpPriorityConfig.from_any(lists)


def import_kernels() -> None:
    """Import the current platform's implementations.

    When an out-of-tree platform fails here, it is recorded as a failed plugin, and the built-in
    platform of this machine takes its place.
    """
    global _detected
    platform = current_platform()
    try:
        platform.import_ir_kernels()
    except Exception as error:
        plugin = next((p for p in _plugins if p.value is platform), None)
        if plugin is None:
            raise
        entry_points.fail(plugin.record, f"{type(error).__name__}: {error}", error)
        _detected = _built_in()
        _detected.import_ir_kernels()


def _from_plugins() -> Platform | None:
    """Return the available platform of the plugins; of several none, with a warning."""
    _plugins.extend(entry_points.load_group(entry_points.PLATFORMS, _make))
    available = []
    for plugin in _plugins:
        if plugin.value is None:
            entry_points.mark_unavailable(plugin.record, "the platform isn't available here")
        else:
            available.append(plugin)
    if len(available) > 1:
        entry_points.fail_together(
            [plugin.record for plugin in available], "one platform is available at a time"
        )
        return None
    return available[0].value if available else None


def _make(loaded: object) -> Platform | None:
    """Turn the object of an entry point into a platform, None when it isn't available."""
    platform = loaded() if callable(loaded) else loaded
    if isinstance(platform, type) and issubclass(platform, Platform):
        platform = platform()
    if platform is None:
        return None
    if not isinstance(platform, Platform):
        raise IrTypeError(
            f"an entry point of {entry_points.PLATFORMS} gives a vllm_ir.Platform or None, "
            f"got {platform!r} ({type(platform).__name__})"
        )
    if not platform.is_available():
        return None
    for compiling in (False, True):
        default_priority(platform, compiling=compiling)  # a list that can't be read fails here
    return platform


def _built_in() -> Platform:
    return next(p for kind in _BUILT_IN if (p := kind()).is_available())


def _in_tree_ops() -> list[str]:
    package = "vllm_ir.ops."
    return [n for n, op in IrOp.registry.items() if f"{op.__module__}.".startswith(package)]
