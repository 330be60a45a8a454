# SPDX-License-Identifier: Apache-2.0
"""Where passes leave their reports: a table of the process, and a file beside torch's caches.

Inductor may run a copy of a pass, run it later (backward graphs), or not at all: when its caches
have the result. So a pass holds no report itself; it knows the key of its compilation. The file
gives the report of a compilation whose code came from a cache.
"""

import contextlib
import json
import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm_ir.compile.report import GraphReport
from vllm_ir.compile.size_guards import hold
from vllm_ir.log import logger


@dataclass
class _Entry:
    paths: list[str]
    sizes: dict[str, int] = field(default_factory=dict)
    graphs: list[GraphReport] = field(default_factory=list)

    def all_graphs(self) -> list[GraphReport]:
        """What ran here, and what was kept of kinds that did not: their code came from a cache."""
        ran = {g.kind for g in self.graphs}
        for path in self.paths:
            kept = [g for g in _read(path) if g.kind not in ran and hold(g.guards, self.sizes)]
            if kept:
                return kept + self.graphs
        return list(self.graphs)

    def to_keep(self, path: str) -> list[GraphReport]:
        """What ran here, and what a file has for other sizes or other kinds of graphs."""
        ran = {(g.kind, *g.guards) for g in self.graphs}
        return [g for g in _read(path) if (g.kind, *g.guards) not in ran] + self.graphs


_entries: dict[str, _Entry] = {}
_lock = threading.Lock()


def open_entry(key: str, path: str = "", sizes: dict[str, int] | None = None) -> None:
    """Begin to collect the reports of one compilation.

    Args:
        key: The compilation's.
        path: The file to keep them in.
        sizes: The symbolic sizes at hand: they tell which of the kept reports are meant.
    """
    with _lock:
        _entries[key] = _Entry([path] if path else [], sizes or {})


def keep_also(key: str, path: str) -> None:
    """Keep the reports of a compilation in another file too; what that has goes to the others."""
    with _lock:
        entry = _entries.get(key)
        if entry is None or path in entry.paths:
            return
        found = _read(path)
        for other in entry.paths:
            if found and not _read(other):
                _write(other, found)
        entry.paths.append(path)


def close_entry(key: str) -> None:
    """Forget the reports of a compilation; the file stays."""
    with _lock:
        _entries.pop(key, None)


def add(key: str, report: GraphReport, path: str = "") -> None:
    """Add the report of one graph.

    Args:
        key: The compilation's.
        report: The graph's.
        path: The file, for a process in which nobody opened the entry.
    """
    with _lock:
        entry = _entries.setdefault(key, _Entry([path] if path else []))
        entry.graphs.append(report)
        for path in entry.paths:
            _write(path, entry.to_keep(path))


def graphs(key: str) -> list[GraphReport]:
    """Return the reports of a compilation so far; of a cache hit, those that were kept."""
    with _lock:
        entry = _entries.get(key)
        return entry.all_graphs() if entry else []


def side_file(name: str) -> str:
    """Return the path of a report file in torch's cache folder."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return os.path.join(cache_dir(), "vllm_ir_reports", f"{name}.json")


def _write(path: str, reports: list[GraphReport]) -> None:
    text = json.dumps([g.to_dict() for g in reports], default=str)
    # Not `tempfile`: its files are for one user, and a cache folder may be shared by several.
    unfinished = Path(f"{path}.{os.getpid()}.{threading.get_ident()}")
    try:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text)
        os.replace(unfinished, path)  # readers see the old file or the new one
    except OSError as error:
        logger.info("vllm_ir.compile: the report can't be kept for cache hits: %s", error)
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _read(path: str) -> list[GraphReport]:
    if not os.path.exists(path):
        return []
    try:
        data: list[dict[str, Any]] = json.loads(Path(path).read_text())
        return [replace(GraphReport.from_dict(d), cached=True) for d in data]
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.info("vllm_ir.compile: the kept report %s can't be read: %s", path, error)
        return []
