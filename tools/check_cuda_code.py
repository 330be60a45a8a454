#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Read what nvcc makes of the CUDA kernels, without a GPU, and hold it to a budget.

    python tools/check_cuda_code.py [--arch 80 --arch 90] [--root .]

For each kernel and architecture: registers, spills, stack and shared memory, from ptxas; and how
many accesses to global memory are 128 bits wide and how many are narrower, from the machine code
where there is a disassembler (cuobjdump, in a CUDA toolkit, in the triton wheel or in NVIDIA's own
wheels), else from PTX. Exits with 1 when a kernel breaks its budget.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURES = ["80", "86", "89", "90", "100", "120"]
MAX_SHARED = 128  # bytes: one float a warp
# A block of 1024 threads has 64 each; of act_and_mul five blocks of 256 are to fit.
MAX_REGISTERS = {"rms_norm": 64, "fused_add_rms_norm": 64, "act_and_mul": 48}


@dataclass
class Code:
    """What one kernel became on one architecture."""

    registers: int = 0
    stack: int = 0
    spilled: int = 0
    shared: int = 0
    wide: int = 0
    narrow: int = 0
    loads: int = 0
    stores: int = 0

    def cell(self) -> str:
        """Return what the table shows."""
        extra = f" SPILL {self.spilled}" if self.spilled else ""
        return f"{self.registers:3} r {self.wide:2} w {self.narrow:2} n{extra}"


def find_cuobjdump() -> str | None:
    """Return the disassembler: on PATH, beside nvcc, or in a wheel."""
    places = [shutil.which("cuobjdump")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        places += [str(Path(nvcc).resolve().with_name("cuobjdump"))]
    places.append(os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/cuobjdump"))
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        places.append(str(Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"))
    nvidia = importlib.util.find_spec("nvidia")
    for folder in (nvidia.submodule_search_locations or []) if nvidia else []:
        places += [str(p) for p in Path(folder).glob("*/bin/cuobjdump")]
    return next((p for p in places if p and Path(p).is_file()), None)


def read_resources(ptxas: str) -> dict[str, Code]:
    """Parse the output of `ptxas -v`."""
    found: dict[str, Code] = {}
    code = Code()
    for line in ptxas.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            code = found.setdefault(m[1], Code())
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", line):
            code.stack, code.spilled = int(m[1]), int(m[2]) + int(m[3])
        elif m := re.search(r"Used (\d+) registers", line):
            code.registers = int(m[1])
            shared = re.search(r"(\d+) bytes smem", line)
            code.shared = int(shared[1]) if shared else 0
    return found


def count_accesses(text: str, into: dict[str, Code], entry: str, access: str, wide: str) -> None:
    """Count what `access` matches in each function; its first group begins with l or s."""
    code = Code()
    for line in text.splitlines():
        if m := re.search(entry, line):
            code = into.get(m[1], Code())
        elif m := re.search(access, line):
            code.loads += m[1][0].lower() == "l"
            code.stores += m[1][0].lower() == "s"
            code.wide += wide in m[2]
            code.narrow += wide not in m[2]


def run(*command: str) -> str:
    """Return what a command prints, or exit with it."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout + done.stderr


def examine(source: Path, root: Path, arch: str, cuobjdump: str | None) -> dict[str, Code]:
    """Compile one file for one architecture and return its kernels, by mangled name."""
    nvcc = ["nvcc", "-std=c++17", "-O3", f"-arch=sm_{arch}", f"-I{root}", str(source)]
    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = f"{folder}/code.cubin", Path(folder) / "code.ptx"
        found = read_resources(run(*nvcc, "-cubin", "-Xptxas=-v", "-o", cubin))
        if not found:
            return found
        if cuobjdump:
            text = run(cuobjdump, "-sass", cubin)
            count_accesses(text, found, r"Function : (\w+)", r"\b(LDG|STG)\.E(\S*)", ".128")
        else:
            run(*nvcc, "-ptx", "-o", str(ptx))
            access = r"\b(ld|st)\.global(\S*)"
            count_accesses(ptx.read_text(), found, r"\.entry (\w+)\(", access, ".v4")
    return found


def readable(mangled: str) -> str:
    """Return `rms_norm<true, BFloat16, Float32>` or, without c++filt, the name as it is."""
    tool = shutil.which("c++filt")
    name = run(tool, mangled).strip() if tool else mangled
    name = re.sub(r"(vllm_ir|kernels|\(anonymous namespace\)|_GLOBAL__\w+)::", "", name)
    m = re.search(r"(\w+)_kernel<(.*)>\(", name)
    return f"{m[1]}<{m[2]}>" if m else name


def complaints(kernel: str, code: Code) -> Iterator[str]:
    """Yield what breaks the budget."""
    name, _, arguments = kernel.partition("<")
    if code.spilled or code.stack:
        yield f"spills {code.spilled} bytes, stack {code.stack} bytes"
    if code.registers > MAX_REGISTERS.get(name, 64):
        yield f"{code.registers} registers, at most {MAX_REGISTERS.get(name, 64)}"
    if code.shared > MAX_SHARED:
        yield f"{code.shared} bytes of shared memory, at most {MAX_SHARED}"
    if not (code.loads and code.stores):
        yield f"{code.loads} loads and {code.stores} stores of global memory"
    if arguments.startswith("true") and code.narrow:
        yield f"{code.narrow} narrow accesses on the wide path"


def main() -> int:
    """Print the table, then what breaks a budget."""
    parser = argparse.ArgumentParser(description="Hold the CUDA kernels' machine code to a budget.")
    parser.add_argument("--arch", action="append", help="a number such as 90; default: all")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", default="*.cu", help="the files, a pattern")
    options = parser.parse_args()
    architectures = options.arch or ARCHITECTURES
    sources = sorted((options.root / "cpp/kernels/cuda").glob(options.only))
    cuobjdump = find_cuobjdump()
    jobs = [(source, arch) for source in sources for arch in architectures]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda job: examine(job[0], options.root, job[1], cuobjdump), jobs)
    table: dict[str, dict[str, Code]] = {}
    for (_, arch), kernels in zip(jobs, results, strict=True):
        for mangled, code in kernels.items():
            table.setdefault(readable(mangled), {})[arch] = code
    print("r registers; global accesses: w of 128 bits, n narrower, from", cuobjdump or "PTX")
    print(f"{'':44}", *(f"{'sm_' + arch:15}" for arch in architectures))
    broken = []
    for kernel, by_arch in sorted(table.items()):
        print(f"{kernel:44}", *(f"{by_arch[arch].cell():15}" for arch in architectures))
        for arch, code in by_arch.items():
            broken += [f"{kernel} sm_{arch}: {what}" for what in complaints(kernel, code)]
    print(*broken, f"{len(table)} kernels, {len(broken)} broken budgets", sep="\n")
    return 1 if broken or not table else 0


if __name__ == "__main__":
    sys.exit(main())
