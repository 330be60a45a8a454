# SPDX-License-Identifier: Apache-2.0
"""The README is true: its quickstart runs in a fresh process and prints what it says."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def snippets() -> list[str]:
    """Return the quickstart and the piece about torch.compile."""
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_quickstart_runs_and_prints_what_it_says() -> None:
    printed = run(snippets()[0])
    assert "vllm_ir.rms_norm: native runs (priority: vllm_c, native)" in printed
    assert "vllm_c  rejected: x.dtype is float64" in printed
    assert "scale: 2 calls; mine 1, native 1 (x.dtype is float16: 1)" in printed


def test_the_quickstart_has_at_most_twenty_lines() -> None:
    assert len(snippets()[0].splitlines()) <= 20


def test_the_piece_about_compiling_runs_and_reports() -> None:
    model = """
import torch
import vllm_ir as ir

x = torch.randn(4, 64)
def model(x):
    return ir.ops.rms_norm(x, None, 1e-6)
"""
    _, compiling = snippets()
    assert "rms_norm" in run(model + compiling)
