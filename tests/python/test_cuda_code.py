# SPDX-License-Identifier: Apache-2.0
"""The machine code of the CUDA kernels: its budget holds, and a broken one is named."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = Path("cpp/kernels/cuda")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc"),
]


def check(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "check_cuda_code.py", *options]
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )


def test_every_kernel_keeps_its_budget_on_every_architecture(capsys):
    done = check()
    with capsys.disabled():  # the table belongs into the log of the build
        print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "50 kernels, 0 broken budgets" in done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "rms_norm.cu",
            "__launch_bounds__(kMaxRowThreads, 1)",
            "__launch_bounds__(kMaxRowThreads, 2)",
            "rms_norm<true, BFloat16, Float32> sm_90: spills ",
        ),
        (
            "vector.cuh",
            "const uint4 four = *reinterpret_cast<const uint4*>(from);",
            "const auto* w = reinterpret_cast<const volatile uint32_t*>(from);"
            "const uint4 four = {w[0], w[1], w[2], w[3]};",
            "narrow accesses on the wide path",
        ),
        (
            "row_sum.cuh",
            "__shared__ float partial[kMaxRowThreads / kWarp];",
            "__shared__ float partial[kMaxRowThreads];",
            "4096 bytes of shared memory, at most 128",
        ),
    ],
    ids=["spills", "narrow accesses", "shared memory"],
)
def test_a_broken_budget_is_named(tmp_path, file, old, new, said):
    shutil.copytree(ROOT / "cpp", tmp_path / "cpp")
    planted = tmp_path / KERNELS / file
    text = planted.read_text()
    assert text.count(old) == 1, "the source has changed"
    planted.write_text(text.replace(old, new))
    done = check("--root", tmp_path, "--arch", "90", "--only", "rms_norm.cu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout
