# SPDX-License-Identifier: Apache-2.0
"""Whether this process can run this build's CUDA kernels, and why not.

It is asked when vllm_ir is imported, so it starts no GPU: a process that has started one can't fork
workers. The driver's management library (NVML) answers without starting any; it sees all GPUs of
the machine, whatever CUDA_VISIBLE_DEVICES says.
"""

import ctypes
import re
from dataclasses import dataclass
from typing import Any

import torch

from vllm_ir import _build_info

_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_Capability = tuple[int, int]


class _NoAnswer(Exception):
    """A call of NVML's failed."""


@dataclass(frozen=True)
class Gpus:
    """What the driver says.

    Attributes:
        cuda: The newest version of CUDA that the driver runs, major and minor.
        capabilities: The compute capability of each GPU.
    """

    cuda: tuple[int, int]
    capabilities: tuple[_Capability, ...]


def why_unusable() -> str:
    """Return why the CUDA kernels can't run in this process, "" when they can."""
    if _build_info.CUDA_SKIPPED:
        return f"vllm_ir was built without CUDA kernels: {_build_info.CUDA_SKIPPED}"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is not built for CUDA"
    if torch.cuda.device_count() == 0:
        return "torch finds no CUDA GPU"
    gpus = ask_driver()
    return "" if gpus is None else why_not_on(gpus)


def why_not_on(gpus: Gpus) -> str:
    """Return why this build's kernels don't run on these GPUs, "" when they run on each."""
    toolkit = _build_info.CUDA_TOOLKIT
    compiled_by = tuple(map(int, toolkit.split(".")[:2]))
    if gpus.cuda < compiled_by[:1]:
        return (
            f"the kernels were compiled by CUDA {toolkit}, and the driver runs CUDA up to "
            f"{_dotted(gpus.cuda)}"
        )
    # A driver compiles no PTX of a newer CUDA, not even of a newer minor version.
    architectures = _build_info.CUDA_ARCHITECTURES
    usable = architectures if gpus.cuda >= compiled_by else _machine_code(architectures)
    without = [c for c in gpus.capabilities if not has_code_for(c, usable)]
    if not without:
        return ""
    every = ";".join(_dotted(c) for c in sorted(set(gpus.capabilities)))
    return (
        f"this machine has a GPU of compute capability {_dotted(without[0])} (hidden ones count "
        f"too), and the kernels were compiled by CUDA {toolkit} for {architectures}, for a driver "
        f"that runs CUDA up to {_dotted(gpus.cuda)}; build vllm_ir with "
        f"TORCH_CUDA_ARCH_LIST='{every}'"
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _machine_code(architectures: str) -> str:
    """Return the architectures without their PTX."""
    items = [i for i in architectures.split(";") if not i.endswith("-virtual")]
    return ";".join(i if i.endswith("-real") else f"{i}-real" for i in items)


def has_code_for(capability: _Capability, architectures: str) -> bool:
    """Whether code for these architectures runs on a GPU.

    Machine code runs on the same major version, from its minor version on; with a suffix "a" on
    just this one. PTX, which an architecture without "-real" has, is compiled for newer ones.

    Args:
        capability: Of the GPU.
        architectures: As CMake has them, "80-real;90a-real;120" say.
    """
    major, minor = capability
    for item in architectures.split(";"):
        match = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", item)
        if match is None:
            return True  # "all", "native": CMake's own words, made for this machine or for any
        own, suffix, kind = (int(match[1]), int(match[2])), match[3], match[4]
        same_major = own[0] == major and own[1] <= minor
        machine_code = kind != "-virtual" and (own == capability if suffix == "a" else same_major)
        ptx = kind != "-real" and (own <= capability if not suffix else own == capability)
        if machine_code or ptx:
            return True
    return False


def ask_driver() -> Gpus | None:
    """Ask NVML; None where it isn't there or has no answer, as on integrated GPUs."""
    nvml = _library()
    if nvml is None:
        return None
    try:
        return _asked(nvml)
    except (_NoAnswer, AttributeError):  # the latter: a library without one of the functions
        return None


def _library() -> Any:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _asked(nvml: Any) -> Gpus:
    def call(function: str, *args: Any) -> None:
        if getattr(nvml, function)(*args) != 0:
            raise _NoAnswer(function)

    call("nvmlInit_v2")
    try:
        version, count = ctypes.c_int(), ctypes.c_uint()
        call("nvmlSystemGetCudaDriverVersion", ctypes.byref(version))
        call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            gpu, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(gpu))
            call(
                "nvmlDeviceGetCudaComputeCapability",
                gpu,
                ctypes.byref(major),
                ctypes.byref(minor),
            )
            found.append((major.value, minor.value))
        return Gpus((version.value // 1000, version.value % 1000 // 10), tuple(found))
    finally:
        nvml.nvmlShutdown()
