# SPDX-License-Identifier: Apache-2.0
"""Where these calls stand, put that in their place.

Inductor's matcher compares; what it leaves open is decided here, once for all patterns:

- A value in the middle that something else reads too is left alone, unless the pattern lists it
  among its outputs: then the replacement makes it.
- A keyword of a matched call that the pattern doesn't have must be at its default.
- The replacement must have a place: none of its arguments may be computed from what it replaces,
  and nothing in between may write memory.

What was refused for such a reason is a near-miss: a row of the report says why.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch._inductor import pattern_matcher as torch_patterns
from torch._inductor.pattern_matcher import CallFunction, PatternExpr
from torch._ops import OpOverload

from vllm_ir.compile.choose import no_new_guards, refused_guard
from vllm_ir.compile.collect import is_donating, kept_activations, mark_donating
from vllm_ir.compile.config import CompileConfig
from vllm_ir.compile.fusion.place import find_place
from vllm_ir.compile.fusion.rewriter import Rewriter
from vllm_ir.compile.graph import activation_args, ir_call, value_of
from vllm_ir.compile.trace import fake_values, fake_world, nodes_in
from vllm_ir.errors import IrTypeError
from vllm_ir.selection import Selection


@dataclass(frozen=True)
class Match:
    """A place where a pattern fits, for a check to look at.

    Attributes:
        values: What was captured, by name: fake tensors and numbers.
        nodes: The matched nodes, in the order of the graph.
        config: The choices of the compilation.
        selection: The priorities that ops will be lowered by.
    """

    values: Mapping[str, Any]
    nodes: tuple[fx.Node, ...]
    config: CompileConfig
    selection: Selection


Check = Callable[[Match], str]


class PatternFusion:
    """The pass that a pattern and its replacement make."""

    def __init__(
        self,
        patterns: tuple[PatternExpr, ...],
        replacement: Callable[..., Any],
        check: Check | None,
    ) -> None:
        self._patterns = patterns
        self._check = check
        self._call = lambda captured: replacement(**captured)  # one object: traces are kept by it

    def __call__(self, rewriter: Rewriter) -> None:
        """Replace every match; what it makes is not looked at again."""
        for pattern in self._patterns:
            for node in _candidates(rewriter.graph, pattern):
                if not node._erased:
                    self._try(rewriter, pattern, node)

    def _try(self, rewriter: Rewriter, pattern: PatternExpr, node: fx.Node) -> None:
        found = pattern.match(node)
        if not isinstance(found, torch_patterns.Match):
            reason = _near_miss(found, node)
            if reason:
                rewriter.near_miss(node, reason)
            return
        matched = sorted(set(found.nodes))
        outputs = [n for n in found.output_nodes() if n is not None]
        reason = _keywords(found) or _readers(matched, outputs) or self._ask(found, rewriter)
        inputs = nodes_in((found.kwargs,))
        place = find_place(matched, inputs)
        if reason or isinstance(place, str):
            rewriter.near_miss(node, reason or str(place))
            return
        guards = _guards(inputs)
        results, made = rewriter.insert(self._call, (found.kwargs,), place.before, like=node)
        for delayed in place.delayed:
            place.before.prepend(delayed)
        _pass_donations_on(matched, made)
        rewriter.matched(node, _account(matched, made, len(_guards(inputs)) > len(guards)))
        _hand_over(rewriter, outputs, results, inputs)
        rewriter.erase(matched)

    def _ask(self, found: torch_patterns.Match, rewriter: Rewriter) -> str:
        if self._check is None:
            return ""
        values = fake_values(found.kwargs)
        nodes = tuple(sorted(set(found.nodes)))
        match = Match(values, nodes, rewriter.config, rewriter.selection)
        try:
            with no_new_guards(values), fake_world(values):
                verdict = self._check(match)
        except Exception as error:
            guard = refused_guard(error)
            if not guard:
                raise
            return f"its check branches on a symbolic size: {guard}"
        if not isinstance(verdict, str):
            raise IrTypeError(
                "the check must return a str, '' to go on or else the reason, "
                f"got {type(verdict).__name__}"
            )
        return verdict


def _candidates(graph: fx.Graph, pattern: Any) -> list[fx.Node]:
    functions = set(pattern.fns)
    return [
        n
        for n in graph.nodes
        if n.op == pattern.op and torch_patterns.extract_target(n) in functions
    ]


def _near_miss(failed: torch_patterns.FailedMatch, node: fx.Node) -> str:
    """Return why a match failed when little was missing, "" when the calls weren't there."""
    kind, args = failed.format_string, failed.args
    if kind.startswith("constant_args") and (ir_call(node) or ir_call(args[0])):
        return f"'{args[0]}' has {args[1]} where the pattern has {failed.kwargs['pattern']}"
    if kind.startswith("multiple_users") and ir_call(node):
        return f"a value in the middle, {args[0]}, has more users than the pattern allows"
    if kind.startswith("kwarg mismatch") and ir_call(node):
        return f"the pattern has '{args[0]}' twice, and the two differ"
    return ""


