# SPDX-License-Identifier: Apache-2.0
"""Where a torch operator of somebody's library comes from: its files.

A compiled graph calls the operator, so its kernels decide nothing before they run. What is built
into the graph is the schema, the shapes that its fake kernels tell, and decompositions.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from vllm_ir.identity.file_digests import (
    UnknownIdentity,
    file_digest,
    libraries_that_mention,
    library_digest,
)

# Those that torch defines itself.
_OF_TORCH = {
    *("aten", "prims", "prim", "inductor", "quantized", "quantized_decomposed", "onednn", "mkldnn"),
    *("mkl", "c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "rngprims"),
    *("_quantized", "debugprims", "fsdp", "_dtensor", "profiler", "cuda", "streams"),
}
_PLACE = re.compile(r"registered at (.+?):\d+")


@dataclass
class OperatorFacts:
    """What decides what a graph makes of an operator.

    Attributes:
        texts: Schema and hashes of files.
        functions: Python functions that run while a graph is made.
    """

    texts: list[str]
    functions: list[Any] = field(default_factory=list)


def overloads_of(operator: Any) -> Iterator[torch._ops.OpOverload[..., Any]]:
    """Yield the overloads of an operator, or the overload that it is."""
    if isinstance(operator, torch._ops.OpOverload):
        yield operator
    else:
        yield from (getattr(operator, name) for name in operator.overloads())


def is_of_torch(operator: Any) -> bool:
    """Return whether an operator, or an overload of one, is torch's own."""
    return all(o.namespace in _OF_TORCH for o in overloads_of(operator))


def facts_of_overload(overload: torch._ops.OpOverload[..., Any]) -> OperatorFacts:
    """Return the facts of one overload.

    Raises:
        UnknownIdentity: Nothing that is loaded is known to have registered it.
    """
    facts = OperatorFacts([str(overload._schema)])
    if is_of_torch(overload):
        return facts
    name = overload._schema.name
    if overload._overloadname != "default":
        name += f".{overload._overloadname}"
    facts.texts += sorted(_files(name))
    facts.functions += _python_sides(name)
    return facts


def _files(name: str) -> Iterator[str]:
    torch_folder = torch.__path__[0]
    for place in set(_PLACE.findall(torch._C._dispatch_dump(name))):
        if place == "/dev/null" or place.startswith(torch_folder):
            continue  # torch's own, on behalf of Python functions: `_python_sides`
        if place.endswith(".py"):
            yield file_digest(place)
            continue
        libraries = libraries_that_mention(place)
        if not libraries:
            raise UnknownIdentity(f"the operator {name}, whose library isn't known")
        yield from map(library_digest, libraries)


def _python_sides(name: str) -> Iterator[Any]:
    from torch._library.custom_ops import OPDEFS
    from torch._library.simple_registry import singleton
    from torch._library.triton import get_triton_kernels_for_op

    definition = OPDEFS.get(name)
    if definition is not None:
        yield definition._abstract_fn
        if get_triton_kernels_for_op(name):
            yield definition._init_fn  # graphs look into it
        return
    kernel = singleton.find(name).fake_impl.kernel
    if kernel is not None:
        yield _unwrapped(kernel.func)


def _unwrapped(fake: Any) -> Any:
    """Take off what torch wraps around a fake kernel, which remembers whether it has run."""
    names = getattr(getattr(fake, "__code__", None), "co_freevars", ())
    return fake.__closure__[names.index("func")].cell_contents if "func" in names else fake
