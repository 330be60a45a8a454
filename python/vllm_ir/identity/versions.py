# SPDX-License-Identifier: Apache-2.0
"""Modules that count by the version of their package: nobody edits them, or all of it is hashed."""

import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from vllm_ir import _build_info

_PACKAGES = ("torch", "torchgen", "functorch", "numpy", "triton")


def is_versioned(module: ModuleType) -> bool:
    """Return whether a module belongs to Python, torch, its companions, or this package.

    By where its file lies, not by its name.
    """
    if is_ours(module) and is_extension(module):
        return False  # its content counts
    path = getattr(module, "__file__", None)
    if path is None and not hasattr(module, "__path__"):  # inside a shared library, or built in
        package = sys.modules.get(module.__name__.partition(".")[0])
        path = getattr(package, "__file__", None)
    return _is_versioned(module.__name__, path, _roots())


def version_of(module: ModuleType) -> str:
    """Return name and version of the package that a versioned module belongs to."""
    package = module.__name__.partition(".")[0]
    if package == _PACKAGE:
        return f"{package} {OWN_SOURCES}"
    version = getattr(sys.modules.get(package), "__version__", None)
    return f"{package} {version or sys.version}"


def is_ours(module: ModuleType) -> bool:
    """Return whether a module is one of this package."""
    return module.__name__.partition(".")[0] == _PACKAGE


def is_extension(module: ModuleType) -> bool:
    """Return whether a module is a shared library."""
    return str(getattr(module, "__file__", None)).endswith((".so", ".pyd"))


def module_of_globals(namespace: Mapping[str, Any]) -> ModuleType | None:
    """Return the module whose namespace this is, None for one that a program has made up."""
    module = sys.modules.get(str(namespace.get("__name__")))
    return module if module is not None and vars(module) is namespace else None


def home_of(value: Any) -> ModuleType | None:
    """Return the versioned module that has this object under its own name: NumPy's functions."""
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    if module is None or not is_versioned(module):
        return None
    return module if vars(module).get(getattr(value, "__name__", "")) is value else None


def _roots() -> tuple[str, ...]:
    paths = [getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES]
    return (_OWN_FOLDER, *(os.path.dirname(path) + os.sep for path in paths if path))


@functools.cache
def _is_versioned(name: str, path: str | None, packages: tuple[str, ...]) -> bool:
    if path is None:
        return name in sys.builtin_module_names
    if path.startswith(packages):
        return True
    own = tuple(sysconfig.get_path(which) + os.sep for which in ("stdlib", "platstdlib"))
    installed = any(part in ("site-packages", "dist-packages") for part in path.split(os.sep))
    return path.startswith(own) and not installed


def _own_sources() -> str:
    digest = hashlib.sha256(_build_info.VERSION.encode())
    for folder, subfolders, files in os.walk(_OWN_FOLDER):
        subfolders[:] = sorted(name for name in subfolders if name != "__pycache__")
        for path in (os.path.join(folder, name) for name in sorted(files) if name.endswith(".py")):
            with open(path, "rb") as file:
                digest.update(path.removeprefix(_OWN_FOLDER).encode() + b"\0" + file.read())
    return digest.hexdigest()


_PACKAGE = __name__.partition(".")[0]
_OWN_FOLDER = os.path.dirname(str(sys.modules[_PACKAGE].__file__)) + os.sep
# At once, not when it is asked for: a file that is edited later isn't what this process runs.
OWN_SOURCES = _own_sources()
