# SPDX-License-Identifier: Apache-2.0
"""Who may include or import whom: the arrows of the architecture, checked on the sources.

Each rule is shown to bite by a planted violation, so a walker that finds nothing can't pass.
"""

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# --- C++: what each layer may include, as patterns on the text between the quotes or brackets.
STD = r"[a-z_0-9]+"  # the C++ standard library has no suffix
INTRINSICS = r"(immintrin|arm_neon)\.h"
TORCH = r"(ATen|c10|torch)/.+"
PYTHON = r"(Python|structmember)\.h|pybind11/.+"
CPP_MAY_INCLUDE = {
    "dispatch": [STD, r"cpp/dispatch/.+"],
    "kernels": [STD, INTRINSICS, r"cpp/kernels/.+"],
    "torch": [STD, TORCH, r"cpp/(dispatch|kernels|torch)/.+", r"dlfcn\.h"],
    "python": [STD, TORCH, r"cpp/(dispatch|kernels|torch|python)/.+", PYTHON],
}
# torch/extension.h costs a minute of compilation; torch's python_*.h headers bring Python.h in.
# What of torch is for CUDA isn't there, or doesn't link, in a torch for the CPU.
CUDA_TORCH = r"(ATen|c10|torch/.+)/cuda/.+|cpp/kernels/cuda/(?!launchers\.h).+"
CPP_MAY_NOT_INCLUDE = {
    "torch": r"torch/(extension|python)\.h|torch/csrc/(.+/)?(python_|utils/py).+|torch/csrc/\w+\.h"
    rf"|{CUDA_TORCH}",
    "python": rf"torch/extension\.h|{CUDA_TORCH}",
}
CUDA_HEADER = r"cuda[a-z_0-9]*\.h"  # for cpp/kernels/cuda only
KERNEL_SIDES = {"cpu": "cuda", "cuda": "cpu"}


def cpp_violations(root: Path) -> list[str]:
    """Return one line for each include under root/cpp that its layer may not have."""
    found = []
    for path in sorted((root / "cpp").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        layer, *inner = path.relative_to(root / "cpp").parts
        other_side = KERNEL_SIDES.get(inner[0]) if layer == "kernels" else None
        for header in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M):
            may = [*CPP_MAY_INCLUDE[layer], *([CUDA_HEADER] if inner[0] == "cuda" else [])]
            allowed = any(re.fullmatch(p, header) for p in may)
            denied = re.fullmatch(CPP_MAY_NOT_INCLUDE.get(layer, "(?!)"), header)
            crossed = other_side is not None and header.startswith(f"cpp/kernels/{other_side}/")
            if not allowed or denied or crossed:
                found.append(f"{path.relative_to(root)} includes {header}")
    return found


# --- Python: what each part of the package may import from the package.
PY_MAY_IMPORT = {
    "facade": {"facade"},
    "ops": {"facade", "ops"},
    "providers": {"facade", "ops", "providers"},
    "compile": {"facade", "compile"},
    "testing": {"facade", "ops", "testing"},
}
# The modules that load what registers itself: the package, and the platform hook for its kernels.
LOADERS = {"vllm_ir": {"ops", "providers", "compile"}, "vllm_ir.platforms": {"providers"}}


def part_of(module: str) -> str:
    """Return the part of the package that a module `vllm_ir.<...>` belongs to."""
    name = [*module.split("."), ""][1]
    return name if name in PY_MAY_IMPORT else "facade"


