# SPDX-License-Identifier: Apache-2.0
"""A Llama decoder as a model author writes one: the norms are vllm_ir ops, the rest is torch.

The model names no kernel and no provider. Which implementation of a norm runs is decided outside,
by priority lists.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vllm_ir as ir


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of a Llama decoder with tied embeddings."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rope_base: float
    epsilon: float


class KVCache:
    """Keys and values of all layers, allocated once for `capacity` positions.

    A step writes at its positions and attends to the whole cache under a mask, so nothing in it has
    another shape for the next token, and a compiled step serves all tokens.

    Attributes:
        layers: keys and values of each layer, (batch, kv_heads, capacity, head_dim).
        capacity: number of positions.
        length: number of positions that were handed out.
    """

    def __init__(
        self, config: LlamaConfig, capacity: int, dtype: torch.dtype, batch: int = 1
    ) -> None:
        shape = (batch, config.kv_heads, capacity, config.head_dim)
        self.layers = [
            (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))
            for _ in range(config.layers)
        ]
        self.capacity = capacity
        self.length = 0

    def advance(self, count: int) -> Tensor:
        """Hand out the next `count` positions, as a tensor: a compiler must not see numbers.

        Raises:
            ValueError: the cache is full.
        """
        start, end = self.length, self.length + count
        if end > self.capacity:
            raise ValueError(f"KVCache holds {self.capacity} positions, got {end}. Make it larger.")
        self.length = end
        return torch.arange(start, end)


class RMSNorm(nn.Module):
    """Root-mean-square norm, with the residual addition fused when a residual is given."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return `norm(x)`, or `(norm(x + residual), x + residual)`.

        With a residual both inputs are donated: the implementation may write its results into them.
        """
        if residual is None:
            return ir.ops.rms_norm(x, self.weight, self.epsilon)
        return ir.ops.fused_add_rms_norm.maybe_inplace(x, residual, self.weight, self.epsilon)


class Rotary(nn.Module):
    """Rotary position embedding; the two halves of a head are the two coordinates that rotate."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angles = torch.outer(
            torch.arange(config.max_positions, dtype=torch.float32), config.rope_base**-steps
        )
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate `x: (batch, heads, positions, head_dim)`."""
        cos, sin = self.cos[positions], self.sin[positions]
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin


class Place(NamedTuple):
    """Where the tokens of a step stand, equal for all layers.

    Attributes:
        positions: (positions,), int64.
        mask: (positions, keys), True where a position may look.
        rotary: rotates queries and keys.
    """

    positions: Tensor
    mask: Tensor
    rotary: Rotary


class Attention(nn.Module):
    """Grouped-query attention: several query heads share a key/value head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        inner, kv_inner = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_inner, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_inner, bias=False)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, x: Tensor, place: Place, cache: tuple[Tensor, Tensor] | None) -> Tensor:
        """Attend from each position of `x` to itself and all before it."""
        query = place.rotary(self._heads(self.q_proj(x)), place.positions)
        keys = place.rotary(self._heads(self.k_proj(x)), place.positions)
        values = self._heads(self.v_proj(x))
        if cache is not None:
            keys = cache[0].index_copy_(2, place.positions, keys)
            values = cache[1].index_copy_(2, place.positions, values)
        out = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=place.mask, enable_gqa=True
        )
        projected: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        batch, positions, _ = x.shape
        return x.view(batch, positions, -1, self.head_dim).transpose(1, 2)


def causal_mask(positions: Tensor, keys: int) -> Tensor:
    """Return True where a position may look: at itself and before; (positions, keys)."""
    return torch.arange(keys) <= positions[:, None]


class SwiGLU(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return `down(silu(gate(x)) * up(x))`."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """One block.

    The residual stream travels beside `x`, so that each addition is fused into the next norm.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.epsilon)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.epsilon)
        self.mlp = SwiGLU(config)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        place: Place,
        cache: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the block's output and the residual stream, not yet added."""
        if residual is None:
            x, residual = self.input_norm(x), x
        else:
            x, residual = self.input_norm(x, residual)
        x, residual = self.mlp_norm(self.attention(x, place, cache), residual)
        assert residual is not None
        return self.mlp(x), residual


class Llama(nn.Module):
    """The decoder; the output matrix is the embedding matrix."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = Rotary(config)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.epsilon)

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:
        """Compute the logits of every position.

        Args:
            tokens: (batch, positions), int64.
            positions: (positions,), int64, as `cache.advance` hands them out. None: `tokens` is the
                whole text.
            cache: keys and values of earlier positions; those of this call are written into it.

        Returns:
            (batch, positions, vocab_size), dtype of the weights.
        """
        count = tokens.shape[1]
        if positions is None:
            positions = torch.arange(count)
        mask = causal_mask(positions, count if cache is None else cache.capacity)
        place = Place(positions, mask, self.rotary)
        x: Tensor = self.embedding(tokens)
        residual: Tensor | None = None
        for index, layer in enumerate(self.layers):
            x, residual = layer(x, residual, place, cache.layers[index] if cache else None)
        x, _ = self.norm(x, residual)
        return F.linear(x, self.embedding.weight)

    def norms(self) -> list[RMSNorm]:
        """The norm layers; one forward pass calls each of them once."""
        return [module for module in self.modules() if isinstance(module, RMSNorm)]
