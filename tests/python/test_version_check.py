# SPDX-License-Identifier: Apache-2.0
"""A build runs beside the torch minor that it was made for, or not at all, with one sentence."""

import re
import subprocess
import sys
import textwrap

import pytest

from vllm_ir import _build_info
from vllm_ir._version_check import torch_mismatch


@pytest.mark.parametrize(
    "installed", ["2.13.0", "2.13.1+cpu", "2.13.0a0+git1", "2.13.1.dev20260101"]
)
def test_any_patch_release_of_the_minor_is_accepted(installed):
    assert torch_mismatch("2.13", installed) is None


@pytest.mark.parametrize("installed", ["2.11.0", "2.14.1+cu130", "2.1.3", "2.130.0", "3.13.0"])
def test_another_minor_is_refused_with_both_versions_and_the_cure(installed):
    assert torch_mismatch("2.13", installed) == (
        f"vllm_ir: this build runs beside torch 2.13 only, got torch {installed}. Install torch "
        "2.13, or rebuild vllm_ir against the installed torch: pip install --no-cache-dir "
        "--force-reinstall --no-deps <vllm_ir source folder>"
    )


def import_error(prepare: str) -> str:
    """Return the last line of `import vllm_ir` in a fresh process, after `prepare` ran there."""
    script = textwrap.dedent(prepare) + textwrap.dedent("""
        try:
            import vllm_ir
        except ImportError as error:
            assert type(error).__name__ == "IrImportError", type(error)
            assert "vllm_ir._C" not in sys.modules
            print(error)
    """)
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_import_refuses_a_torch_of_another_minor_before_the_extension_loads():
    error = import_error("""
        import sys
        import torch
        torch.__version__ = "2.99.0+cpu"
    """)
    assert error == torch_mismatch(_build_info.TORCH, "2.99.0+cpu")


def test_import_without_the_compiled_part_says_how_to_build_it():
    error = import_error("""
        import sys
        sys.modules["vllm_ir._build_info"] = None
    """)
    assert re.fullmatch(
        r"vllm_ir: the compiled part must be installed .*, got none\. Build it with: pip .*", error
    )


def test_the_build_records_what_it_was_made_for():
    assert re.fullmatch(r"2\.1[1-4]", _build_info.TORCH)
    assert _build_info.TORCH_FULL.startswith(_build_info.TORCH + ".")
    assert re.match(r"(GNU|Clang) \d+", _build_info.COMPILER)
    # Either there are CUDA kernels, or there is the reason why not.
    assert bool(_build_info.CUDA_TOOLKIT) != bool(_build_info.CUDA_SKIPPED)
    assert bool(_build_info.CUDA_TOOLKIT) == bool(_build_info.CUDA_ARCHITECTURES)
