# SPDX-License-Identifier: Apache-2.0
"""Whether two strided views of one memory share an element, as far as that can be proved."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

# Two views of a memory up to this many elements are compared element by element.
MAX_MARKED = 1 << 22


class Overlap(Enum):
    """The relation of two views of one memory."""

    NO = "no"
    YES = "yes"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class _Region:
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """One past the furthest element."""
        if 0 in self.sizes:
            return self.offset
        return (
            self.offset
            + 1
            + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))
        )


def overlap(a: Tensor, b: Tensor) -> Overlap:
    """Compare two views of one storage. Adds no guard: symbolic sizes are looked at as symbols."""
    if _same_view(a, b):
        return Overlap.YES
    first, second = _region(a), _region(b)
    if first is None or second is None:
        return Overlap.UNKNOWN
    if first.end <= second.offset or second.end <= first.offset:
        return Overlap.NO
    extent = max(first.end, second.end)
    if a.dtype is not b.dtype or extent > MAX_MARKED:
        return Overlap.UNKNOWN
    return Overlap.YES if _share_an_element(first, second, extent) else Overlap.NO


def overlaps_itself(t: Tensor) -> bool:
    """Whether two indices of a tensor may name one element, as in an expanded one."""
    reach: Any = 0  # of the dimensions so far, in elements
    dims = [
        (size, stride)
        for size, stride in zip(t.shape, t.stride(), strict=True)
        if not statically_known_true(size <= 1)
    ]
    known = sorted((d for d in dims if isinstance(d[1], int)), key=lambda d: d[1])
    unknown = [d for d in dims if not isinstance(d[1], int)]
    for size, stride in known + unknown:  # a symbolic stride is a multiple of the known ones
        if not statically_known_true(stride > reach):
            return True
        reach = reach + (size - 1) * stride
    return False


def _same_view(a: Tensor, b: Tensor) -> bool:
    if a.dim() != b.dim() or not statically_known_true(a.numel() != 0):
        return False
    offsets = (a.storage_offset(), b.storage_offset())
    pairs = [offsets, *zip(a.shape, b.shape, strict=True)]
    pairs += zip(a.stride(), b.stride(), strict=True)
    return all(statically_known_true(x == y) for x, y in pairs)


def _region(t: Tensor) -> _Region | None:
    numbers = (t.storage_offset(), *t.shape, *t.stride())
    if not all(isinstance(n, int) for n in numbers):
        return None
    return _Region(int(t.storage_offset()), tuple(t.shape), tuple(t.stride()))


def _share_an_element(a: _Region, b: _Region, extent: int) -> bool:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily(), torch.inference_mode(False), torch.no_grad():
        marks = torch.zeros(extent, dtype=torch.bool, device="cpu")
        marks.as_strided(a.sizes, a.strides, a.offset).fill_(True)
        return bool(marks.as_strided(b.sizes, b.strides, b.offset).any())