def imported_modules(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Yield each name that the source imports, at any depth, also by import_module("...")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: None if is_package else -1]
            base = base[: len(base) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            # `from vllm_ir import providers` imports a module too, where there is one of that name.
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            callee = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if callee in {"import_module", "__import__"}:
                yield str(node.args[0].value)


def python_violations(root: Path) -> list[str]:
    """Return one line for each import inside root/python/vllm_ir that its part may not have."""
    found = []
    for path in sorted((root / "python" / "vllm_ir").rglob("*.py")):
        is_package = path.name == "__init__.py"
        relative = path.relative_to(root / "python").with_suffix("")
        module = ".".join(relative.parts[:-1] if is_package else relative.parts)
        allowed = PY_MAY_IMPORT[part_of(module)] | LOADERS.get(module, set())
        for name in imported_modules(ast.parse(path.read_text()), module, is_package):
            if name.split(".")[0] == "vllm_ir" and part_of(name) not in allowed:
                found.append(f"{path.relative_to(root)} imports {name}")
    return found


def test_includes_follow_the_arrows():
    assert any((ROOT / "cpp").rglob("*.cpp"))
    assert cpp_violations(ROOT) == []


def test_imports_follow_the_arrows():
    assert any((ROOT / "python").rglob("*.py"))
    assert python_violations(ROOT) == []


def plant(root: Path, file: str, text: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "header"),
    [
        ("cpp/dispatch/a.cpp", "ATen/core/Tensor.h"),
        ("cpp/dispatch/a.cpp", "Python.h"),
        ("cpp/dispatch/a.h", "cpp/kernels/dtype.h"),
        ("cpp/dispatch/a.h", "cpp/torch/run.h"),
        ("cpp/kernels/a.h", "cpp/dispatch/op.h"),
        ("cpp/kernels/cpu/a.cpp", "c10/util/BFloat16.h"),
        ("cpp/kernels/cpu/a.cpp", "cpp/kernels/cuda/a.cuh"),
        ("cpp/kernels/cuda/a.cu", "cpp/kernels/cpu/a.h"),
        ("cpp/kernels/a.h", "cuda_fp16.h"),
        ("cpp/kernels/cpu/a.cpp", "cuda_runtime.h"),
        ("cpp/torch/a.cpp", "ATen/cuda/CUDAContext.h"),
        ("cpp/torch/a.cpp", "c10/cuda/CUDAStream.h"),
        ("cpp/torch/a.cpp", "cpp/kernels/cuda/vector.cuh"),
        ("cpp/torch/a.cpp", "cuda_runtime.h"),
        ("cpp/torch/a.cpp", "Python.h"),
        ("cpp/torch/a.cpp", "pybind11/pybind11.h"),
        ("cpp/torch/a.cpp", "torch/csrc/autograd/python_variable.h"),
        ("cpp/torch/a.cpp", "torch/csrc/utils/pybind.h"),
        ("cpp/torch/a.cpp", "cpp/python/module.h"),
        ("cpp/python/a.cpp", "torch/extension.h"),
    ],
)
def test_a_planted_include_is_found(tmp_path, file, header):
    plant(tmp_path, file, f"// first\n#  include <{header}>\n#include <vector>\n")
    assert cpp_violations(tmp_path) == [f"{file} includes {header}"]


@pytest.mark.parametrize(
    ("file", "line", "name"),
    [
        ("op.py", "import vllm_ir.providers.vllm_c", "vllm_ir.providers.vllm_c"),
        ("op.py", "from vllm_ir import providers", "vllm_ir.providers"),
        ("op.py", "from . import providers", "vllm_ir.providers"),
        ("op.py", "from vllm_ir.ops.layernorm import rms_norm", "vllm_ir.ops.layernorm.rms_norm"),
        ("op.py", "import_module('vllm_ir.providers.vllm_c')", "vllm_ir.providers.vllm_c"),
        ("ops/layernorm.py", "from ..providers import vllm_c", "vllm_ir.providers.vllm_c"),
        ("ops/layernorm.py", "from vllm_ir.compile import passes", "vllm_ir.compile.passes"),
        ("compile/lower.py", "from vllm_ir.providers import vllm_c", "vllm_ir.providers.vllm_c"),
        ("compile/lower.py", "def f():\n    import vllm_ir.ops", "vllm_ir.ops"),
        ("providers/a.py", "from vllm_ir.testing import sample", "vllm_ir.testing.sample"),
        ("__init__.py", "from vllm_ir import testing", "vllm_ir.testing"),
        ("platforms.py", "from vllm_ir import compile", "vllm_ir.compile"),
    ],
)
def test_a_planted_import_is_found(tmp_path, file, line, name):
    plant(tmp_path, f"python/vllm_ir/{file}", line)
    assert python_violations(tmp_path) == [f"python/vllm_ir/{file} imports {name}"]


def test_import_brings_neither_triton_nor_inductor_and_leaves_cuda_alone(tmp_path):
    """A stand-in for triton lies on the path, so a guarded `try: import triton` is seen too."""
    (tmp_path / "triton.py").write_text("")
    script = """
        import sys
        import torch

        def refuse(*args):
            raise AssertionError("CUDA was initialised")

        torch.cuda._lazy_init = refuse
        before = set(sys.modules)
        import vllm_ir
        new = set(sys.modules) - before
        print(sorted(m for m in new if m.startswith(("triton", "torch._inductor"))))
        assert not torch.cuda.is_initialized()
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "[]"
