# SPDX-License-Identifier: Apache-2.0
"""Greedy generation with a key/value cache, and how long it took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llama.model import KVCache, Llama


@dataclass(frozen=True)
class Generation:
    """What one run produced.

    Attributes:
        tokens: the new tokens, the stop token included when it came.
        prefill_seconds: time of the forward pass over the prompt, which gives the first token.
        decode_seconds: time of the passes for all other tokens.
    """

    tokens: list[int]
    prefill_seconds: float
    decode_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Speed of decoding; the prompt pass and its token are left out."""
        steps = len(self.tokens) - 1
        return steps / self.decode_seconds if steps and self.decode_seconds else float("nan")


@torch.inference_mode()
def generate(
    model: Llama,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    stop_token: int | None = None,
    on_token: Callable[[int], None] | None = None,
    decode: Callable[..., Tensor] | None = None,
    capacity: int | None = None,
) -> Generation:
    """Continue `prompt` with the most likely tokens.

    Args:
        model: the decoder; its parameters decide the dtype.
        prompt: at least one token.
        max_new_tokens: upper bound, at least 1.
        stop_token: ends the text when it is produced.
        on_token: called with each new token, outside the measured time.
        decode: runs the steps behind the prompt, one token each; None: `model`. A compiled model
            does that with one piece of code.
        capacity: positions that the cache has room for; None: what is needed.
    """
    size = capacity or len(prompt) + max_new_tokens
    # Compiled code holds for one size: in steps of 128 it serves other prompts too.
    size += -size % 128
    cache = KVCache(model.config, size, model.embedding.weight.dtype)
    token, prefill_seconds = _step(model, prompt, cache)
    tokens, decode_seconds = [token], 0.0
    if on_token:
        on_token(token)
    while token != stop_token and len(tokens) < max_new_tokens:
        token, seconds = _step(model if decode is None else decode, [token], cache)
        tokens.append(token)
        decode_seconds += seconds
        if on_token:
            on_token(token)
    return Generation(tokens, prefill_seconds, decode_seconds)


def _step(run: Callable[..., Tensor], tokens: Sequence[int], cache: KVCache) -> tuple[int, float]:
    """Run the model over `tokens` and return the most likely next token and the seconds it took."""
    begin = time.perf_counter()
    logits = run(torch.tensor([list(tokens)]), cache.advance(len(tokens)), cache)
    token = int(logits[0, -1].argmax())
    return token, time.perf_counter() - begin
