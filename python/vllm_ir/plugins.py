# SPDX-License-Identifier: Apache-2.0
"""The start of a process: platform, in-tree providers, plugins, default priorities, in this order.

`import vllm_ir` ends with `load_plugins`, so that every process that imports it, a spawned worker
too, has the same implementations to choose from.
"""

import threading
from types import ModuleType

from vllm_ir import _C, entry_points, log, platforms
from vllm_ir.entry_points import PluginRecord
from vllm_ir.errors import IrTypeError

_lock = threading.RLock()
_state = "new"  # then loading, done


def load_plugins() -> tuple[PluginRecord, ...]:
    """Load what is installed, once; later calls, and calls from a plugin, load nothing more.

    Entry points of the group `vllm_ir.providers` are modules, whose import registers, or functions,
    which are called without arguments. Those of `vllm_ir.platforms` are `Platform` classes,
    instances, or functions that return one or None. VLLM_IR_PLUGINS chooses among them by name.

    Returns:
        What became of each plugin.

    Raises:
        IrImportError: Strict mode, and a plugin failed or VLLM_IR_PLUGINS names none of them.
    """
    global _state
    with _lock:
        if _state == "new":
            _state = "loading"
            try:
                _load()
            except BaseException:
                _state = "new"
                raise
            _state = "done"
        return entry_points.records()


def _load() -> None:
    platforms.import_kernels()
    entry_points.load_group(entry_points.PROVIDERS, _register)
    if _C.is_strict():
        entry_points.raise_failures()
    for text in entry_points.unknown_names():
        log.warning_once(("plugin", text), "%s", text)
    platforms.apply_platform_defaults()


def _register(loaded: object) -> None:
    if isinstance(loaded, ModuleType):
        return  # its import has registered
    if not callable(loaded):
        raise IrTypeError(
            f"an entry point of {entry_points.PROVIDERS} is a module or a function, "
            f"got {loaded!r} ({type(loaded).__name__})"
        )
    loaded()
