# SPDX-License-Identifier: Apache-2.0
"""The tokenizer and the chat template that a gguf file carries."""

from typing import Any

from llama.packages import DemoError, need
from llama.weights import field

CONTROL = 3  # token type of `<|im_start|>` and the like in gguf files


class ChatTokenizer:
    """Turn a user's prompt into tokens of one chat turn, and tokens back into text."""

    def __init__(self, reader: Any) -> None:
        self._tokenizer = build_tokenizer(reader)
        self._template = chat_template(reader)
        self.stop_token = int(field(reader, "tokenizer.ggml.eos_token_id"))

    def render(self, prompt: str) -> str:
        """Return what the model sees: system message, prompt, and the start of the answer."""
        messages = [{"role": "user", "content": prompt}]
        return str(self._template.render(messages=messages, add_generation_prompt=True))

    def encode(self, text: str) -> list[int]:
        """Tokenise `text`; names of control tokens in it become those tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: list[int]) -> str:
        """Return the text of `tokens` without control tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def build_tokenizer(reader: Any) -> Any:
    """Build the byte-level BPE of the file.

    Raises:
        DemoError: the file holds another kind of tokenizer.
    """
    kind = field(reader, "tokenizer.ggml.model"), field(reader, "tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise DemoError(f"This example knows the tokenizer ('gpt2', 'smollm'), got {kind}.")
    tokenizers = need("tokenizers", "tokenizers")
    tokens = field(reader, "tokenizer.ggml.tokens")
    types = field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    split = tokenizers.pre_tokenizers
    # 'smollm' = every digit is a word of its own, and then the words of GPT-2.
    tokenizer.pre_tokenizer = split.Sequence(
        [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    )
    return tokenizer


def chat_template(reader: Any) -> Any:
    """Compile the chat template in a sandbox: it is code that came with the weights."""
    sandbox = need("jinja2.sandbox", "jinja2")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(field(reader, "tokenizer.chat_template"))
