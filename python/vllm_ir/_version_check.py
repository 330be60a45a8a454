# SPDX-License-Identifier: Apache-2.0
"""Compares the installed torch with the one that the extension was built against.

It must run before `vllm_ir._C` is loaded: beside another minor of torch the extension fails to load
with an undefined symbol or, worse, loads and registers its kernels under the wrong dispatch keys.
"""

from vllm_ir.errors import IrImportError

_REBUILD = "pip install --no-cache-dir --force-reinstall --no-deps <vllm_ir source folder>"


def torch_mismatch(built_for: str, installed: str) -> str | None:
    """Return the text for a torch that the build can't run beside, or None when it can.

    Args:
        built_for: The minor that the extension was built against, such as `2.13`.
        installed: The full version of the installed torch, such as `2.13.0+cpu`.

    Example:
        >>> from vllm_ir._version_check import torch_mismatch
        >>> torch_mismatch("2.13", "2.13.1+cu130") is None
        True
    """
    minor = ".".join(installed.split("+")[0].split(".")[:2])
    if minor == built_for:
        return None
    return (
        f"vllm_ir: this build runs beside torch {built_for} only, got torch {installed}. Install "
        f"torch {built_for}, or rebuild vllm_ir against the installed torch: {_REBUILD}"
    )


def check_torch() -> None:
    """Raise `IrImportError` where the extension is missing or was built for another torch minor."""
    import torch  # the package can't run without it; imported here so that this module is light

    try:
        from vllm_ir import _build_info
    except ImportError as error:
        raise IrImportError(
            "vllm_ir: the compiled part must be installed beside the Python part, got none. Build "
            f"it with: {_REBUILD}"
        ) from error
    mismatch = torch_mismatch(_build_info.TORCH, str(torch.__version__))
    if mismatch is not None:
        raise IrImportError(mismatch)
