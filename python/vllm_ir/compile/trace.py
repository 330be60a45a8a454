# SPDX-License-Identifier: Apache-2.0
"""From an implementation's Python function to nodes of the graph that calls it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch._library.triton import get_triton_kernels_for_op
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from vllm_ir.compile.alias import VIEWS_BY_NATURE
from vllm_ir.compile.graph import (
    ir_nodes,
    is_higher_order,
    overload,
    storages_of,
    torchs_operator,
    value_of,
    written_args,
)
from vllm_ir.compile.likeness import same_kind, same_numbers, same_strides

aten = torch.ops.aten
Decompositions = Mapping[Any, Callable[..., Any]]
_WRITTEN = "vllm_ir_written"
Symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Tracer:
    """Traces functions on the fake values of graph nodes, once for equal arguments.

    A model calls an op with the same shapes in every layer; tracing costs milliseconds.

    Args:
        decompositions: What becomes of torch's operators; None: Inductor's own table. Without it
            operators survive that Inductor has no code for. With Inductor's, an operator of
            `torch.library.triton_op` becomes the launches of its kernels, as behind AOTAutograd.
    """

    def __init__(self, decompositions: Decompositions | None = None) -> None:
        self._opens_triton = decompositions is None
        self._decompositions = decompositions
        self._traced: dict[Any, fx.GraphModule] = {}

    def trace(self, key: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> fx.GraphModule:
        """Return the operators that `fn` runs on arguments as those, which may hold nodes.

        Args:
            key: What stands for `fn`.
            fn: Called with fake tensors in place of nodes.
            args: Arguments as a node has them.

        Returns:
            A graph with one placeholder for each distinct node of the arguments, in order. None of
            torch's in-place operators is in it; `written_inputs` tells what they wrote.
        """
        nodes = nodes_in(args)
        full_key = (key, signature_of(args))
        if full_key not in self._traced:
            traced = _trace(fn, args, nodes, self._table(), self._opens_triton)
            self._traced[full_key] = traced
        return self._traced[full_key]

    def _table(self) -> Decompositions:
        if self._decompositions is None:
            from torch._inductor.decomposition import select_decomp_table

            self._decompositions = cast(Decompositions, select_decomp_table())
        return self._decompositions


def nodes_in(args: tuple[Any, ...]) -> list[fx.Node]:
    """Return the distinct nodes of nested arguments, in order of appearance."""
    found: dict[fx.Node, None] = {}
    map_arg(args, lambda node: found.setdefault(node))
    return list(found)


def fake_values(args: Any) -> Any:
    """Return nested arguments with each node replaced by its fake value."""
    return map_arg(args, value_of)


def signature_of(args: tuple[Any, ...]) -> Any:
    """Return what a trace may depend on: equal signatures give equal traces."""
    nodes = nodes_in(args)
    index = {node: i for i, node in enumerate(nodes)}
    shape = map_arg(args, lambda node: cast(Any, _Slot(index[node])))
    storages: dict[int, int] = {}
    return repr(shape), tuple(_describe(value_of(n), storages) for n in nodes)


class _Slot:
    def __init__(self, index: int) -> None:
        self._index = index

    def __repr__(self) -> str:
        return f"<{self._index}>"


def _describe(value: Any, storages: dict[int, int]) -> Any:
    if not isinstance(value, Tensor):
        return str(value)
    if value.layout is not torch.strided:
        return object()  # equal to nothing
    storage = storages.setdefault(value.untyped_storage()._cdata, len(storages))
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return storage, value.dtype, value.device, value.dim(), tuple(map(str, numbers))


@contextlib.contextmanager
def fake_world(values: Any) -> Iterator[None]:
    """Be in the fake mode of these values, with no autograd and no inference mode."""
    mode = detect_fake_mode(values)
    with torch.no_grad(), mode if mode is not None else contextlib.nullcontext():
        yield


def _trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    nodes: list[fx.Node],
    table: Decompositions,
    opens_triton: bool,
) -> fx.GraphModule:
    def on_values(*values: Any) -> Any:
        by_node = dict(zip(nodes, values, strict=True))
        return fn(*map_arg(args, by_node.__getitem__))

    fakes = [value_of(n) for n in nodes]
    with fake_world(fakes), torch.fx.traceback.preserve_node_meta(False):
        traced = _made(on_values, fakes, table)
        if any(map(_writes_with_torch, traced.graph.nodes)) or (
            opens_triton and any(map(_shows_kernels, traced.graph.nodes))
        ):
            traced = _functional(traced, fakes, table)
    return traced


def _made(fn: Callable[..., Any], fakes: list[Any], table: Decompositions) -> fx.GraphModule:
    traced: fx.GraphModule = make_fx(fn, tracing_mode="real", decomposition_table=table)(*fakes)
    return traced


def _functional(traced: fx.GraphModule, fakes: list[Any], table: Decompositions) -> fx.GraphModule:
    """Trace again, with new values in the place of what is written.

    Kernels that write as well become `auto_functionalized`, as AOTAutograd would have it: Inductor
    puts them back.
    """
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize

    inputs = traced.graph.find_nodes(op="placeholder")
    written = {s for n in traced.graph.nodes for w in written_args(n) for s in storages_of(w)}
    for node, op, _ in ir_nodes(traced.graph):
        node.target = overload(op, "default")
    traced.recompile()
    functional = _made(dispatch_functionalize(traced, FunctionalTensorMode()), fakes, table)
    _forget_targets(functional.graph)
    functional.graph.eliminate_dead_code()
    functional.meta[_WRITTEN] = [i for i, n in enumerate(inputs) if storages_of(n) & written]
    return functional


def _forget_targets(graph: fx.Graph) -> None:
    """Say that a copy is what was copied, where it needn't be made like the tensor it went to.

    It then doesn't wait for that tensor, nor take over the offset that it has in its memory.
    """
    for node in graph.find_nodes(op="call_function", target=aten.copy.default):
        target, source = map(value_of, node.args[:2])
        if same_kind(target, source) and same_strides(target, source) and _is_dense(source):
            with graph.inserting_before(node):
                clone = graph.call_function(aten.clone.default, (node.args[1],))
            clone.meta = dict(node.meta)
            node.replace_all_uses_with(clone)
            graph.erase_node(node)


def _is_dense(t: Tensor) -> bool:
    strides = torch.empty_like(t).stride()  # those that a clone has
    return same_numbers(strides, t.stride())


def written_inputs(traced: fx.GraphModule) -> list[int]:
    """Return which inputs the traced function writes, where the trace itself doesn't show it."""
    found: list[int] = traced.meta.get(_WRITTEN, [])
    return found


