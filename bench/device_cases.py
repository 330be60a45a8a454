# SPDX-License-Identifier: Apache-2.0
"""The arguments that device_conformance.py checks every provider with.

Values are drawn on the CPU from a seed, so that every device sees the same ones; layouts are made
on the device. What lies between the rows of a layout is NaN: whoever reads there, shows it.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import vllm_ir as ir
from vllm_ir.dtypes import dtype_name

NORMS = ("rms_norm", "fused_add_rms_norm")
ACTIVATIONS = (("silu_and_mul", ()), ("gelu_and_mul", ("none",)), ("gelu_and_mul", ("tanh",)))
OPS = (*NORMS, "silu_and_mul", "gelu_and_mul")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WEIGHTS = ("same", "float32", "none")
SPECIAL = {"nan row": float("nan"), "inf row": float("inf"), "zero row": 0.0}
EPSILON = 1e-6


@dataclass(frozen=True)
class Shape:
    """What activations look like; `width` is that of a result.

    Attributes:
        rows: size of the first dimension.
        width: size of the last one.
        layout: "contiguous", "row stride" (rows of a wider matrix), "unaligned" (a base that is
            aligned to nothing wider than one value) or "three dims".
        values: "normal", or the name of a row in `SPECIAL`.
        half: the variance is that of the first half of a row.
    """

    rows: int
    width: int
    layout: str = "contiguous"
    values: str = "normal"
    half: bool = False

    def __str__(self) -> str:
        more = [text for text in (self.layout, self.values) if text not in ("contiguous", "normal")]
        return " ".join([f"{self.rows}x{self.width}", *more, *(["half"] if self.half else [])])


QUICK = (
    *(Shape(3, width) for width in (1, 7, 64, 769)),
    Shape(5, 100, "row stride"),
    Shape(5, 64, "unaligned"),
    Shape(0, 64),
    Shape(4, 100, values="nan row"),
    Shape(4, 64, values="inf row"),
)
FULL = (
    *(Shape(3, width) for width in (1, 7, 64, 100, 769, 1023, 4096, 8192, 20001)),
    *(Shape(5, width, "row stride") for width in (64, 769, 4096)),
    *(Shape(5, width, "unaligned") for width in (64, 100, 4096)),
    *(Shape(4, width, values=row) for width in (100, 4096) for row in SPECIAL),
    Shape(0, 64),
    Shape(6, 256, "three dims"),
    Shape(1000, 128),
    Shape(257, 4096),
    Shape(3, 769, half=True),
)


@dataclass(frozen=True)
class Case:
    """One call of an op: `args(device)` makes its arguments, the same ones each time."""

    op: ir.IrOp
    dtype: torch.dtype
    shape: Shape
    weight: str = "same"
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        weight = () if self.op.name not in NORMS else (f"weight {self.weight}",)
        return " ".join([self.label, dtype_name(self.dtype), str(self.shape), *weight])

    @property
    def label(self) -> str:
        """The op, with what it is told beside tensors."""
        return "-".join((self.op.name, *self.more))

    def args(self, device: str) -> tuple[Any, ...]:
        """Return the arguments of the op."""
        if self.op.name not in NORMS:
            return (self._activation(2 * self.shape.width, 0, device), *self.more)
        width = self.shape.width
        residual = () if self.op.name == "rms_norm" else (self._activation(width, 1, device),)
        size = (width + 1) // 2 if self.shape.half else None
        return (self._activation(width, 0, device), *residual, self._weight(device), EPSILON, size)

    def _activation(self, width: int, seed: int, device: str) -> Tensor:
        t = normal((self.shape.rows, width), seed)
        if self.shape.values in SPECIAL:
            t[1] = SPECIAL[self.shape.values]
        return lay_out(t.to(self.dtype).to(device), self.shape.layout)

    def _weight(self, device: str) -> Tensor | None:
        if self.weight == "none":
            return None
        dtype = self.dtype if self.weight == "same" else torch.float32
        return normal((self.shape.width,), seed=2).to(dtype).to(device)


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return normal deviates, the same ones each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def lay_out(t: Tensor, layout: str) -> Tensor:
    """Return the values of a contiguous matrix in another layout."""
    rows, width = t.shape
    if layout == "contiguous":
        return t
    if layout == "three dims":
        return t.view(2, rows // 2, width)
    if layout == "row stride":
        view = t.new_full((rows, 3 * width), float("nan"))[:, width : 2 * width]
    elif layout == "unaligned":
        view = t.new_full((t.numel() + 2,), float("nan"))[1:-1].view(rows, width)
    else:
        raise ValueError(f"No layout is called '{layout}'.")
    return view.copy_(t)


def cases_of(op: ir.IrOp, dtype: torch.dtype, shapes: tuple[Shape, ...]) -> Iterator[Case]:
    """Yield the cases of one op in one dtype; an op that isn't in `OPS` has none."""
    if op.name in NORMS:
        for shape, weight in itertools.product(shapes, WEIGHTS):
            yield Case(op, dtype, shape, weight)
    for name, more in ACTIVATIONS:
        if name == op.name:
            yield from (Case(op, dtype, s, more=more) for s in shapes if not s.half)
