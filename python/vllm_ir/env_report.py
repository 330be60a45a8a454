# SPDX-License-Identifier: Apache-2.0
"""What a bug report needs: versions, build, processor, GPU, plugins and settings.

Collecting it starts no GPU: device names come from nvidia-smi, in its own process.
"""

import importlib.metadata
import os
import platform as host
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TypeAlias

import torch

from vllm_ir import _C, _build_info, cuda_kernels, entry_points, envs
from vllm_ir.entry_points import PluginRecord
from vllm_ir.op import IrOp
from vllm_ir.platforms import current_platform

_SECONDS = 5  # for a tool of the driver that hangs
Facts: TypeAlias = dict[str, str | None]
_RELATED = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TRITON_INTERPRET")


@dataclass(frozen=True)
class EnvReport:
    """Facts by section: section → name → value, None where there is none to tell."""

    sections: dict[str, Facts]
    plugins: tuple[PluginRecord, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON data."""
        return {**self.sections, "plugins": [plugin.to_dict() for plugin in self.plugins]}

    def __str__(self) -> str:
        found: Facts = {str(plugin): plugin.outcome for plugin in self.plugins}
        return "\n".join(
            line
            for title, facts in {**self.sections, "plugins": found}.items()
            for line in _section(title, facts)
        )


def env_report() -> EnvReport:
    """Describe this process, its build and its machine."""
    return EnvReport(
        {
            "vllm_ir": _package(),
            "build": _build(),
            "torch": _torch(),
            "machine": _machine(),
            "cuda": _cuda(),
            "unsupported here": _unsupported(),
            "environment": _environment(),
        },
        entry_points.records(),
    )


def package_version() -> str | None:
    """Return the version of vllm_ir, None where neither the build nor an installed package has one.

    A build where CMake ran by hand, as in development, does not know it.
    """
    if _build_info.VERSION:
        return _build_info.VERSION
    try:
        return importlib.metadata.version("vllm_ir")
    except importlib.metadata.PackageNotFoundError:
        return None


def _section(title: str, facts: Facts) -> list[str]:
    if not facts:
        return [f"{title}: none"]
    width = max(map(len, facts))
    return [f"{title}:", *(f"  {name:<{width}}  {value or '-'}" for name, value in facts.items())]


def _package() -> Facts:
    return {
        "version": package_version(),
        "folder": os.path.dirname(os.path.abspath(__file__)),
        "platform": current_platform().name,
        "strict": str(_C.is_strict()),
        "batch invariant": str(_C.is_batch_invariant()),
        "ops": ", ".join(sorted(IrOp.registry)),
    }


def _build() -> Facts:
    names = [name for name in dir(_build_info) if not name.startswith("_")]
    names.remove("VERSION")  # the first section tells it
    return {
        name.lower().replace("_", " "): str(getattr(_build_info, name)) or None for name in names
    }


def _torch() -> Facts:
    return {
        "version": torch.__version__,
        "commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "xpu": getattr(torch.version, "xpu", None),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }


def _machine() -> Facts:
    return {
        "python": sys.version.replace("\n", " "),
        "system": host.platform(),
        "processor": f"{host.machine()}, {os.cpu_count()} cores",
        "instruction set in use": _C.cpu_level(),
    }


def _cuda() -> Facts:
    return {
        "initialised here": str(torch.cuda.is_initialized()),  # type: ignore[no-untyped-call]
        "driver and devices": _run(
            "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
        ),
        "nvcc": _run("nvcc", "--version").rpartition("; ")[2],
        "kernels of vllm_c": cuda_kernels.why_unusable() or "usable",
    }


def _run(*command: str) -> str:
    """Return what a tool prints, its lines joined, or why it printed nothing."""
    path = shutil.which(command[0])
    if path is None:
        return f"no {command[0]} on PATH"
    try:
        done = subprocess.run(
            [path, *command[1:]], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    text = done.stdout if done.returncode == 0 else done.stdout + done.stderr
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def _unsupported() -> Facts:
    return {
        f"{op.name}.{impl.provider}": impl.unsupported_reason or "supported=False"
        for op in IrOp.registry.values()
        for impl in op.impls.values()
        if not impl.supported
    }


def _environment() -> Facts:
    facts: Facts = {
        row.name: envs.raw(row.name) or f"not set ({row.default})"
        for row in envs.TABLE
        if row.read_at == "start"
    }
    return {**facts, **{name: os.environ.get(name) for name in _RELATED}, **envs.unknown()}
