# SPDX-License-Identifier: Apache-2.0
"""scikit-build-core, plus one thing: build against the torch that is installed in the target.

torch is no build requirement: an isolated build would download gigabytes and build against another
torch than the one that runs. pip's isolated build runs the target's own interpreter, so the
target's site-packages can still be named, though not imported; torch is looked up there as files.
"""

import importlib.util
import os
import site
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scikit_build_core import build as _backend
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, Any] | None

NO_TORCH = (
    "vllm_ir: building needs an installed torch, got none in {where}. Install torch first "
    "(pip install 'torch>=2.11,<2.15') and build again; where the build environment is a fresh one "
    "(uv, python -m build), set VLLM_IR_TORCH_ROOT to the torch package folder or use "
    "--no-build-isolation."
)


def _candidates() -> Iterator[Path]:
    """Yield the folders that may be the torch package, most wanted first."""
    override = os.environ.get("VLLM_IR_TORCH_ROOT")
    if override:
        yield Path(override)
        return
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        yield Path(spec.origin).parent
    folders = site.getsitepackages()
    if (
        sys.base_prefix in site.PREFIXES
    ):  # not in a virtual environment that is closed to the outside
        folders = [*folders, site.getusersitepackages()]
    yield from (Path(folder) / "torch" for folder in folders)


def torch_root() -> Path:
    """Return the torch package to build against, or exit with one sentence when there is none."""
    places = list(_candidates())
    for place in places:
        if (place / "version.py").is_file() and (place / "include" / "ATen").is_dir():
            return place.resolve()
    raise SystemExit(NO_TORCH.format(where=" or ".join(str(p) for p in places)))


def _with_torch(settings: Settings) -> dict[str, Any]:
    return {**(settings or {}), "cmake.define.VLLM_IR_TORCH_ROOT": str(torch_root())}


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what scikit-build-core requires, once it is sure that there is a torch."""
    return list(_backend.get_requires_for_build_wheel(_with_torch(config_settings)))


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return what scikit-build-core requires, once it is sure that there is a torch."""
    return list(_backend.get_requires_for_build_editable(_with_torch(config_settings)))


def prepare_metadata_for_build_wheel(directory: str, config_settings: Settings = None) -> str:
    """Write the metadata of a wheel."""
    return _backend.prepare_metadata_for_build_wheel(directory, _with_torch(config_settings))


def prepare_metadata_for_build_editable(directory: str, config_settings: Settings = None) -> str:
    """Write the metadata of an editable wheel."""
    return _backend.prepare_metadata_for_build_editable(directory, _with_torch(config_settings))


def build_wheel(
    directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel against the torch that was found."""
    return _backend.build_wheel(directory, _with_torch(config_settings), metadata_directory)


def build_editable(
    directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build an editable wheel against the torch that was found."""
    return _backend.build_editable(directory, _with_torch(config_settings), metadata_directory)
