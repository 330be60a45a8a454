# SPDX-License-Identifier: Apache-2.0
"""Facts of a registration: set when an object is made, read by everybody, changed by nobody."""

import sys
from typing import Any


def set_once(self: Any, name: str, value: object) -> None:
    """Be the `__setattr__` of a class that lists its facts in `FACTS`.

    Raises:
        AttributeError: The attribute is a fact and has a value.
    """
    if name in self.FACTS and name in vars(self):
        raise AttributeError(f"{self!r}: {name} is a fact of the registration. It is read-only.")
    object.__setattr__(self, name, value)


def caller() -> str:
    """Return "file:line" of whoever called the function that asks."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
