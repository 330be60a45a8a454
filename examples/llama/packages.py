# SPDX-License-Identifier: Apache-2.0
"""Optional packages of the examples: a missing one is one clear sentence."""

import importlib
from typing import Any


class DemoError(Exception):
    """Something the reader of the example can act on; shown without a traceback."""


def need(module: str, install: str) -> Any:
    """Import `module`.

    Raises:
        DemoError: the package is not installed; the text is the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # the package is there, and something inside it is broken
        name = module.partition(".")[0]
        raise DemoError(f"This example needs the package '{name}': pip install {install}") from None
