# SPDX-License-Identifier: Apache-2.0
"""Take out the protective clones that protect nobody.

Before: a lowered graph; `Lowered.clones` lists the clones that stand in front of in-place
implementations, and nothing else is looked at: a model's own clones are Inductor's business.
After: a clone is gone, and its source takes its place, exactly when nobody can see the source being
overwritten. Each clone's report says why it was kept or why it wasn't needed.

Who can see it is decided by alias classes, not by direct users: a view taken earlier, a sibling of
a split, a graph output and a graph input all count. What isn't known counts as seen.
"""

from torch import Tensor, fx
from torch._ops import HigherOrderOperator
from torch.fx.experimental.symbolic_shapes import statically_known_true

from vllm_ir.compile.alias import AliasClasses, is_unknown
from vllm_ir.compile.graph import value_of
from vllm_ir.compile.layout import same_place
from vllm_ir.compile.lowering import Lowered, ProtectiveClone
from vllm_ir.compile.regions import overlaps_itself
from vllm_ir.compile.report import CloneReport

# Higher-order operators whose results are never their inputs' memory.
_CLOSED = {
    *("cond", "auto_functionalized", "auto_functionalized_v2", "triton_kernel_wrapper_functional"),
    *("flex_attention", "flex_attention_backward"),
}


def remove_clones(graph: fx.Graph, lowered: Lowered) -> int:
    """Remove every protective clone that isn't needed.

    Args:
        graph: Changed in place.
        lowered: What lowering left; each clone's report gets its reason.

    Returns:
        How many clones were removed.
    """
    if not lowered.clones:
        return 0
    classes = AliasClasses(graph, lowered.replaced)
    given = _Given(lowered)
    removed = 0
    for clone in lowered.clones:
        source = clone.node.args[0]
        assert isinstance(source, fx.Node)
        reason = _why_kept(clone.node, source, classes, given)
        if not reason:
            given.take(clone, source)
            _remove(graph, clone.node, source, classes)
            removed += 1
        outcome = reason or ("donated" if clone.donated else "not used afterwards")
        clone.report.clones.append(CloneReport(clone.activation, bool(reason), outcome))
    return removed


class _Given:
    """Values whose memory the caller gave away: donated activations, and views of them."""

    def __init__(self, lowered: Lowered) -> None:
        self._nodes = {c.node.args[0] for c in lowered.clones if c.donated}

    def take(self, clone: ProtectiveClone, source: fx.Node) -> None:
        """Note that a donated value was overwritten: its new content lies in the same memory."""
        if clone.donated:
            self._nodes.add(source)

    def covers(self, node: fx.Node, classes: AliasClasses) -> bool:
        """Whether the node's memory is all inside memory that was given away."""
        if node in self._nodes:
            return True
        # A view lies inside what it is a view of.
        shared = set(classes.members(node))
        sources = [a for a in node.all_input_nodes if a in shared]
        return bool(sources) and all(self.covers(a, classes) for a in sources)


def _why_kept(clone: fx.Node, source: fx.Node, classes: AliasClasses, given: _Given) -> str:
    """Return who could see the source being overwritten, "" when nobody can."""
    mine, theirs = value_of(clone), value_of(source)
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        return f"nothing is known about '{source.name}'"
    if mine.dtype != theirs.dtype or not _same_strides(mine, theirs):
        return f"'{source.name}' has gaps or another layout than its copy"
    if not same_place(mine, theirs, clone.graph):
        return f"'{source.name}' lies inside a larger memory, and the graph uses as_strided"
    if overlaps_itself(theirs):
        return f"elements of '{source.name}' overlap"
    position = classes.order[clone]
    members = classes.members(source)
    for member in members:
        if member is clone:
            continue
        if is_unknown(member):
            return f"nothing is known about the memory of '{member.name}'"
        if member.op == "get_attr":
            return f"'{source.name}' lies in the constant '{member.name}'"
        if member.op == "placeholder" and not given.covers(source, classes):
            return f"'{source.name}' lies in graph input '{member.name}', which was not donated"
        reason = _seen_by_users(member, clone, position, classes)
        if reason:
            return reason
    return ""


def _seen_by_users(member: fx.Node, clone: fx.Node, position: int, classes: AliasClasses) -> str:
    for user in member.users:
        if user is clone:
            continue
        if isinstance(user.target, HigherOrderOperator) and str(user.target) not in _CLOSED:
            return f"'{member.name}' goes into {user.target}, which may keep it"
        if classes.order[user] > position:
            if user.op == "output":
                return f"'{member.name}' is returned"
            return f"'{member.name}' is used afterwards by '{user.name}'"
    return ""


def _same_strides(a: Tensor, b: Tensor) -> bool:
    return all(
        statically_known_true(n == 1) or statically_known_true(x == y)
        for n, x, y in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def _remove(graph: fx.Graph, clone: fx.Node, source: fx.Node, classes: AliasClasses) -> None:
    classes.merge(clone, source)
    classes.forget(clone)
    clone.replace_all_uses_with(source)
    graph.erase_node(clone)
