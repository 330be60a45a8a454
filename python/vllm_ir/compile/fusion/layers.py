# SPDX-License-Identifier: Apache-2.0
"""Which all_reduces of a graph can become a reduce_scatter, for the pass `sequence_parallelism`.

A *row-wise* operator computes each row of its result from the same row of its arguments: the norms,
and an addition of two values of one shape. A *layer* is an all_reduce whose result goes into
row-wise operators alone, and through them into a norm.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from vllm_ir.compile.fusion.rewriter import Rewriter
from vllm_ir.compile.graph import ir_call, value_of
from vllm_ir.compile.likeness import same_numbers

ADD = torch.ops.aten.add.Tensor
# Positions of the arguments that have rows, by op.
_ROWS = {"rms_norm": (0,), "fused_add_rms_norm": (0, 1)}


@dataclass(frozen=True)
class Group:
    """A process group, seen from this process."""

    name: str
    size: int
    rank: int


@dataclass(eq=False)
class Layer:
    """One all_reduce that becomes a reduce_scatter.

    Attributes:
        reduce: The all_reduce.
        wait: Its result.
        guarded: A guard says that the rows can be divided.
        norms: The norms that read the rows of one rank, by the name of the node they replace.
        gathers: The gathered values, for whatever else reads them, by the name of the value they
            replace.
        cuts: Values that each rank has whole, and takes its rows from.
    """

    reduce: fx.Node
    wait: fx.Node
    group: Group
    guarded: bool
    norms: list[str]
    gathers: dict[str, fx.Node]
    cuts: list[str]


def rows_of(node: fx.Node) -> tuple[int, ...]:
    """Return the positions of the arguments with rows, of a row-wise operator; () of others."""
    called = ir_call(node)
    positions: tuple[int, ...] = ()
    if called is not None:
        positions = _ROWS.get(called[0].name, ())
    elif node.op == "call_function" and node.target is ADD:
        positions = (0, 1)
    values = [value_of(a) for a in node.args if isinstance(a, fx.Node)]
    tensors = [v for v in values[: len(positions)] if isinstance(v, Tensor) and v.dim() >= 2]
    if len(tensors) < len(positions):
        return ()
    alike = all(same_numbers(t.shape, tensors[0].shape) for t in tensors)
    return positions if alike else ()


def row_wise(graph: fx.Graph) -> set[fx.Node]:
    """Return the row-wise nodes that are norms or lead to one."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if rows_of(node) and (ir_call(node) or any(user in found for user in node.users)):
            found.add(node)
    return found


def find_layers(rewriter: Rewriter, useful: set[fx.Node]) -> dict[fx.Node, Layer]:
    """Return the layers by the node of the reduced value; the others are near-misses.

    May add a guard on a dynamic number of rows.
    """
    functional = torch.ops._c10d_functional
    layers: dict[fx.Node, Layer] = {}
    for reduce in rewriter.graph.find_nodes(
        op="call_function", target=functional.all_reduce.default
    ):
        waits = [u for u in reduce.users if u.target is functional.wait_tensor.default]
        if not any(u in useful and _reads_rows(wait, u) for wait in waits for u in wait.users):
            continue  # no norm in sight
        found = _layer(reduce, waits[0], useful)
        if isinstance(found, Layer):
            layers[found.wait] = found
        else:
            rewriter.near_miss(reduce, found)
    return layers


def _layer(reduce: fx.Node, wait: fx.Node, useful: set[fx.Node]) -> Layer | str:
    _, kind, name = reduce.args
    if kind != "sum":
        return f"it reduces by '{kind}', and only a sum is taken apart"
    strangers = [(reduce, u) for u in reduce.users if u is not wait]
    strangers += [(wait, u) for u in wait.users if u not in useful or not _only_as_rows(wait, u)]
    for value, user in strangers:
        who = "the caller" if user.op == "output" else f"'{user.name}'"
        return f"{who} reads all rows of '{value.name}'"
    group = _resolve(name)
    if isinstance(group, str):
        return group
    if group.size == 1:
        return "its group has one rank"
    value = value_of(wait)
    if not _is_contiguous(value) or not _is_contiguous(value_of(reduce.all_input_nodes[0])):
        return f"'{wait.name}' isn't contiguous"
    divisible = _divide(value, group.size)
    if isinstance(divisible, str):
        return divisible
    return Layer(reduce, wait, group, divisible, [], {}, [])


def _reads_rows(value: fx.Node, user: fx.Node) -> bool:
    return any(user.args[i] is value for i in rows_of(user))


def _only_as_rows(value: fx.Node, user: fx.Node) -> bool:
    positions = rows_of(user)
    return all(i in positions for i, arg in enumerate(user.args) if arg is value)


def _resolve(name: object) -> Group | str:
    from torch import distributed

    try:
        group = torch._C._distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]
        return Group(str(name), distributed.get_world_size(group), distributed.get_rank(group))
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return f"nothing is known about the process group {name!r}: {error}"


def _is_contiguous(t: Tensor) -> bool:
    expected: object = 1
    for size, stride in zip(reversed(t.shape), reversed(t.stride()), strict=True):
        if not statically_known_true(size == 1) and not statically_known_true(stride == expected):
            return False
        expected = expected * size  # type: ignore[operator]
    return True


def _divide(value: Tensor, ranks: int) -> bool | str:
    """Return whether that needs a guard, or why the rows can't be divided."""
    rows = value.shape[0]
    if statically_known_true(rows == 0):
        return "there are no rows"
    if statically_known_true(rows % ranks == 0):
        return False
    if isinstance(rows, int):
        return f"{rows} rows can't be divided by {ranks} ranks"
    env = rows.node.shape_env
    if env is None or env.frozen or not rows.node.has_hint():
        return f"whether {rows} rows can be divided by {ranks} ranks is not known"
    if rows % ranks == 0:  # a guard: other numbers of rows get code of their own
        return True
    return f"{rows} rows can't be divided by {ranks} ranks; a guard holds such batches apart"
