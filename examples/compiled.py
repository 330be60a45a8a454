# SPDX-License-Identifier: Apache-2.0
"""A two-layer decoder, compiled: which implementation became of each op call, and why?

The norm at the entrance stays native, so that the compiler fuses it with the embedding; the others
become the C++ kernel, which works in place.

    python examples/compiled.py
    python -m vllm_ir explain --compiled examples/compiled.py
"""

import sys

import torch
from llama.model import KVCache, Llama, LlamaConfig

import vllm_ir as ir

CONFIG = LlamaConfig(
    vocab_size=100,
    hidden_size=64,
    intermediate_size=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_positions=32,
    rope_base=10000.0,
    epsilon=1e-5,
)
PRIORITIES = ir.IrOpPriorityConfig(rms_norm="native", fused_add_rms_norm="vllm_c,native")


@torch.inference_mode()
def main() -> int:
    """Take the same steps in eager and compiled; 1 when the results differ."""
    torch.manual_seed(0)
    model = Llama(CONFIG).eval()
    compiled = ir.compile(model, fullgraph=True, dynamic=False)
    caches = KVCache(CONFIG, 8, torch.float32), KVCache(CONFIG, 8, torch.float32)
    worst = 0.0
    with PRIORITIES.scoped():
        for token in (3, 14, 15):
            eager, ours = (
                run(torch.tensor([[token]]), cache.advance(1), cache)
                for run, cache in zip((model, compiled), caches, strict=True)
            )
            worst = max(worst, float((eager - ours).abs().max()))
    print(ir.explain(compiled))
    print(f"\nlargest difference from eager: {worst:.1e}")
    return int(worst > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
