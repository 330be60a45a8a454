# SPDX-License-Identifier: Apache-2.0
"""From `maybe_inplace` to `donated`, on the graph that Dynamo made.

Before: a Dynamo graph, with views, in-place torch operators and bodies of higher-order operators;
ops appear as `default` or `maybe_inplace`, with keywords or without.
After: no `maybe_inplace` is left. Where the graph itself donated the activations it is `donated`,
canonical: the donation travels in the graph, so no cache and no subgraph can lose or invent it.
Elsewhere it is `default`: in the bodies of higher-order operators, whose inputs belong to somebody
else, where an activation shares memory with a graph input that was not donated, where the caller
sees another part of the donated input afterwards, and where `as_strided` reaches around it.
Nothing else changes. No value that was donated is used again, else `DonationError`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from vllm_ir.compile.graph import (
    activation_args,
    copy_provenance,
    ir_call,
    ir_nodes,
    is_higher_order,
    make_canonical,
    overload,
    source_line,
    storages_of,
    tensors_of,
    value_of,
)
from vllm_ir.compile.marks import FRESH
from vllm_ir.compile.regions import Overlap, overlap
from vllm_ir.compile.writes import written_nodes
from vllm_ir.errors import DonationError
from vllm_ir.op import IrOp


@dataclass
class Functionalized:
    """What `functionalize` found in a graph.

    Attributes:
        donated_inputs: Placeholders whose memory the graph may overwrite.
        refused: Why a donation was not taken, by node name.
    """

    donated_inputs: list[fx.Node] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def functionalize(gm: fx.GraphModule, donate_graph_inputs: bool = True) -> Functionalized:
    """Rewrite every `maybe_inplace` of a Dynamo graph, bodies of higher-order operators included.

    Args:
        gm: Changed in place; its nodes have `example_value` metadata, as Dynamo gives them.
        donate_graph_inputs: False keeps the memory of graph inputs as it is.

    Returns:
        Which graph inputs may be overwritten, and which donations were refused.

    Raises:
        DonationError: A donated value is used again, or donated twice in one call.
    """
    found = Functionalized()
    for body in _bodies(gm):
        _rewrite_body(body)
    calls = [(n, op) for n, op, name in ir_nodes(gm.graph) if name == "maybe_inplace"]
    if not calls:
        return found
    memory = _Memory(gm.graph)
    for node, op in calls:
        make_canonical(node, op, overload(op, "maybe_inplace"))
        _check_reuse(node, op, memory)
    for node, op in calls:
        inputs = [p for _, _, arg in activation_args(node, op) for p in memory.inputs_behind(arg)]
        reason = _refusal(node, op, memory, inputs, donate_graph_inputs)
        if reason:
            found.refused[node.name] = reason
            node.target = overload(op, "default")
        else:
            found.donated_inputs += [p for p in inputs if p not in found.donated_inputs]
            _donate(node, op, memory)
    gm.recompile()
    return found


def _donate(node: fx.Node, op: IrOp, memory: "_Memory") -> None:
    """Let the graph say which activations the caller gave away: those that lie in its inputs.

    New values need no word: alias analysis finds out who can see them.
    """
    args = list(activation_args(node, op))
    fresh = [(i, arg) for _, i, arg in args if not memory.inputs_behind(arg)]
    if len(fresh) == len(args) or _needs_gradient(node):
        node.target = overload(op, "default")
        return
    node.target = overload(op, "donated")
    for position, arg in fresh:
        with node.graph.inserting_before(node):
            mark = node.graph.call_function(FRESH, (arg,))
        mark.meta["example_value"] = value_of(arg)
        copy_provenance(node, mark)
        node.update_arg(position, mark)


def _needs_gradient(node: fx.Node) -> bool:
    """Whether autograd will look into the call, and run native."""
    tensors = [t for a in node.all_input_nodes for t in tensors_of(a)]
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


class _Memory:
    """Who shares memory with whom in a graph, by the fake tensors' storages."""

    def __init__(self, graph: fx.Graph) -> None:
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self._by_storage: dict[int, list[fx.Node]] = {}
        for node in graph.nodes:
            for storage in storages_of(node):
                self._by_storage.setdefault(storage, []).append(node)

    def sharing(self, node: fx.Node) -> list[fx.Node]:
        """Return every node whose value lies in the node's memory, itself included, in order."""
        found = {m: None for s in storages_of(node) for m in self._by_storage[s]}
        return sorted(found, key=self.order.__getitem__) or [node]

    def inputs_behind(self, node: fx.Node) -> list[fx.Node]:
        """Return the placeholders whose memory a value lies in."""
        return [m for m in self.sharing(node) if m.op == "placeholder"]

    def reaching_beyond(self, source: fx.Node) -> fx.Node | None:
        """Return a value that may lie in memory around a placeholder, not in its elements."""
        for node in self.sharing(source):
            name = getattr(node.target, "__name__", str(node.target))
            if name.removesuffix(".default").rstrip("_") == "as_strided":
                return node
        return None

    def overlapping(self, node: fx.Node, other: fx.Node) -> Overlap:
        """Compare the elements of two values that share a storage."""
        relations = {
            overlap(a, b)
            for a in tensors_of(node)
            for b in tensors_of(other)
            if a.untyped_storage()._cdata == b.untyped_storage()._cdata
        }
        for relation in (Overlap.YES, Overlap.UNKNOWN):
            if relation in relations:
                return relation
        return Overlap.NO


def _bodies(gm: fx.GraphModule) -> Iterator[fx.GraphModule]:
    for _, module in gm.named_modules():
        if module is not gm and isinstance(module, fx.GraphModule):
            yield module


