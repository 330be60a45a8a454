# SPDX-License-Identifier: Apache-2.0
"""The README is true: its quickstart runs in a fresh process and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_quickstart_runs_and_prints_what_it_says() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "vllm_ir.rms_norm: native runs (priority: vllm_c, native)" in ran.stdout
    assert "vllm_c  rejected: x.dtype is float64" in ran.stdout
    assert "scale: 2 calls; mine 1, native 1 (x.dtype is float16: 1)" in ran.stdout


def test_the_quickstart_has_at_most_twenty_lines() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 20
