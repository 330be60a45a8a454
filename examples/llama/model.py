# SPDX-License-Identifier: Apache-2.0
"""A Llama decoder as a model author writes one: the norms are vllm_ir ops, the rest is torch.

The model names no kernel and no provider. Which implementation of a norm runs is decided outside,
by priority lists.
"""

from dataclasses import dataclass

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

    `length` counts the positions that are filled; the model advances it once a forward pass, after
    the last layer.
    """

    def __init__(
        self, config: LlamaConfig, capacity: int, dtype: torch.dtype, batch: int = 1
    ) -> None:
        shape = (config.layers, batch, config.kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        self.length = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new positions of `layer` and return views of all positions up to them."""
        end = self.length + keys.shape[2]
        if end > self.keys.shape[3]:
            raise ValueError(
                f"KVCache holds {self.keys.shape[3]} positions, got {end}. Make a larger one."
            )
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


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

    def forward(self, x: Tensor, start: int) -> Tensor:
        """Rotate `x: (batch, heads, positions, head_dim)`, whose first position is `start`."""
        end = start + x.shape[2]
        first, second = x.chunk(2, dim=-1)
        return x * self.cos[start:end] + torch.cat((-second, first), dim=-1) * self.sin[start:end]


class Attention(nn.Module):
    """Grouped-query attention: several query heads share a key/value head."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        inner, kv_inner = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_inner, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_inner, bias=False)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotary: Rotary, cache: KVCache | None) -> Tensor:
        """Attend from each position of `x` to itself and all before it."""
        start = 0 if cache is None else cache.length
        query = rotary(self._heads(self.q_proj(x)), start)
        keys = rotary(self._heads(self.k_proj(x)), start)
        values = self._heads(self.v_proj(x))
        if cache is not None:
            keys, values = cache.append(self.layer, keys, values)
        mask = causal_mask(query.shape[2], keys.shape[2])
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
        projected: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        batch, positions, _ = x.shape
        return x.view(batch, positions, -1, self.head_dim).transpose(1, 2)


def causal_mask(queries: int, keys: int) -> Tensor | None:
    """Return True where a query may look; the last query is the last key.

    None means everywhere: a single query sees all keys.
    """
    if queries == 1:
        return None
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


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

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.epsilon)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden_size, config.epsilon)
        self.mlp = SwiGLU(config)

    def forward(
        self, x: Tensor, residual: Tensor | None, rotary: Rotary, cache: KVCache | None
    ) -> tuple[Tensor, Tensor]:
        """Return the block's output and the residual stream, not yet added."""
        if residual is None:
            x, residual = self.input_norm(x), x
        else:
            x, residual = self.input_norm(x, residual)
        x, residual = self.mlp_norm(self.attention(x, rotary, cache), residual)
        assert residual is not None
        return self.mlp(x), residual


class Llama(nn.Module):
    """The decoder; the output matrix is the embedding matrix."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = Rotary(config)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.epsilon)

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Compute the logits of every position.

        Args:
            tokens: (batch, positions), int64. With a cache they continue the `cache.length`
                positions before them.
            cache: keys and values of earlier positions; extended by this call. None: `tokens` is
                the whole text.

        Returns:
            (batch, positions, vocab_size), dtype of the weights.
        """
        x: Tensor = self.embedding(tokens)
        residual: Tensor | None = None
        for layer in self.layers:
            x, residual = layer(x, residual, self.rotary, cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        x, _ = self.norm(x, residual)
        return F.linear(x, self.embedding.weight)

    def norms(self) -> list[RMSNorm]:
        """The norm layers; one forward pass calls each of them once."""
        return [module for module in self.modules() if isinstance(module, RMSNorm)]