def _keywords(found: torch_patterns.Match) -> str:
    """Why a keyword of a matched call stands in the way: the matcher doesn't look at others."""
    for pattern, node in found.ctx.pattern_to_node.items():
        if not isinstance(pattern, CallFunction) or not isinstance(node, fx.Node):
            continue
        for name in node.kwargs.keys() - pattern.kwargs.keys():
            if node.kwargs[name] != _default_of(node, name):
                return f"'{node.name}' has {name}={node.kwargs[name]}, which isn't in the pattern"
    return ""


def _default_of(node: fx.Node, name: str) -> Any:
    if isinstance(node.target, OpOverload):
        for argument in node.target._schema.arguments:
            if argument.name == name and argument.has_default_value():
                return argument.default_value
    return inspect.Parameter.empty


def _readers(matched: list[fx.Node], outputs: list[fx.Node]) -> str:
    """Why a value in the middle must stay: something reads it that isn't replaced."""
    for node in matched:
        if node in outputs:
            continue
        for user in node.users:
            if user not in matched and not _is_unused_result(user):
                reader = "the caller" if user.op == "output" else f"'{user.name}'"
                return f"'{node.name}' is read by {reader} too"
    return ""


def _is_unused_result(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and not node.users


def _guards(inputs: list[fx.Node]) -> list[Any]:
    for node in inputs:
        env = getattr(getattr(value_of(node), "fake_mode", None), "shape_env", None)
        if env is not None:
            return list(env.guards)
    return []


def _pass_donations_on(matched: list[fx.Node], made: list[fx.Node]) -> None:
    """Let a new call donate what the replaced ones donated, if those are all its activations."""
    donated: set[fx.Node] = set()
    for node in matched:
        called = ir_call(node)
        if called is not None and is_donating(node):
            kept = kept_activations(node)
            donated |= {
                arg for name, _, arg in activation_args(node, called[0]) if name not in kept
            }
    for node in made:
        called = ir_call(node)
        if called is not None:
            mine = {arg for _, _, arg in activation_args(node, called[0])}
            if mine and mine <= donated:
                mark_donating(node)


def _account(matched: list[fx.Node], made: list[fx.Node], guarded: bool) -> str:
    calls = [n for n in made if ir_call(n) is not None] or made
    old, new = (" and ".join(f"'{n.name}'" for n in nodes) for nodes in (matched, calls))
    note = "; the replacement branches on a symbolic size: a guard" if guarded else ""
    return f"{old} became {new or 'one of the arguments'}{note}"


def _hand_over(
    rewriter: Rewriter, outputs: list[fx.Node], results: Any, inputs: list[fx.Node]
) -> None:
    new = list(results) if isinstance(results, (tuple, list)) else [results]
    old: list[tuple[fx.Node, ...]] = [(n,) for n in outputs]
    if len(outputs) == 1 and not isinstance(value_of(outputs[0]), Tensor):
        whole = outputs[0]  # a call with several results is replaced getitem by getitem
        old = [() for _ in value_of(whole)]
        for user in whole.users:
            index = user.args[1]
            assert isinstance(index, int)
            old[index] = (*old[index], user)
    if len(new) != len(old):
        raise IrTypeError(
            f"{rewriter.where}: the replacement must return {len(old)} tensors, one for each "
            f"output of the pattern, got {len(new)}. Mend the replacement."
        )
    for i, (olds, result) in enumerate(zip(old, new, strict=True)):
        for replaced in olds:
            rewriter.replace(replaced, result, inputs, f"result {i} of the replacement")
    for olds in old:
        rewriter.erase(olds)
