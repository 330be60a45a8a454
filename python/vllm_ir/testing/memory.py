# SPDX-License-Identifier: Apache-2.0
"""The memory behind arguments: copies of it, and whether a call has written to it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class Memory:
    """The bytes behind some arguments at one moment, the bytes around each view included.

    Example:
        >>> import torch
        >>> from vllm_ir.testing import Memory
        >>> x = torch.zeros(4)
        >>> before = Memory([x[:2]])
        >>> x[3] = 1.0
        >>> before.changed(), before.changed(except_in=[x[2:]])
        (True, False)
    """

    def __init__(self, args: Sequence[Any]) -> None:
        self._now = {_key(t): _bytes_of(t) for t in tensors_in(args)}
        self._then = {key: b.clone() for key, b in self._now.items()}

    def changed(self, except_in: Sequence[Tensor] = ()) -> bool:
        """Return whether a byte has changed outside of the elements of `except_in`."""
        differs = {key: now != self._then[key] for key, now in self._now.items()}
        for t in except_in:
            if _key(t) in differs:
                differs[_key(t)][_bytes_taken(t)] = False
        return any(bool(d.any()) for d in differs.values())


def copied(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments with their memory copied.

    Strides, offsets and alignment stay as they are, and tensors that share memory share it in the
    copy too. Autograd is left behind.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(t: Tensor) -> Tensor:
        storage = storages.get(_key(t))
        if storage is None:
            storage = storages[_key(t)] = _bytes_of(t).clone().untyped_storage()
        blank = torch.empty(0, dtype=t.dtype, device=t.device)
        return blank.set_(storage, t.storage_offset(), t.size(), t.stride())

    return mapped(copy, args)


def mapped(function: Callable[[Tensor], Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """Apply a function to each tensor among the arguments, also inside of lists and tuples."""

    def apply(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if isinstance(value, (list, tuple)):
            return type(value)(apply(v) for v in value)
        return value

    return tuple(apply(a) for a in args)


def tensors_in(args: Sequence[Any]) -> Iterator[Tensor]:
    """Yield each tensor among the arguments, also inside of lists and tuples."""
    for value in args:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _key(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _bytes_of(t: Tensor) -> Tensor:
    blank = torch.empty(0, dtype=torch.uint8, device=t.device)
    return blank.set_(t.untyped_storage())


def _bytes_taken(t: Tensor) -> Tensor | slice:
    size, begin = t.element_size(), t.storage_offset() * t.element_size()
    if t.is_contiguous():
        return slice(begin, begin + t.numel() * size)
    numbers = torch.arange(t.untyped_storage().nbytes(), device=t.device)
    strides = [s * size for s in t.stride()]
    return numbers.as_strided([*t.shape, size], [*strides, 1], begin).flatten()
