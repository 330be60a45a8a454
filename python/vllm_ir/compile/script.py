# SPDX-License-Identifier: Apache-2.0
"""`vllm-ir explain --compiled FILE`: run a script and report what it compiled."""

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_ir.compile.explain_compiled import explain_process
from vllm_ir.compile.report import CompileReport
from vllm_ir.errors import IrRuntimeError, IrValueError


def explain_script(path: str) -> CompileReport:
    """Run a Python script and report what it compiled with the backend `vllm_ir`.

    The script runs as `__main__`, without arguments; what it prints goes to stderr, and so does the
    traceback if it raises.

    Raises:
        IrValueError: No such file, or it compiled nothing, or ended with another exit code than 0.
        IrRuntimeError: The script raised.
    """
    if not Path(path).is_file():
        raise IrValueError(f"vllm_ir.explain: --compiled takes a Python script, got '{path}'.")
    # The script's objects must live until they are explained, so its globals are held. One that
    # ends with sys.exit() has none left: then the ledger alone knows.
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(sys.stderr), _as_main(path):
        names = runpy.run_path(path, run_name="__main__")
    report = explain_process()
    del names
    return report


@contextlib.contextmanager
def _as_main(path: str) -> Iterator[None]:
    argv, first = sys.argv, sys.path[:1]
    sys.argv = [path]
    sys.path[:1] = [str(Path(path).resolve().parent)]
    try:
        yield
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise IrValueError(
                f"vllm_ir.explain: the script {path} ended with exit code {stop.code}."
            ) from stop
    except Exception as error:
        traceback.print_exception(type(error), error, _in_script(error.__traceback__))
        raise IrRuntimeError(
            f"vllm_ir.explain: the script {path} raised {type(error).__name__}; its traceback is "
            "above."
        ) from error
    finally:
        sys.argv, sys.path[:1] = argv, first


def _in_script(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames, ours and runpy's, that lead to the script's first."""
    while frames is not None and frames.tb_frame.f_globals.get("__name__") != "__main__":
        frames = frames.tb_next
    return frames