def _rewrite_body(body: fx.GraphModule) -> None:
    memory = _Memory(body.graph)
    calls = [(n, op) for n, op, name in ir_nodes(body.graph) if name == "maybe_inplace"]
    for node, op in calls:
        make_canonical(node, op, overload(op, "maybe_inplace"))
        _check_reuse(node, op, memory)
    for node, op in calls:
        node.target = overload(op, "default")
    if calls:
        body.recompile()


def _refusal(
    node: fx.Node, op: IrOp, memory: _Memory, inputs: list[fx.Node], donate_graph_inputs: bool
) -> str:
    """Why the memory behind the activations must stay as it is, or ""."""
    if inputs and not donate_graph_inputs:
        return f"graph input '{inputs[0].name}' keeps its memory: donate_graph_inputs is off"
    for name, _, arg in activation_args(node, op):
        if any(m.op == "get_attr" for m in memory.sharing(arg)):
            return f"'{name}' lies in a constant of the graph"
        for p in memory.inputs_behind(arg):
            reaching = memory.reaching_beyond(p)
            if reaching is not None:
                return f"'{reaching.name}' may reach beyond graph input '{p.name}' by as_strided"
        touched = [
            p
            for p in memory.inputs_behind(arg)
            if p is arg or memory.overlapping(arg, p) is not Overlap.NO
        ]
        if len(touched) > 1:
            names = " and ".join(f"'{p.name}'" for p in touched[:2])
            return f"'{name}' lies in two graph inputs that share memory, {names}"
        for p in touched:
            seen = _seen_by_caller(p, memory)
            if seen:
                return f"'{name}' lies in graph input '{p.name}', of which {seen}"
    return ""


def _seen_by_caller(source: fx.Node, memory: _Memory) -> str:
    """Return what the caller sees of a donated input after the call, "" for nothing.

    Where inputs share memory when the graph runs, a donated one is copied first. What the graph
    writes to it otherwise, and its views that the graph returns, must be the caller's memory.
    """
    for alias in memory.sharing(source):
        for user in alias.users:
            if user.op == "output":
                return f"a part, '{alias.name}', is returned"
            if ir_call(user) is None and alias in written_nodes(user):
                return f"a part, '{alias.name}', is written by '{user.name}'"
    return ""


def _check_reuse(node: fx.Node, op: IrOp, memory: _Memory) -> None:
    """Raise DonationError when a donated value is read or returned after the call."""
    activations = list(activation_args(node, op))
    for i, (name, _, arg) in enumerate(activations):
        for other_name, _, other in activations[:i]:
            together = arg is other or (
                bool(storages_of(arg) & storages_of(other))
                and memory.overlapping(arg, other) is Overlap.YES
            )
            if together:
                raise DonationError(
                    f"vllm_ir.{op.name}.maybe_inplace: '{other_name}' and '{name}' are one tensor "
                    f"('{arg.name}') or overlap, got both donated at\n    {source_line(node)}\n"
                    f"Call vllm_ir.ops.{op.name}(...), which keeps its inputs, or donate "
                    f"{name}.clone()."
                )
        for alias in memory.sharing(arg):
            if alias is not arg and memory.overlapping(arg, alias) is not Overlap.YES:
                continue
            reader = _first_reader(alias, node, memory)
            if reader is not None:
                raise DonationError(_reuse_text(op, name, arg, alias, node, reader))


def _first_reader(alias: fx.Node, call: fx.Node, memory: _Memory) -> fx.Node | None:
    """Return the first node behind the call that reads, writes or returns the value."""
    users = sorted(alias.users, key=memory.order.__getitem__)
    for user in users:
        if memory.order[user] > memory.order[call] and not _is_view(alias, user):
            return user
    return None


def _is_view(alias: fx.Node, user: fx.Node) -> bool:
    """Whether the user only makes another name for the memory: its readers count, not it."""
    if user.op == "output" or is_higher_order(user) or ir_call(user) or written_nodes(user):
        return False  # of a write the result is the memory too, but the old value is replaced
    return bool(storages_of(user)) and storages_of(user) <= storages_of(alias)


def _reuse_text(
    op: IrOp, name: str, arg: fx.Node, alias: fx.Node, call: fx.Node, reader: fx.Node
) -> str:
    what = f"'{arg.name}'" if alias is arg else f"'{arg.name}', seen through '{alias.name}'"
    how = (
        "it is returned from the compiled region"
        if reader.op == "output"
        else f"it is used again at\n    {source_line(reader)}"
    )
    return (
        f"vllm_ir.{op.name}.maybe_inplace: a donated value must not be used again, got '{name}' "
        f"({what}) donated at\n    {source_line(call)}\nand {how}\n"
        f"Call vllm_ir.ops.{op.name}(...), which keeps its inputs, or donate {name}.clone()."
    )


class FunctionalizePass(CustomGraphPass):
    """`functionalize` as a pass, for an engine that owns its pipeline.

    For `pre_grad_custom_pass` of Inductor, or to be called on a Dynamo graph by a backend. As a
    pass of Inductor's it doesn't run when AOTAutograd's cache has the result; the donations are in
    the graph either way, but no error is raised then.

    Args:
        donate_graph_inputs: As for `functionalize`.
    """

    def __init__(self, donate_graph_inputs: bool = True) -> None:
        self.donate_graph_inputs = donate_graph_inputs

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite the graph in place.

        Raises:
            DonationError: A donated value is used again.
        """
        assert graph.owning_module is not None
        functionalize(graph.owning_module, self.donate_graph_inputs)

    def uuid(self) -> Any:
        """Return what identifies the result for Inductor's caches."""
        return get_hash_for_files((__file__,), extra=repr(self.donate_graph_inputs))
