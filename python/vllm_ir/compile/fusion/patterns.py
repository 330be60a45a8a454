# SPDX-License-Identifier: Apache-2.0
"""How a pattern and its replacement become a pass: the words for it, and the checks on them.

Patterns are Inductor's (`torch._inductor.pattern_matcher`); `call` writes one for an op.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch._inductor.pattern_matcher import (
    MULTIPLE,
    Arg,
    CallFunction,
    KeywordArg,
    ListOf,
    MultiOutputPattern,
    PatternExpr,
)

from vllm_ir.compile.fusion import registry
from vllm_ir.compile.fusion.matching import Check, Match, PatternFusion
from vllm_ir.compile.graph import overload
from vllm_ir.errors import IrTypeError, IrValueError
from vllm_ir.facts import caller
from vllm_ir.op import IrOp

__all__ = ["CallFunction", "KeywordArg", "Match", "MultiOutputPattern", "call", "register_fusion"]

F = TypeVar("F", bound=Callable[..., Any])


def call(target: Any, /, *args: Any, **kwargs: Any) -> CallFunction:
    """Return the pattern of a call.

    Args:
        target: An op, or any function that stands in graphs, `torch.ops.aten.mul.Tensor` say.
        *args: Patterns and constants. `KeywordArg("name")` takes whatever stands there, tensor or
            number, and hands it to the replacement. Of an op, any way to write the call will do:
            parameters that are left out must be at their defaults.
        **kwargs: The same, by name.

    Raises:
        IrTypeError: An op's argument is missing, unknown or given twice.

    Example:
        >>> import vllm_ir as ir
        >>> from vllm_ir.compile.fusion import KeywordArg, call
        >>> call(ir.ops.rms_norm, KeywordArg("x"), weight=None, epsilon=KeywordArg("epsilon"))
        CallFunction(vllm_ir.rms_norm.default, KeywordArg('x'), None, KeywordArg('epsilon'), None, \
_users=MULTIPLE)
    """
    if isinstance(target, IrOp):
        args, kwargs = target.bind(*args, **kwargs), {}
        target = overload(target, "default")
    # Who else may read the value is decided by `matching`, with a reason.
    return CallFunction(target, *args, _users=MULTIPLE, **kwargs)


def register_fusion(
    name: str,
    *patterns: PatternExpr,
    check: Check | None = None,
    before: str | tuple[str, ...] = (),
    after: str | tuple[str, ...] = (),
    default: bool = True,
) -> Callable[[F], F]:
    """Return a decorator that registers a function as the replacement of a pattern.

    The function takes what the pattern captures, by name, and returns what the pattern's outputs
    are replaced by: a tensor, or as many as a `MultiOutputPattern` has. It calls ops and torch
    functions; like an implementation it is traced on fake tensors, so it must not look at values,
    and it may read scalars, which are captured as they stand in the graph. Dtypes, shapes and
    devices must be those of what is replaced; strides are brought in line.

    Register before compiling: code that exists stays as it is.

    Args:
        name: For `CompileConfig.fusions`; matches `^[a-z_][a-z0-9_]*$`.
        *patterns: One or several, tried in this order. Each captures the parameters of the
            function; those with a default may be missing.
        check: Looks at a match and returns "" to go on, else the reason to leave it alone. It must
            not branch on a symbolic size.
        before: Names of passes that must run later.
        after: Names of passes that must have run.
        default: Whether it runs when `CompileConfig.fusions` is None.

    Raises:
        DuplicateError: The name is taken.
        IrTypeError: No pattern, or something that isn't one.
        IrValueError: A bad name, an order that can't be, or parameters that aren't what the
            pattern captures.
        UnknownNameError: `before` or `after` names no pass.

    Example:
        >>> import torch, vllm_ir as ir
        >>> from torch import Tensor
        >>> from vllm_ir.compile.fusion import KeywordArg, call, register_fusion
        >>> @ir.register_op
        ... def rms_norm_relu(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
        ...     return torch.relu(ir.ops.rms_norm(x, weight, epsilon))
        >>> captured = [KeywordArg(name) for name in ("x", "weight", "epsilon")]
        >>> norm = call(ir.ops.rms_norm, *captured)
        >>> @register_fusion("rms_norm_relu", call(torch.ops.aten.relu.default, norm))
        ... def fused(x, weight, epsilon):
        ...     return rms_norm_relu(x, weight, epsilon)
    """
    source = caller()

    def decorate(replacement: F) -> F:
        where = f"{registry.WHERE}.{name}"
        _check_patterns(where, patterns)
        _check_parameters(where, patterns, replacement)
        functions = (replacement,) if check is None else (replacement, check)
        run = PatternFusion(patterns, replacement, check)
        text = "\n".join(map(repr, patterns))
        made = registry.FusionPass(name, run, default, source, functions, text)
        registry.add(made, before, after)
        return replacement

    return decorate


def _check_patterns(where: str, patterns: tuple[PatternExpr, ...]) -> None:
    if not patterns:
        raise IrTypeError(f"{where}: a pattern is needed, got none. Write one with call(op, ...).")
    for pattern in patterns:
        if not isinstance(pattern, (CallFunction, MultiOutputPattern)):
            raise IrTypeError(
                f"{where}: a pattern must be made by call(...) or MultiOutputPattern([...]), "
                f"got {type(pattern).__name__}."
            )


def _check_parameters(
    where: str, patterns: tuple[PatternExpr, ...], replacement: Callable[..., Any]
) -> None:
    if not callable(replacement):
        raise IrTypeError(
            f"{where}: the replacement must be a function, got {type(replacement).__name__}."
        )
    parameters = inspect.signature(replacement).parameters
    needed = {name for name, p in parameters.items() if p.default is p.empty}
    for pattern in patterns:
        captured = set(_captures(where, pattern))
        if not needed <= captured <= set(parameters):
            raise IrValueError(
                f"{where}: the parameters of the replacement must be what the pattern captures, "
                f"({', '.join(sorted(captured))}), got ({', '.join(parameters)}). A parameter that "
                "one of several patterns doesn't capture needs a default."
            )


def _captures(where: str, pattern: Any) -> Iterator[str]:
    if isinstance(pattern, KeywordArg):
        yield pattern.name
    elif isinstance(pattern, (Arg, ListOf)):
        raise IrTypeError(
            f"{where}: captures go to the replacement by name, got {pattern!r}. "
            "Write KeywordArg('name')."
        )
    elif isinstance(pattern, MultiOutputPattern):
        for output in pattern.outputs:
            yield from _captures(where, output)
    elif isinstance(pattern, CallFunction):
        for part in pattern.flat_args_kwargs[0]:
            yield from _captures(where, part)
