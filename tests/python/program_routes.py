# SPDX-License-Identifier: Apache-2.0
"""The ways in which a random program is compiled, from the fastest to the whole one.

direct    Our own graph maker, our functionalisation, one trace, our passes; the graph is run node
          by node.
aot       Our own graph maker, then the backend as it is, with AOTAutograd; no code generation.
dynamo    `torch.compile` with the backend as it is; no code generation.
inductor  `torch.compile` with the backend as it is.

Without code generation a graph runs in the order of its nodes, in-place kernels included: what the
passes have made is seen directly, and cheaply.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from ops_for_compiling import IR_OPS
from program_graphs import graph_of
from program_text import BASICS, Native, Program, read_line
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import vllm_ir as ir
from vllm_ir.compile.functionalize import functionalize
from vllm_ir.compile.graph import written_args

Compiled = Callable[..., Any]
BACKEND = sys.modules["vllm_ir.compile.backend"]  # the name in the package is an object


def compile_program(program: Program, inputs: dict[str, Any]) -> Compiled:
    """Return a callable that takes the arguments; call it under `route_of(program)` too.

    Args:
        program: The program; its priorities are in force.
        inputs: What it is compiled for, as `make_inputs` makes it.
    """
    return ROUTES[program.route](program, inputs)


@contextlib.contextmanager
def route_of(program: Program) -> Iterator[None]:
    """Be where the program's way of compiling is in force."""
    stops = program.route in ("aot", "dynamo")
    with _no_code_generation(program) if stops else contextlib.nullcontext():
        yield


def config_of(program: Program) -> ir.compile.CompileConfig:
    strict = program.route == "inductor" and ("bf16" in str(program) or program.seed % 2 == 0)
    return ir.compile.CompileConfig(
        strict_numerics=strict, donate_graph_inputs=program.options.get("donate", True)
    )


# ---- whole routes --------------------------------------------------------------------------------

_numbers = itertools.count()


def _with_dynamo(program: Program, inputs: dict[str, Any]) -> Compiled:
    return _compiled(program, inputs, IR_OPS, ir.compile.Backend(config_of(program)))


def compile_without_ops(program: Program, inputs: dict[str, Any]) -> Compiled:
    """Compile with native functions in the place of ops, without our passes: what torch gives."""
    if program.route == "direct":
        traced, _, _ = _trace_directly(program, inputs, with_ops=False)
        return functools.partial(traced, *(inputs[n] for n in _lifted_constants(program, inputs)))
    if program.route == "aot":
        gm = _dynamo_graph(program, inputs, with_ops=False)
        fakes = _fakes(inputs)
        arguments = [fakes[n] for n in program.arguments]
        return _compile_without_code(program, gm, arguments, config_patches={})
    native = {name: Native(name) for name in IR_OPS}
    stops = functools.partial(_compile_without_code, program, config_patches={})
    return _compiled(program, inputs, native, "inductor" if program.route == "inductor" else stops)


def compile_without_backend(program: Program, inputs: dict[str, Any]) -> Compiled:
    """Stop behind Dynamo: the graph is run as it is, ops and all."""
    return _compiled(program, inputs, IR_OPS, "eager")


def _compiled(program: Program, inputs: dict[str, Any], ops: Any, backend: Any) -> Compiled:
    torch._dynamo.reset()
    env = {
        **BASICS,
        **ops,
        **{n: t for n, t in inputs.items() if n[0] == "g"},
        "cond": torch.cond,
        "checkpoint": checkpoint,
        "graph_break": torch._dynamo.graph_break,
    }
    path, text = f"<program {next(_numbers)}>", program.source()
    linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    exec(compile(text, path, "exec"), env)
    function = cast(Callable[..., Any], env["program"])
    return torch.compile(
        function,
        backend=backend,
        fullgraph="graph_break()" not in text,
        dynamic=len(program.rows) > 1,
    )


def _lifted_constants(program: Program, inputs: dict[str, Any]) -> list[str]:
    """Return the constants that become inputs of the graph, as AOTAutograd has it.

    Where nothing is written they stay constants, as in frozen graphs. Elsewhere they can't:
    torch.func.functionalize doesn't know what is computed from them.
    """
    writes = any(read_line(text).writes for text in program.lines)
    return [n for n in inputs if n[0] == "g" and writes]


# ---- without code generation ---------------------------------------------------------------------


def _fakes(inputs: dict[str, Any]) -> dict[str, Any]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return {n: mode.from_tensor(t) for n, t in inputs.items() if n[0] in "ag"}


def _dynamo_graph(
    program: Program, inputs: dict[str, Any], with_ops: bool = True
) -> fx.GraphModule:
    fakes = _fakes(inputs)
    constants = {n: t for n, t in inputs.items() if n[0] == "g"}
    with next(iter(fakes.values())).fake_mode:
        return graph_of(program, fakes, constants, with_ops)


def _through_aot(program: Program, inputs: dict[str, Any]) -> Compiled:
    gm = _dynamo_graph(program, inputs)
    fakes = _fakes(inputs)  # others: a write may have given those of the graph a history
    return ir.compile.Backend(config_of(program))(gm, [fakes[n] for n in program.arguments])


def _direct(program: Program, inputs: dict[str, Any]) -> Compiled:
    from torch._inductor.fx_passes.post_grad import reorder_for_locality

    traced, gm, donated = _trace_directly(program, inputs)
    traced.graph.eliminate_dead_code()
    if program.options.get("reorder"):
        reorder_for_locality(traced.graph)
    key = f"direct {program.seed}"
    ir.compile.PostGradPass(config_of(program), key=key)(traced.graph)
    traced.recompile()
    bound = functools.partial(traced, *(inputs[n] for n in _lifted_constants(program, inputs)))
    return cast(Compiled, BACKEND._with_inputs_apart(bound, gm, donated))


