# SPDX-License-Identifier: Apache-2.0
"""Installed plugins: finding them, loading each one once, and keeping what became of it.

Knows nothing of ops and platforms. A plugin that fails never stops the others: it is recorded with
its reason and announced by one warning; strict mode raises at the end (`raise_failures`).
"""

import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Generic, TypeVar

from vllm_ir import envs, log
from vllm_ir.errors import IrImportError, nearest

PROVIDERS = "vllm_ir.providers"
PLATFORMS = "vllm_ir.platforms"
T = TypeVar("T")


@dataclass(frozen=True)
class PluginRecord:
    """What became of one plugin."""

    group: str
    name: str
    target: str
    package: str
    state: str = "found"  # then loaded, failed, disabled (by VLLM_IR_PLUGINS) or unavailable
    reason: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the fields, for JSON."""
        return asdict(self)

    @property
    def outcome(self) -> str:
        """`loaded`, or what else became of it and why."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

    def __str__(self) -> str:
        return f"plugin '{self.name}' of {self.package} ({self.group} = {self.target})"


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A loaded plugin and what `use` made of it."""

    record: PluginRecord
    value: T


_records: dict[tuple[str, str, str], PluginRecord] = {}


def records() -> tuple[PluginRecord, ...]:
    """Return what became of each plugin, in the order of loading."""
    return tuple(_records.values())


def load_group(group: str, use: Callable[[object], T]) -> list[Loaded[T]]:
    """Load the plugins of a group that were not met before.

    Args:
        group: `PROVIDERS` or `PLATFORMS`.
        use: Gets the loaded object; what it raises counts as a failure of the plugin.

    Returns:
        The plugins that loaded now. A plugin that calls this again while it loads gets none.
    """
    wanted = envs.plugins()
    loaded = []
    for point in _installed(group):
        record = PluginRecord(group, point.name, point.value, _package(point))
        if _key(record) in _records:
            continue
        if wanted is not None and point.name not in wanted:
            _set(replace(record, state="disabled", reason="not in VLLM_IR_PLUGINS"))
            continue
        _set(record)
        try:
            value = use(_object_of(point))
        except Exception as error:
            fail(record, f"{type(error).__name__}: {error}", error)
        else:
            loaded.append(Loaded(_set(replace(record, state="loaded")), value))
    return loaded


def fail(record: PluginRecord, reason: str, error: Exception | None = None) -> None:
    """Record a failure and announce it once."""
    record = _set(replace(record, state="failed", reason=reason))
    log.warning_once(("plugin", *_key(record)), "%s", _failure(record))
    if error is not None:
        log.logger.debug("traceback of %s", record, exc_info=error)


def fail_together(conflicting: Sequence[PluginRecord], rule: str) -> None:
    """Record that plugins exclude each other, so that none of them counts, and announce it once."""
    names = ", ".join(f"'{record.name}' of {record.package}" for record in conflicting)
    for record in conflicting:
        _set(replace(record, state="failed", reason=f"{rule}, got {names}"))
    text = f"vllm_ir.plugins: {rule}, got {names}. Name the plugins to load in VLLM_IR_PLUGINS."
    log.warning_once(("plugins", text), "%s", text)


def mark_unavailable(record: PluginRecord, reason: str) -> None:
    """Record that a plugin loaded and has nothing to do on this machine."""
    _set(replace(record, state="unavailable", reason=reason))


def raise_failures() -> None:
    """Raise one error for every failed plugin and every unknown name in VLLM_IR_PLUGINS.

    Raises:
        IrImportError: There is one.
    """
    problems = [_failure(r) for r in records() if r.state == "failed"] + unknown_names()
    if problems:
        raise IrImportError("\n".join(problems))


def unknown_names() -> list[str]:
    """Return a text for each name in VLLM_IR_PLUGINS that no installed plugin has."""
    known = sorted({record.name for record in records()})
    return [
        f"vllm_ir.plugins: VLLM_IR_PLUGINS names installed plugins, got {name!r}. "
        f"Installed: {', '.join(known) or 'none'}.{nearest(name, known)}"
        for name in envs.plugins() or ()
        if name not in known
    ]


def _object_of(point: importlib.metadata.EntryPoint) -> object:
    try:
        return point.load()
    except AttributeError as error:
        # `import plugin` came first and has reached its own `import vllm_ir`, so what the entry
        # point names isn't defined yet. A module as entry point has no such order.
        spec = getattr(sys.modules.get(point.module), "__spec__", None)
        if not getattr(spec, "_initializing", False):
            raise
        raise IrImportError(
            f"{point.module} was imported first and isn't ready: import vllm_ir before it"
        ) from error


def _failure(record: PluginRecord) -> str:
    others = ",".join(_working_names())
    return (
        f"vllm_ir.plugins: {record} failed, got {record.reason}. "
        f"Mend or uninstall it, or leave it out with VLLM_IR_PLUGINS={others or 'none'}."
    )


def _working_names() -> list[str]:
    """Return the names that VLLM_IR_PLUGINS may keep: wanted, and not known to fail."""
    wanted = envs.plugins()
    failed = {record.name for record in records() if record.state == "failed"}
    names = [point.name for group in (PLATFORMS, PROVIDERS) for point in _installed(group)]
    kept = [name for name in names if wanted is None or name in wanted]
    return list(dict.fromkeys(name for name in kept if name not in failed))


def _key(record: PluginRecord) -> tuple[str, str, str]:
    return record.group, record.name, record.target


def _set(record: PluginRecord) -> PluginRecord:
    _records[_key(record)] = record
    return record


def _package(point: importlib.metadata.EntryPoint) -> str:
    dist = point.dist
    return f"{dist.name} {dist.version}" if dist is not None else "an unknown package"


def _installed(group: str) -> list[importlib.metadata.EntryPoint]:
    return sorted(_all_installed().select(group=group), key=lambda point: (point.name, point.value))


@cache
def _all_installed() -> Any:
    # One walk over the installed packages for all groups: most of what plugins add to the import.
    # Python 3.10 and 3.11 return another class than later ones, with the same `select`.
    return importlib.metadata.entry_points()
