# SPDX-License-Identifier: Apache-2.0
"""The pass `sequence_parallelism`: norms behind an all_reduce run on the rows of one rank.

Before, on each of n ranks, for a model whose weights are divided among them (tensor parallelism):

    y, s = fused_add_rms_norm(all_reduce(x), r, weight, epsilon)

After:

    y, s = fused_add_rms_norm(reduce_scatter(x), r[rows of the rank], weight, epsilon)
    y = all_gather(y)

The same bytes go over the wire, and each rank normalises 1/n of the rows. The sum stays divided
from layer to layer; it is gathered only where something other than the next norm reads it. The
first residual of a chain is cut. `rms_norm` and an addition in front of it are treated alike.

It is off by default, because of what it takes for granted and no compiler can see: weights and
residuals are the same on all ranks of the group, as in tensor parallelism they are, and all ranks
run the same code. The number of rows must be a multiple of n. A dynamic one gets a guard, so that
other batches are compiled as they were written. Sums may be rounded in another order, as by any
change of collective.

Every row of the report counts collectives, and the bytes that a rank sends for one row of a batch
with ring algorithms.
"""

from typing import Any

import torch
from torch import Tensor, fx

from vllm_ir.compile.collect import is_donating, kept_activations, mark_donating
from vllm_ir.compile.fusion.layers import Group, Layer, find_layers, row_wise, rows_of
from vllm_ir.compile.fusion.registry import register_pass
from vllm_ir.compile.fusion.rewriter import Rewriter
from vllm_ir.compile.graph import ir_call, value_of
from vllm_ir.compile.trace import fake_world


def _ranks_now() -> str | None:
    """Return which ranks of which groups this process is: other ranks cut other rows."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return ""
    try:
        world = distributed.distributed_c10d._world
        groups = [(name, sorted(world.pg_group_ranks[g])) for g, name in world.pg_names.items()]
        return repr((distributed.get_rank(), groups))
    except AttributeError:
        return None


@register_pass("sequence_parallelism", after="add_rms_norm", default=False, identity=_ranks_now)
def sequence_parallelism(rewriter: Rewriter) -> None:
    """Run the norms behind each all_reduce on the rows of one rank."""
    useful = row_wise(rewriter.graph)
    layers = find_layers(rewriter, useful)
    if layers:
        division = _Division(rewriter, layers)
        for node in list(rewriter.graph.nodes):
            if node in layers:
                division.scatter(layers[node])
            elif node in useful:
                division.divide(node)
        division.gather()
        division.report()
        division.clean_up()


class _Division:
    """The values of a graph that are divided among ranks, each with this rank's rows."""

    def __init__(self, rewriter: Rewriter, layers: dict[fx.Node, Layer]) -> None:
        self._rewriter = rewriter
        self._layers = list(layers.values())
        self._rows: dict[fx.Node, tuple[fx.Node, Layer]] = {}
        self._cuts: dict[tuple[fx.Node, str], fx.Node] = {}
        self._divided: list[fx.Node] = []  # row-wise operators that have been replaced

    def scatter(self, layer: Layer) -> None:
        """Replace an all_reduce."""
        rows, _ = self._rewriter.insert(
            _reduce_scatter,
            (layer.reduce.args[0], layer.group.size, layer.group.name),
            before=layer.wait,
            like=layer.reduce,
        )
        self._rows[layer.wait] = rows, layer

    def divide(self, node: fx.Node) -> None:
        """Let a row-wise operator run on the rows of this rank, if it reads a divided value."""
        positions = rows_of(node)
        divided = [self._rows[n] for n in node.all_input_nodes if n in self._rows]
        layers = [layer for _, layer in divided]
        if not layers:
            return
        layer = max(layers, key=lambda found: found.wait)
        args = list(node.args)
        for i in positions:
            args[i] = self._rows_of(args[i], layer, node)
        result, made = self._rewriter.insert(
            _call, (node.target, tuple(args), dict(node.kwargs)), before=node, like=node
        )
        self._divided.append(node)
        if ir_call(node) is not None:
            layer.norms.append(node.name)
        if is_donating(node):  # its activations here are new, or parts of what was donated
            mark_donating(made[0], kept_activations(node))
        if isinstance(value_of(node), Tensor):
            self._rows[node] = result, layer
        for user in node.users:
            if user.args[0] is node and not isinstance(value_of(node), Tensor):
                self._rows[user] = result[user.args[1]], layer

    def gather(self) -> None:
        """Put the whole value back wherever something reads all rows of a divided one."""
        for whole, (rows, layer) in self._rows.items():
            readers = [u for u in whole.users if u not in self._divided]
            if not readers:
                continue
            gathered, _ = self._rewriter.insert(
                _all_gather,
                (rows, layer.group.size, layer.group.name),
                before=min(readers),
                like=whole,
            )
            # n * (rows / n): equal to the number of rows, which the symbols don't say.
            gathered.meta["val"] = _contiguous_like(value_of(whole))
            self._rewriter.replace(whole, gathered, what="the gathered value")
            layer.gathers[whole.name] = gathered

    def report(self) -> None:
        """Add a row for each layer."""
        for layer in self._layers:
            self._rewriter.matched(layer.reduce, _account(layer), _costs(layer))

    def clean_up(self) -> None:
        """Erase what has been replaced."""
        self._rewriter.erase(
            [
                *self._rows,
                *self._divided,
                *(layer.reduce for layer in self._layers),
            ]
        )

    def _rows_of(self, value: Any, layer: Layer, before: fx.Node) -> fx.Node:
        rows, source = self._rows.get(value, (None, None))
        if rows is not None and source is not None and source.group == layer.group:
            return rows
        key = (value, layer.group.name)
        if key not in self._cuts:
            args = (value, layer.group.size, layer.group.rank)
            self._cuts[key], _ = self._rewriter.insert(_cut, args, before=before, like=before)
            layer.cuts.append(value.name)
        return self._cuts[key]