def _writes_with_torch(node: fx.Node) -> bool:
    """Whether a node is one of torch's own in-place operators.

    Inductor makes code for these, and takes graphs for free of them: it may put a write behind a
    read of the new value, where the same memory has been written before.
    """
    operator = torchs_operator(node)
    return operator is not None and bool(operator._schema.is_mutable)


def _shows_kernels(node: fx.Node) -> bool:
    """Whether a node calls an operator that functionalization takes apart into Triton launches."""
    target = node.target
    return isinstance(target, OpOverload) and bool(get_triton_kernels_for_op(target._schema.name))


def splice(
    graph: fx.Graph, before: fx.Node, traced: fx.GraphModule, inputs: list[fx.Node]
) -> tuple[Any, list[fx.Node]]:
    """Put a traced graph in front of a node.

    Args:
        graph: Gets the new nodes, each with a fake value.
        before: The nodes go in front of it.
        traced: As `Tracer.trace` returns it.
        inputs: What its placeholders stand for.

    Returns:
        The results, nested as the function returned them, with nodes of `graph`; and the new nodes.
    """
    env: dict[fx.Node, Any] = {}
    made: list[fx.Node] = []
    remaining = iter(inputs)
    result: Any = None
    with graph.inserting_before(before), fake_world([value_of(n) for n in inputs]):
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(remaining)
            elif node.op == "output":
                result = map_arg(node.args[0], env.__getitem__)
            else:
                env[node] = _copy(graph, node, traced, env)
                made.append(env[node])
    return result, made


def _copy(
    graph: fx.Graph, node: fx.Node, traced: fx.GraphModule, env: Mapping[fx.Node, Any]
) -> fx.Node:
    if node.op == "get_attr":
        return _copy_constant(graph, node, traced)
    new = graph.node_copy(node, env.__getitem__)
    new.meta = {}
    new.meta["val"] = _evaluate(node, new)
    return new


def _evaluate(node: fx.Node, new: fx.Node) -> Any:
    if not callable(node.target) or (is_higher_order(node) and not _is_launch(node)):
        return node.meta.get("val")
    # Anew, not the trace's: a trace may serve many nodes, whose values are different memory.
    known = node.meta.get("val")
    if _makes_new_memory(node) and isinstance(known, Tensor) and known.layout is torch.strided:
        # What it computes needn't be worked out again, which takes ten times as long.
        return known.new_empty_strided(known.shape, known.stride())
    args, kwargs = fake_values(new.args), fake_values(new.kwargs)
    return node.target(*args, **kwargs)


def _is_launch(node: fx.Node) -> bool:
    return str(node.target) == "triton_kernel_wrapper_functional"


def _makes_new_memory(node: fx.Node) -> bool:
    operator = torchs_operator(node)
    if operator is None or operator._schema.name in VIEWS_BY_NATURE:
        return False
    no_aliases = all(r.alias_info is None for r in operator._schema.returns)
    return no_aliases and not operator._schema.is_mutable


def _copy_constant(graph: fx.Graph, node: fx.Node, traced: fx.GraphModule) -> fx.Node:
    value = getattr(traced, str(node.target))
    owner = graph.owning_module
    assert owner is not None
    name = f"_vllm_ir_{node.target}"
    while hasattr(owner, name):
        if getattr(owner, name) is value:
            break
        name += "_"
    if isinstance(value, Tensor):
        owner.register_buffer(name, value, persistent=False)
    else:
        setattr(owner, name, value)
    new = graph.get_attr(name)
    new.meta["val"] = node.meta.get("val", value)
    return new
