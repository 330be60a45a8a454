# SPDX-License-Identifier: Apache-2.0
"""Arguments for the two norms in every layout and with every kind of value."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vllm_ir.testing import Truth

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WEIGHTS = ("same", "float32", "none")
WIDTHS = (1, 7, 64, 100, 768, 769, 1023, 3420, 3584)
SHAPES = ((64,), (5, 64), (2, 3, 64), (2, 1, 3, 64), (1, 64), (1, 1, 1, 64))
EMPTY = ((0, 64), (3, 0, 64), (0,), (2, 0), (0, 0))

# Layout -> what the rule of a row kernel says when it refuses, None when it has no reason to.
LAYOUTS = {
    "contiguous": None,
    "qkv slice": None,
    "every second row": None,
    "storage offset": None,
    "broadcast row": None,  # read only; a result of it has rows of its own
    "transposed": "stride(-1) is",
    "last dim strided": "stride(-1) is",
    "expanded last dim": "stride(-1) is",
    "swapped leading dims": "does not flatten to rows",
}
VALUES = ("normal", "large", "tiny", "zeros", "zero row", "nan", "inf", "overflow")


def refusal_of(provider: str, layout: str) -> str | None:
    """Return what the rule of a provider says of a layout that its kernel only reads."""
    if (provider, layout) == ("triton", "broadcast row"):
        return "elements share memory"  # native's result may have other strides than theirs
    return LAYOUTS[layout]


def lay_out(t: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the values of a matrix (rows, cols) in another layout; expanded ones lose some."""
    rows, cols = t.shape
    if layout == "contiguous":
        return t.contiguous()
    if layout == "qkv slice":
        qkv = torch.cat([t, t + 1, t - 1], dim=-1)
        return qkv.split(cols, dim=-1)[1]
    if layout == "every second row":
        return t.repeat_interleave(2, dim=0)[::2]
    if layout == "storage offset":  # one element: the base is aligned to nothing wider
        buffer = torch.empty(rows * cols + 1, dtype=t.dtype)
        buffer[1:] = t.flatten()
        return buffer[1:].view(rows, cols)
    if layout == "broadcast row":
        return t[:1].clone().expand(rows, cols)
    if layout == "transposed":
        return t.t().contiguous().t()
    if layout == "last dim strided":
        return t.repeat_interleave(2, dim=-1)[:, ::2]
    if layout == "expanded last dim":
        return t[:, :1].clone().expand(rows, cols)
    assert layout == "swapped leading dims"
    return torch.stack([t, t + 1, t - 1]).transpose(0, 1)


def values_of(kind: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return normal deviates, or such with something special in them."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.randn(shape, generator=generator)
    finfo = torch.finfo(dtype)
    if kind == "large":  # squares stay inside of float32
        t = t * min(1e15, finfo.max / 16)
    elif kind == "tiny":
        t = t * finfo.tiny * 4
    elif kind == "zeros":
        t = torch.zeros(shape)
    elif kind == "zero row":
        t[0] = 0
    elif kind in ("nan", "inf"):
        t.flatten()[1::5] = float(kind)
        t.flatten()[2::7] = -float(kind)
    elif kind == "overflow":  # sums and products leave the dtype; in float32 the squares do
        t = t.sign() * finfo.max * 0.75
    return t.to(dtype)


@dataclass(frozen=True)
class Norm:
    """One set of arguments: `args(op_name)` makes them, the same ones each time."""

    dtype: torch.dtype = torch.bfloat16
    shape: tuple[int, ...] = (5, 64)
    weight: str = "same"
    layout: str = "contiguous"
    residual_layout: str = "contiguous"
    values: str = "normal"
    epsilon: float = 1e-6
    variance_size: int | None = None

    def __str__(self) -> str:
        kept = [str(v) for v in vars(self).values() if v is not None]
        return "-".join(kept).replace("torch.", "").replace(" ", "")

    def but(self, **changes: object) -> "Norm":
        """Return a copy with other fields."""
        return replace(self, **changes)

    def args(self, op_name: str) -> tuple:
        """Return the arguments of `rms_norm` or `fused_add_rms_norm`."""
        x = self._activation(self.layout, 0)
        weight = self._weight(x.shape[-1])
        if op_name == "rms_norm":
            return x, weight, self.epsilon, self.variance_size
        residual = self._activation(self.residual_layout, 1)
        return x, residual, weight, self.epsilon, self.variance_size

    def _activation(self, layout: str, seed: int) -> torch.Tensor:
        t = values_of(self.values, self.shape, self.dtype, seed)
        return t if layout == "contiguous" else lay_out(t, layout)

    def _weight(self, width: int) -> torch.Tensor | None:
        if self.weight == "none":
            return None
        dtype = self.dtype if self.weight == "same" else getattr(torch, self.weight)
        return values_of("normal", (width,), dtype, seed=2)


def assert_near_truth(got: torch.Tensor, truth: Truth) -> None:
    """Compare where exact arithmetic stays inside of the dtype."""
    error = (got.double() - truth.value).abs()
    wrong = truth.inside(got.dtype) & ~(error <= truth.bound)
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} values are off by up to "
        f"{float((error / truth.bound)[wrong].max())} times the bound"
    )


def inplace_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Work in the inputs' memory; `.float()` of float32 is the tensor itself."""
    total = x_residual.float().add_(x.float())
    x_residual.copy_(total)
    y = total * torch.rsqrt(total[..., :variance_size].square().mean(-1, keepdim=True) + epsilon)
    if weight is not None:
        y = y.to(weight.dtype) * weight
    x.copy_(y)
    return x, x_residual
