# SPDX-License-Identifier: Apache-2.0
"""What identifies the result of the passes, for Inductor's caches.

It covers everything that decides the result: the passes' own sources, the configuration, the
fusions, and for each op its schema, the implementations in force in their order, what they are made
of, and the switches. What can't be identified gives None: the caches are then bypassed, which is
slow and safe.
"""

import functools
import hashlib
from pathlib import Path

import torch

from vllm_ir import _C, _build_info
from vllm_ir.compile import fusion
from vllm_ir.compile.config import CompileConfig
from vllm_ir.op import IrOp
from vllm_ir.selection import Selection


def of(config: CompileConfig, selection: Selection) -> str | None:
    """Return the identity of what the passes do under these choices, None when it isn't known."""
    fusions = fusion.fingerprint(config)
    if fusions is None:
        return None
    parts = [_own_sources(), torch.__version__, _build_info.VERSION, repr(config), fusions]
    parts.append(repr((_C.is_strict(), _C.is_batch_invariant())))
    for name in sorted(IrOp.registry):
        op = IrOp.registry[name]
        parts.append(f"{name}{op._schema.text}{op.activations}{op.allow_inplace}")
        for provider in selection.providers(op):
            impl = op.impls[provider].uuid()
            if impl is None:
                return None
            parts.append(f"{provider}={impl}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def _own_sources() -> str:
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
