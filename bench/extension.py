# SPDX-License-Identifier: Apache-2.0
"""Builds a bench's C++ counterpart against the installed torch, once a content, and imports it."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import torch

HERE = Path(__file__).resolve().parent
FLAGS = ["-O3", "-g0", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-DNDEBUG", "-Wall"]


def load_extension(name: str, include_folders: list[Path]) -> ModuleType:
    """Return the module built from `bench/<name>.cpp`.

    The first call for a source, a torch and a set of headers takes about a minute; later ones load
    the stored build.

    Args:
        name: name of the source file and of the module.
        include_folders: searched for headers besides torch's and Python's; all headers in them
            count as content.

    Raises:
        RuntimeError: there is no compiler, or it failed; the text ends with what it said.
    """
    source = HERE / f"{name}.cpp"
    library = HERE.parent / "build" / "bench" / _content_key(source, include_folders) / f"{name}.so"
    if not library.exists():
        _compile(source, library, include_folders)
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _content_key(source: Path, include_folders: list[Path]) -> str:
    parts = [sys.version, torch.__version__, " ".join(FLAGS)]
    headers = [header for folder in include_folders for header in sorted(folder.rglob("*.h"))]
    parts += [file.read_text() for file in (source, *headers)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(source: Path, library: Path, include_folders: list[Path]) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError("This bench needs a C++ compiler (g++ or c++) on the PATH.")
    torch_folder = Path(torch.__file__).parent
    system = [
        torch_folder / "include",
        torch_folder / "include/torch/csrc/api/include",
        sysconfig.get_path("include"),
    ]
    command = [compiler, *FLAGS, *(f"-I{folder}" for folder in include_folders)]
    command += [part for folder in system for part in ("-isystem", str(folder))]
    command += [str(source), f"-L{torch_folder / 'lib'}", f"-Wl,-rpath,{torch_folder / 'lib'}"]
    command += ["-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"]
    library.parent.mkdir(parents=True, exist_ok=True)
    unfinished = library.with_suffix(".unfinished")
    print(f"building {source.name} (about a minute, once)", file=sys.stderr, flush=True)
    result = subprocess.run([*command, "-o", str(unfinished)], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"Building {source.name} failed:\n{result.stderr[-4000:]}")
    unfinished.rename(library)  # a build that was interrupted is never loaded
