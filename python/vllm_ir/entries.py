# SPDX-License-Identifier: Apache-2.0
"""C++ entries of other libraries, and which file holds which entry."""

from vllm_ir import _C

_LIBRARIES: dict[str, str] = {}  # entry name -> file; built-in entries are not in it


def load_entries(path: str) -> list[str]:
    """Load a shared library of C++ entries (`vllm_ir/entry.h`) and return their names.

    Args:
        path: The library. It stays loaded, and must be built for the torch minor that runs.

    Raises:
        IrValueError: It can't be loaded, holds no entries, or was built for another torch.
        DuplicateError: An entry's name is taken by another library.
    """
    names = _C.load_entries(str(path))
    _LIBRARIES.update(dict.fromkeys(names, str(path)))
    return names


def entry_library(entry: str) -> str:
    """Return the file that holds a C++ entry."""
    return _LIBRARIES.get(entry, _C.__file__)
