# SPDX-License-Identifier: Apache-2.0
"""What identifies the result of the passes, for Inductor's caches.

It covers everything that decides the result: torch, this package with its compiled part, the
configuration, the fusions, the switches, and for each op that may occur its schema, its native
function, and the implementations in force, in their order, with all that they are made of. Of a
machine it covers what implementations may have asked for, and no path: a cache folder may be shared
by machines and by checkouts.

What can't be identified gives None: the caches are then bypassed, which is slow and safe.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from vllm_ir import _C
from vllm_ir.compile import fusion
from vllm_ir.compile.config import CompileConfig
from vllm_ir.compile.graph import ir_call
from vllm_ir.identity import Identity, UnknownIdentity, identify, warn_unknown
from vllm_ir.identity.file_digests import library_digest
from vllm_ir.identity.operators import is_of_torch
from vllm_ir.identity.versions import OWN_SOURCES
from vllm_ir.op import IrOp
from vllm_ir.platforms import current_platform
from vllm_ir.selection import Selection


def of(
    config: CompileConfig, selection: Selection, ops: frozenset[str] | None = None
) -> str | None:
    """Return the identity of what the passes do under these choices, None when it isn't known.

    Args:
        config: The choices.
        selection: The priorities.
        ops: Names of the ops that the graph calls; None: any may occur. Those that
            implementations, fusions and this package add to a graph count in any case.

    Raises:
        UnknownNameError: The selection or the configuration names what isn't registered here.
    """
    fusions = fusion.fingerprint(config)
    if fusions is None:
        return None
    parts = [torch.__version__, OWN_SOURCES, repr(config), fusions, _machine()]
    parts.append(repr((selection.strict, selection.batch_invariant)))
    try:
        parts += [library_digest(str(path)) for path in sorted(_compiled_parts())]
    except UnknownIdentity as error:
        warn_unknown("vllm_ir", error)
        return None
    identities = _all_ops(selection, ops, config)
    if identities is None:
        return None
    parts += identities
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def ops_called(gm: fx.GraphModule) -> frozenset[str] | None:
    """Return the ops that a Dynamo graph calls, None when others may come out of what it calls."""
    found: set[str] = set()
    for module in gm.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            call = ir_call(node)
            if call is not None:
                found.add(call[0].name)
            elif not _is_plain(node):
                return None
    return frozenset(found)


def _is_plain(node: fx.Node) -> bool:
    """Whether a node surely calls no op: it is torch's own or Python's."""
    if node.op != "call_function":
        return True
    if isinstance(node.target, (OpOverload, OpOverloadPacket)):
        return is_of_torch(node.target)
    home = str(getattr(node.target, "__module__", None)).partition(".")[0]
    return home in ("torch", "_operator", "builtins", "math", "None")


def _all_ops(
    selection: Selection, ops: frozenset[str] | None, config: CompileConfig
) -> list[str] | None:
    """Return what identifies the ops that may occur, in a fixed order."""
    named = set(IrOp.registry) if ops is None else ops | fusion.ops_made(config) | _shipped()
    waiting, parts = sorted(named & set(IrOp.registry)), {}
    while waiting:
        name = waiting.pop()
        if name in parts:
            continue
        found = _one_op(IrOp.registry[name], selection)
        if found is None:
            return None
        parts[name] = found.digest
        waiting += sorted(found.ops & set(IrOp.registry))
    return [f"{name}={parts[name]}" for name in sorted(parts)]


def _one_op(op: IrOp, selection: Selection) -> Identity | None:
    """Return the identity of all that may run for an op, and the ops that those call."""
    providers = selection.providers(op)
    impls = [op.impls[p] for p in providers]
    where = f"vllm_ir.{op.name}"
    try:
        found = []
        for impl in dict.fromkeys((*impls, op.impls["native"])):
            where = f"vllm_ir.{op.name}.{impl.provider}"
            found.append(impl.identity())
        where = f"vllm_ir.{op.name}.register_fake"
        fake = identify(op._fake)
    except UnknownIdentity as error:
        warn_unknown(where, error)
        return None
    texts = (op._schema.text, op.activations, op.allow_inplace, tuple(providers))
    digests = tuple(i.digest for i in (*found, fake))
    called = frozenset().union(*(i.ops for i in (*found, fake)))
    return Identity(identify(texts, digests).digest, called)


def _shipped() -> set[str]:
    return {n for n, op in IrOp.registry.items() if op.__module__.startswith(f"{_PACKAGE}.")}


def _compiled_parts() -> Iterator[Path]:
    return Path(_C.__file__).parent.glob("*.so")


def _machine() -> str:
    """Return what a predicate may ask of a machine; Inductor's own key names the GPU."""
    return f"{torch.backends.cpu.get_cpu_capability()} {current_platform().name}"


_PACKAGE = __name__.partition(".")[0]