def _reduce_scatter(x: Tensor, ranks: int, group: str) -> Tensor:
    functional = torch.ops._c10d_functional
    rows: Tensor = functional.reduce_scatter_tensor(x, "sum", ranks, group)
    return functional.wait_tensor(rows)  # type: ignore[no-any-return]


def _all_gather(rows: Tensor, ranks: int, group: str) -> Tensor:
    functional = torch.ops._c10d_functional
    whole: Tensor = functional.all_gather_into_tensor(rows, ranks, group)
    return functional.wait_tensor(whole)  # type: ignore[no-any-return]


def _cut(x: Tensor, ranks: int, rank: int) -> Tensor:
    rows = x.shape[0] // ranks
    return x.narrow(0, rank * rows, rows)


def _call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return target(*args, **kwargs)


def _contiguous_like(whole: Tensor) -> Tensor:
    with fake_world([whole]):
        return torch.empty(whole.shape, dtype=whole.dtype, device=whole.device)


def _account(layer: Layer) -> str:
    names = {
        "rows of each rank": layer.norms,
        "cut": layer.cuts,
        "gathered": layer.gathers,
    }
    parts = [f"{what}: {', '.join(of)}" for what, of in names.items() if of]
    if layer.guarded:
        parts.append(f"a guard: the rows are a multiple of {layer.group.size}")
    return "; ".join(["reduce_scatter in place of all_reduce", *parts])


def _costs(layer: Layer) -> dict[str, dict[str, int]]:
    reduced = _sent(value_of(layer.wait), layer.group)
    gathered = [_sent(value_of(n), layer.group) for n in layer.gathers.values()]
    before = {"all_reduce": 1}
    after = {"reduce_scatter": 1, "all_gather": len(gathered)}
    return {
        "before": {**before, "bytes_per_row": 2 * reduced},
        "after": {**after, "bytes_per_row": reduced + sum(gathered)},
    }


def _sent(t: Tensor, group: Group) -> int:
    """Return the bytes of one row that a rank sends in a reduce_scatter or an all_gather."""
    row = t.element_size()
    for size in t.shape[1:]:
        row *= size.node.hint or 1 if isinstance(size, torch.SymInt) else size
    return row * (group.size - 1) // group.size
