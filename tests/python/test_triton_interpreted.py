# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels run on the CPU, in Triton's interpreter, which needs a process of its own."""

import os
import re
from pathlib import Path

import pytest
from processes import output_of, run_python

pytest.importorskip("triton", reason="triton is not installed")

HERE = Path(__file__).parent
INTERPRETED = {"TRITON_INTERPRET": "1"}


@pytest.mark.parametrize("cases", ["interpreted_triton.py", "interpreted_triton_operators.py"])
def test_in_the_interpreter(cases):
    done = run_python("-m", "pytest", "-q", "--no-header", str(HERE / cases), env=INTERPRETED)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.strip().splitlines()[-1]
    # A process in which nothing ran would end well too.
    assert re.fullmatch(r"\d{3,} passed in .*", summary), done.stdout


def test_importing_the_package_leaves_triton_alone_there_too():
    script = """
        import sys, torch
        before = set(sys.modules)
        import vllm_ir as ir
        assert ir.ops.rms_norm.impls["triton"].supported
        print(sorted(m for m in set(sys.modules) - before if m.startswith(("triton", "torch._i"))))
    """
    assert output_of(script, env=INTERPRETED).strip() == "[]"


@pytest.mark.slow
def test_code_from_a_cache_finds_the_operators(tmp_path):
    script = """
        import torch
        import vllm_ir as ir
        from torch._dynamo.utils import counters

        ir.ops.rms_norm.set_default(["triton"])
        compiled = ir.compile(lambda x: ir.ops.rms_norm(x + 1, None, 1e-6))
        with torch.inference_mode(), ir.ops.rms_norm.set_priority(["triton"]):
            x = torch.arange(12.0).view(3, 4)
            assert torch.equal(compiled(x), ir.ops.rms_norm(x + 1, None, 1e-6))
        print(counters["aot_autograd"]["autograd_cache_hit"])
    """
    env = {**INTERPRETED, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    assert [output_of(script, env=env).strip() for _ in range(2)] == ["0", "1"]
