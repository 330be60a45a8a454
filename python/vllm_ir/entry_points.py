# SPDX-License-Identifier: Apache-2.0
"""Installed plugins: finding them, loading each one once, and keeping what became of it.

Knows nothing of ops and platforms. A plugin that fails never stops the others: it is recorded with
its reason and announced by one warning; strict mode raises at the end (`raise_failures`).
"""

import importlib.metadata
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Generic, TypeVar

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
    for point in sorted(_installed(group), key=lambda p: (p.name, p.value)):
        record = PluginRecord(group, point.name, point.value, _package(point))
        if _key(record) in _records:
            continue
        if wanted is not None and point.name not in wanted:
            _set(replace(record, state="disabled", reason="not in VLLM_IR_PLUGINS"))
            continue
        _set(record)
        try:
            value = use(point.load())
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


def _failure(record: PluginRecord) -> str:
    others = ",".join(dict.fromkeys(r.name for r in records() if r.name != record.name))
    return (
        f"vllm_ir.plugins: {record} failed, got {record.reason}. "
        f"Mend or uninstall it, or leave it out with VLLM_IR_PLUGINS={others or 'none'}."
    )


def _key(record: PluginRecord) -> tuple[str, str, str]:
    return record.group, record.name, record.target


def _set(record: PluginRecord) -> PluginRecord:
    _records[_key(record)] = record
    return record


def _package(point: importlib.metadata.EntryPoint) -> str:
    dist = point.dist
    return f"{dist.name} {dist.version}" if dist is not None else "an unknown package"


def _installed(group: str) -> importlib.metadata.EntryPoints:
    return _all_installed().select(group=group)


@cache
def _all_installed() -> importlib.metadata.EntryPoints:
    # One walk over the installed packages (5 to 20 ms) for all groups.
    return importlib.metadata.entry_points()
