# SPDX-License-Identifier: Apache-2.0
"""What the benches of the compiler compile: a chain of norms, a decoder layer, a stack of layers.

Each is written once, for a function that adds and norms; contenders differ in that function and in
who compiles the whole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-6
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 1024, 16, 4, 64, 2816
LINKS = 8  # norms of the chain

Norm = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
Program = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Subject:
    """A program and its size.

    Attributes:
        kind: `chain`, `layer` or `stack`.
        tokens: rows of the activations.
        dtype: dtype of everything.
    """

    kind: str
    tokens: int
    dtype: torch.dtype

    def __str__(self) -> str:
        titles = {"chain": f"chain of {LINKS} norms", "layer": "decoder layer", "stack": "4 layers"}
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{titles[self.kind]}, {dtype} {self.tokens}x{HIDDEN}"

    def program(self, norm: Norm) -> Program:
        """Return the program around a norm: `(x, residual, weights) -> (x, residual)`."""
        return {"chain": chain, "layer": layer, "stack": stack}[self.kind](norm)

    def weights(self) -> Any:
        """Make seeded weights; programs don't change them."""
        torch.manual_seed(0)
        if self.kind == "chain":
            return [norm_weight(self.dtype) for _ in range(LINKS)]
        layers = [LayerWeights.random(self.dtype) for _ in range(4 if self.kind == "stack" else 1)]
        return layers if self.kind == "stack" else layers[0]

    def activations(self) -> tuple[Tensor, Tensor]:
        """Make seeded activations, which programs may overwrite."""
        torch.manual_seed(1)
        x, residual = torch.randn(2, self.tokens, HIDDEN).to(self.dtype).unbind()
        return x.clone(), residual.clone()


class LayerWeights(NamedTuple):
    """Matrices are (inputs, outputs)."""

    input_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def random(cls, dtype: torch.dtype) -> "LayerWeights":
        """Make weights that keep the size of activations."""
        inner = HEADS * HEAD_DIM
        return cls(
            norm_weight(dtype),
            matrix(HIDDEN, inner + 2 * KV_HEADS * HEAD_DIM, dtype),
            matrix(inner, HIDDEN, dtype),
            norm_weight(dtype),
            matrix(HIDDEN, 2 * INTERMEDIATE, dtype),
            matrix(INTERMEDIATE, HIDDEN, dtype),
        )


def matrix(inputs: int, outputs: int, dtype: torch.dtype) -> Tensor:
    """Make a matrix that keeps the variance of what it is multiplied with."""
    return (torch.randn(inputs, outputs) * inputs**-0.5).to(dtype)


def norm_weight(dtype: torch.dtype) -> Tensor:
    """Make the weight of a norm."""
    return (1 + 0.1 * torch.randn(HIDDEN)).to(dtype)


def chain(norm: Norm) -> Program:
    """Norms that feed each other, nothing between them."""

    def run(x: Tensor, residual: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
        for weight in weights:
            x, residual = norm(x, residual, weight, EPSILON)
        return x, residual

    return run


def layer(norm: Norm) -> Program:
    """One block of a decoder that sees all its tokens at once."""

    def run(x: Tensor, residual: Tensor, w: LayerWeights) -> tuple[Tensor, Tensor]:
        x, residual = norm(x, residual, w.input_norm, EPSILON)
        x, residual = norm(attention(x, w) @ w.out, residual, w.mlp_norm, EPSILON)
        gate, up = (x @ w.gate_up).chunk(2, dim=-1)
        return (F.silu(gate) * up) @ w.down, residual

    return run


def stack(norm: Norm) -> Program:
    """Several blocks, each feeding the next one."""
    block = layer(norm)

    def run(x: Tensor, residual: Tensor, layers: list[LayerWeights]) -> tuple[Tensor, Tensor]:
        for w in layers:
            x, residual = block(x, residual, w)
        return x, residual

    return run


def attention(x: Tensor, w: LayerWeights) -> Tensor:
    """Causal attention with grouped queries, without rotary embedding."""
    sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
    query, keys, values = (
        part.view(1, -1, part.shape[-1] // HEAD_DIM, HEAD_DIM).transpose(1, 2)
        for part in (x @ w.qkv).split(sizes, dim=-1)
    )
    out = F.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(x.shape[0], -1)
