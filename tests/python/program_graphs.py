# SPDX-License-Identifier: Apache-2.0
"""Turns the text of a program into a graph as Dynamo would make it, without Dynamo's cost.

Functions become `call_function`, methods `call_method`, and each node has an `example_value`, a
fake tensor that shares memory with those that its value shares memory with. Bodies of higher-order
operators and breaks are left to Dynamo itself.
"""

from __future__ import annotations

import ast
import operator
from typing import Any

import torch
from ops_for_compiling import IR_OPS
from program_text import BASICS, Program
from torch import fx

BINARY: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.MatMult: operator.matmul,
}
IN_PLACE: dict[type, Any] = {
    ast.Add: operator.iadd,
    ast.Sub: operator.isub,
    ast.Mult: operator.imul,
}
COMPARE: dict[type, Any] = {ast.Gt: operator.gt, ast.Lt: operator.lt}


def graph_of(
    program: Program, fakes: dict[str, Any], constants: dict[str, Any], with_ops: bool = True
) -> fx.GraphModule:
    """Return the program as a graph over its arguments.

    Args:
        program: One without local functions and breaks.
        fakes: A fake tensor for each argument and constant.
        constants: The real tensors that become attributes of the module.
        with_ops: False calls the native functions in place of ops.
    """
    builder = _Builder(program, fakes, constants)
    builder.with_ops = with_ops
    for number, line in enumerate(program.lines, 2):
        builder.statement(line, number)
    returned = tuple(builder.names[name] for name in program.returns)
    builder.graph.output(returned)
    return fx.GraphModule(builder.root, builder.graph)


class _Builder:
    def __init__(self, program: Program, fakes: dict[str, Any], constants: dict[str, Any]) -> None:
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.with_ops = True
        self.positional = program.options.get("positional", True)
        self.names: dict[str, Any] = dict(BASICS)
        self.trace = ""
        for name in program.arguments:
            self.names[name] = self._named(self.graph.placeholder(name), fakes[name])
        for name, value in constants.items():
            self.root.register_buffer(name, value)
            self.names[name] = self._named(self.graph.get_attr(name), fakes[name])

    def _named(self, node: fx.Node, value: Any) -> fx.Node:
        node.meta["example_value"] = value
        return node

    def statement(self, text: str, number: int) -> None:
        self.trace = f'  File "<program>", line {number}, in program\n    {text}\n'
        for tree in ast.parse(text).body:
            self._statement(tree)

    def _statement(self, tree: ast.stmt) -> None:
        if isinstance(tree, ast.Expr):
            self.expression(tree.value)
        elif isinstance(tree, ast.AugAssign):
            self._augmented(tree)
        elif isinstance(tree, ast.Assign):
            self._assign(tree.targets[0], self.expression(tree.value))
        else:
            raise NotImplementedError(ast.unparse(tree))

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Subscript):
            where = self.expression(target.value)
            self._call(operator.setitem, where, self.expression(target.slice), value)
        elif isinstance(target, ast.Tuple):
            for i, part in enumerate(target.elts):
                self._assign(part, self._call(operator.getitem, value, i))

    def _augmented(self, tree: ast.AugAssign) -> None:
        write = IN_PLACE[type(tree.op)]
        if isinstance(tree.target, ast.Name):
            name = tree.target.id
            self.names[name] = self._call(write, self.names[name], self.expression(tree.value))
            return
        assert isinstance(tree.target, ast.Subscript)
        where = self.expression(tree.target.value)
        index = self.expression(tree.target.slice)
        part = self._call(operator.getitem, where, index)
        written = self._call(write, part, self.expression(tree.value))
        self._call(operator.setitem, where, index, written)

    # ---- expressions ----

    def expression(self, tree: ast.expr | None) -> Any:
        """Return the node, or the plain value, that an expression stands for."""
        if tree is None:
            return None
        return getattr(self, f"_on_{type(tree).__name__.lower()}")(tree)

    def _on_constant(self, tree: ast.Constant) -> Any:
        return tree.value

    def _on_name(self, tree: ast.Name) -> Any:
        return self.names[tree.id]

    def _on_tuple(self, tree: ast.Tuple) -> Any:
        return tuple(self.expression(e) for e in tree.elts)

    def _on_list(self, tree: ast.List) -> Any:
        return [self.expression(e) for e in tree.elts]

    def _on_slice(self, tree: ast.Slice) -> Any:
        return slice(*(self.expression(e) for e in (tree.lower, tree.upper, tree.step)))

    def _on_unaryop(self, tree: ast.UnaryOp) -> Any:
        value = self.expression(tree.operand)
        return self._call(operator.neg, value) if isinstance(value, fx.Node) else -value

    def _on_binop(self, tree: ast.BinOp) -> Any:
        function = BINARY[type(tree.op)]
        return self._call(function, self.expression(tree.left), self.expression(tree.right))

    def _on_compare(self, tree: ast.Compare) -> Any:
        function = COMPARE[type(tree.ops[0])]
        values = self.expression(tree.left), self.expression(tree.comparators[0])
        return self._call(function, *values)

    def _on_subscript(self, tree: ast.Subscript) -> Any:
        return self._call(
            operator.getitem, self.expression(tree.value), self.expression(tree.slice)
        )

    def _on_attribute(self, tree: ast.Attribute) -> Any:
        owner = self.expression(tree.value)
        if not isinstance(owner, fx.Node):
            return getattr(owner, tree.attr)
        value = getattr(owner.meta["example_value"], tree.attr)
        if isinstance(value, torch.Tensor):  # .mT
            return self._call(getattr, owner, tree.attr)
        return tuple(value) if isinstance(value, torch.Size) else value

    def _call_op(self, name: str, overload: str, tree: ast.Call) -> fx.Node:
        op = IR_OPS[name]
        args = tuple(self.expression(a) for a in tree.args)
        kwargs = {str(k.arg): self.expression(k.value) for k in tree.keywords}
        if not self.with_ops:
            return self._call(op.impls["native"].impl_fn, *args, **kwargs)
        if self.positional:  # as Dynamo has it
            args, kwargs = op.bind(*args, **kwargs), {}
        return self._call(getattr(getattr(torch.ops.vllm_ir, op.name), overload), *args, **kwargs)

    def _on_call(self, tree: ast.Call) -> Any:
        function = tree.func
        if isinstance(function, ast.Name) and function.id in IR_OPS:
            return self._call_op(function.id, "default", tree)
        assert isinstance(function, ast.Attribute)
        owner = function.value
        if isinstance(owner, ast.Name) and owner.id in IR_OPS:
            return self._call_op(owner.id, function.attr, tree)
        args = [self.expression(a) for a in tree.args]
        kwargs = {str(k.arg): self.expression(k.value) for k in tree.keywords}
        on = self.expression(owner)
        if isinstance(on, fx.Node):
            return self._call_method(function.attr, on, *args, **kwargs)
        return self._call(getattr(on, function.attr), *args, **kwargs)

    # ---- nodes ----

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(function, args, kwargs)
        return self._evaluated(node, function, args, kwargs)

    def _call_method(self, name: str, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_method(name, args, kwargs)
        return self._evaluated(node, lambda on, *a, **k: getattr(on, name)(*a, **k), args, kwargs)

    def _evaluated(self, node: fx.Node, function: Any, args: Any, kwargs: Any) -> fx.Node:
        values, named = fx.map_arg((args, kwargs), lambda n: n.meta["example_value"])
        node.meta["example_value"] = function(*values, **named)
        node.meta["stack_trace"] = self.trace
        return node