def _trace_directly(
    program: Program, inputs: dict[str, Any], with_ops: bool = True
) -> tuple[fx.GraphModule, fx.GraphModule, list[fx.Node]]:
    """Return the functional graph, the one it was made from, and its donated inputs.

    Lifted constants are its first inputs.
    """
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    gm = _dynamo_graph(program, inputs, with_ops)
    names = _lifted_constants(program, inputs)
    nodes = {n.name: n for n in gm.graph.nodes if n.op in ("placeholder", "get_attr")}
    fakes = [nodes[n].meta["example_value"] for n in (*names, *program.arguments)]
    found = functionalize(gm, config_of(program).donate_graph_inputs)

    def lifted(*values: Tensor) -> Any:
        constants = dict(zip(names, values, strict=False))
        return torch.func.functional_call(gm, constants, values[len(names) :])

    with fakes[0].fake_mode, torch.no_grad():
        functional = torch.func.functionalize(lifted, remove="mutations")
        traced = make_fx(functional, decomposition_table=select_decomp_table())(*fakes)
    return traced, gm, found.donated_inputs


ROUTES: dict[str, Callable[[Program, dict[str, Any]], Compiled]] = {
    "direct": _direct,
    "aot": _through_aot,
    "dynamo": _with_dynamo,
    "inductor": _with_dynamo,
}


@contextlib.contextmanager
def _no_code_generation(program: Program) -> Iterator[None]:
    """Have Inductor's entry stop behind the passes, and run the graph as it is then."""
    import torch._inductor.compile_fx as module

    kept = module.compile_fx
    module.compile_fx = functools.partial(_compile_without_code, program)  # type: ignore[assignment]
    try:
        yield
    finally:
        module.compile_fx = kept


def _compile_without_code(
    program: Program, gm: fx.GraphModule, examples: list[Any], *, config_patches: dict[str, Any]
) -> Compiled:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table

    patches = {**config_patches, "reorder_for_locality": bool(program.options.get("reorder"))}
    joint = bool(program.options.get("joint"))

    def passes(graph: fx.GraphModule, examples: list[Any], inference: bool) -> Any:
        with config.patch(patches):
            return _run_inductors_passes(graph, examples, inference, joint)

    return cast(
        Compiled,
        aot_autograd(
            fw_compiler=functools.partial(passes, inference=False),
            bw_compiler=functools.partial(passes, inference=False),
            inference_compiler=functools.partial(passes, inference=True),
            decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition,
            keep_inference_input_mutations=True,
        )(gm, examples),
    )


def _run_inductors_passes(
    gm: fx.GraphModule, examples: list[Any], inference: bool, joint: bool
) -> Any:
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor import compile_fx
    from torch._inductor.virtualized import V

    if inference and joint:
        gm = compile_fx._recursive_joint_graph_passes(gm, input_device=torch.device("cpu"))
    compile_fx.view_to_reshape(gm)
    with torch.no_grad():
        fake_mode = compile_fx.fake_tensor_prop(gm, examples)
    with V.set_fake_mode(fake_mode):
        compile_fx._recursive_post_grad_passes(gm, is_inference=inference)
    for node in gm.graph.find_nodes(op="call_function", target=operator.getitem):
        if not node.users:  # may read what an in-place operator, here, doesn't return
            gm.graph.erase_node(node)
    for node in list(gm.graph.nodes):
        if "eager_input_vals" in node.meta:
            _constrain(gm.graph, node)
    gm.recompile()
    return make_boxed_func(_with_planned_strides(gm))


def _constrain(graph: fx.Graph, node: fx.Node) -> None:
    """Give an operator its arguments with the strides that it says, as generated code would."""
    planned, _ = node.meta["eager_input_vals"]
    for position, (argument, fake) in enumerate(zip(node.args, planned, strict=True)):
        strides = _plain_strides(fake)
        if not isinstance(argument, fx.Node) or strides is None:
            continue
        with graph.inserting_before(node):
            given = graph.call_function(_restrided, (argument, strides))
        node.update_arg(position, given)
        if given in written_args(node):
            with graph.inserting_after(node):
                graph.call_function(_write_back, (argument, given))


def _write_back(argument: Tensor, given: Tensor) -> None:
    if given is not argument:
        argument.copy_(given)


def _with_planned_strides(gm: fx.GraphModule) -> Compiled:
    """Give results the strides of their fake values, as generated code would.

    Inductor's own passes may put a write into an input where a new value was, with other strides.
    """
    output = gm.graph.output_node().args[0]
    fakes = [n.meta.get("val") if isinstance(n, fx.Node) else None for n in output]  # type: ignore[union-attr]
    planned = [_plain_strides(fake) for fake in fakes]

    def run(*args: Any) -> Any:
        results = gm(*args)
        return tuple(map(_restrided, results, planned))

    return run


def _plain_strides(fake: Any) -> tuple[int, ...] | None:
    """Return the strides of a tensor, None where one is symbolic."""
    strides = fake.stride() if isinstance(fake, Tensor) else None
    return strides if strides is not None and all(isinstance(n, int) for n in strides) else None


def _restrided(result: Any, strides: tuple[Any, ...] | None) -> Any:
    if not isinstance(result, Tensor) or strides is None:
        return result
    dims = zip(result.shape, result.stride(), strides, strict=True)
    if not result.numel() or all(a == b for n, a, b in dims if n > 1):
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype).copy_(result)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out torch's warnings about things that programs do on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
