# SPDX-License-Identifier: Apache-2.0
"""What Inductor gets of the Triton operators: the launches of their kernels, and no copies.

The graphs are of fake tensors on a GPU that isn't there, in a process that takes it to be.
"""

import json

import pytest
from processes import output_of

pytest.importorskip("triton", reason="triton is not installed")

SCRIPT = """
    import contextlib, json
    import torch
    torch.version.cuda, torch.cuda.device_count = "13.0", lambda: 1
    import triton
    import vllm_ir as ir
    from torch._dynamo.source import ConstantSource
    from torch._inductor.fx_passes.post_grad import decompose_triton_kernel_wrapper_functional
    from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops
    from torch._inductor.fx_utils import FakeTensorUpdater
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
    from vllm_ir.compile.config import CompileConfig
    from vllm_ir.compile.pipeline import run_passes
    from vllm_ir.selection import Selection

    class Driver:  # torch asks it what to compile for, to see which arguments a kernel writes
        def get_current_target(self):
            return triton.backends.compiler.GPUTarget("cuda", 90, 32)

    triton.runtime.driver.set_active(Driver())
    mode = FakeTensorMode(shape_env=ShapeEnv())
    rows = 5
    if SYMBOLIC:
        source = ConstantSource("rows")
        symbol = mode.shape_env.create_symbol(5, source, dynamic_dim=DimDynamic.DYNAMIC)
        rows = mode.shape_env.create_symintnode(symbol, hint=5, source=source)
    for op in ir.IrOp.registry.values():
        op.set_default(["triton"])

    def layers(x, residual, weight):
        for _ in range(2):
            x, residual = ir.ops.fused_add_rms_norm(x, residual, weight, 1e-6)
        return ir.ops.rms_norm(x, None, 1e-6), residual

    with torch.no_grad(), mode:
        new = lambda *shape: torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        traced = make_fx(layers)(new(rows, 4096), new(rows, 4096), new(4096))
    with torch.no_grad(), STATE:
        report = run_passes(traced.graph, CompileConfig(fusions=()), Selection.in_force(),
                            for_code=True)
    written = [n.kwargs["tensors_to_clone"] for n in traced.graph.nodes
               if "triton_kernel_wrapper_functional" in str(n.target)]
    places = [n.meta["val"].untyped_storage()._cdata for n in traced.graph.nodes
              if str(n.target) == "<built-in function getitem>"]
    with V.set_fake_mode(mode):  # what Inductor does with them behind our passes
        reinplace_inplaceable_ops(FakeTensorUpdater(traced), traced.graph)
        decompose_triton_kernel_wrapper_functional(traced.graph)
    print(json.dumps({
        "selected": [node.selected for node in report.nodes],
        "notes": [node.notes for node in report.nodes],
        "guards": len(mode.shape_env.guards),
        "written": written,
        "results": [len(places), len(set(places))],
        "calls": [str(n.target) for n in traced.graph.nodes if n.op == "call_function"],
    }))
"""
LAUNCH = "triton_kernel_wrapper_mutation"


def lowered(symbolic=False, state="contextlib.nullcontext()"):
    script = SCRIPT.replace("SYMBOLIC", str(symbolic)).replace("STATE", state)
    return json.loads(output_of(script).splitlines()[-1])


@pytest.mark.parametrize("symbolic", [False, True])
def test_inductor_gets_launches_and_no_copies(symbolic):
    told = lowered(symbolic)
    assert told["selected"] == ["triton"] * 3
    assert told["written"] == [["out", "total"], ["out", "total"], ["out"]]
    assert told["results"] == [5, 5]  # each of them in memory of its own, also of equal calls
    calls = [call for call in told["calls"] if call != "aten.sym_size.int"]
    assert calls == [
        *["aten.empty.memory_format", "aten.empty.memory_format", LAUNCH] * 2,
        *["aten.empty.memory_format", LAUNCH],
    ]
    assert (told["notes"], told["guards"]) == ([[], [], []], 0)


def test_launches_stay_where_batch_invariance_is_asked_for():
    """They aren't generated code: their blocks depend on the width alone."""
    told = lowered(state="contextlib.nullcontext(ir.set_batch_invariant(True))")
    assert told["selected"] == ["triton"] * 3
    assert told["calls"].count(LAUNCH) == 3
    assert told["notes"] == [[], [], []]
