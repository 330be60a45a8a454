# SPDX-License-Identifier: Apache-2.0
"""What device_check.py must know about the device: whether it is there, what it is, its cache."""

import shutil
import subprocess
from pathlib import Path

import torch
from machine import describe_machine

from vllm_ir import _build_info
from vllm_ir.env_report import package_version

_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
_USUAL_CACHE = 32 * 2**20
_SMI_SECONDS = 10
_SMI = (
    *("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "clocks.max.mem"),
    *("temperature.gpu", "power.limit"),
)


def why_not(device: str) -> str:
    """Return the sentence that says why a device can't be used, "" when it can."""
    if device != "cuda":
        return ""
    if torch.version.cuda is None:
        return (
            "device_check: --device cuda needs a torch that was built for CUDA, "
            f"got torch {torch.__version__}. Install one, or say --device cpu."
        )
    if not torch.cuda.is_available():
        return (
            f"device_check: --device cuda needs a GPU, and torch {torch.__version__} "
            f"(CUDA {torch.version.cuda}) finds none. Look at nvidia-smi, or say --device cpu."
        )
    return ""


def describe(device: str) -> dict[str, str]:
    """Return the facts that stand above the table: machine, build and, for CUDA, the GPU."""
    version = package_version() or "version unknown"
    facts = describe_machine() | {
        "vllm_ir": f"{version}, {_build_info.BUILD_TYPE}, by {_build_info.COMPILER}",
        "built for": f"torch {_build_info.TORCH_FULL}, {_kernels_built()}",
        "torch cuda": torch.version.cuda or "none",
    }
    return facts | _gpu() if device == "cuda" else facts


def _kernels_built() -> str:
    if not _build_info.CUDA_TOOLKIT:
        return f"no CUDA kernels ({_build_info.CUDA_SKIPPED})"
    return f"CUDA {_build_info.CUDA_TOOLKIT} for {_build_info.CUDA_ARCHITECTURES}"


def _gpu() -> dict[str, str]:
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts = {
        "gpu": f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {gpu.multi_processor_count} SMs",
        "gpu memory": f"{gpu.total_memory / 2**30:.1f} GiB",
        "gpu cache": f"{gpu.L2_cache_size / 2**20:.0f} MiB of L2",
    }
    return facts | smi_facts()


def smi_facts() -> dict[str, str]:
    """Return what nvidia-smi tells about driver, clocks, temperature and power, or why nothing."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return {"nvidia-smi": "not on PATH"}
    query = [path, f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=_SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"nvidia-smi": f"{type(error).__name__}: {error}"}
    first = (done.stdout.splitlines() or [""])[0]
    values = [part.strip() for part in first.split(",")]
    if done.returncode != 0 or len(values) != len(_SMI):
        return {"nvidia-smi": f"exit code {done.returncode}: {(done.stdout + done.stderr).strip()}"}
    return dict(zip(_SMI, values, strict=True))


def cache_bytes(device: str) -> int:
    """Return the size of the largest cache: L2 of a GPU, the last level of a processor."""
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        return int(gpu.L2_cache_size)
    sizes = [parse_size(path.read_text()) for path in _CPU_CACHES.glob("index*/size")]
    return max(sizes, default=_USUAL_CACHE)


def parse_size(text: str) -> int:
    """Read the kernel's way to write the size of a cache, for example 32768K."""
    text = text.strip()
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)
