# SPDX-License-Identifier: Apache-2.0
"""The provider `triton` where its kernels can't run: it says so, and nothing else changes."""

import importlib.util

import pytest
from processes import output_of, run_python

import vllm_ir as ir
from vllm_ir.providers import triton as provider

OPS = (ir.ops.rms_norm, ir.ops.fused_add_rms_norm, ir.ops.silu_and_mul, ir.ops.gelu_and_mul)
NO_GPU = "Triton needs a GPU that torch can use"
# In front of a script: a process in which nobody finds Triton.
ABSENT = """
    import importlib.util, sys
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find(name, *rest)
    sys.modules["triton"] = None
    import torch
    import vllm_ir as ir
"""
# The same for a machine with a GPU, as far as torch tells before anything touches it.
PRESENT = """
    import importlib.machinery, importlib.util
    find = importlib.util.find_spec
    found = importlib.machinery.ModuleSpec("triton", None)
    importlib.util.find_spec = lambda name, *rest: found if name == "triton" else find(name, *rest)
    import torch
    torch.version.cuda, torch.cuda.device_count = "13.0", lambda: 1
    import vllm_ir as ir
"""


def test_it_is_registered_for_each_op():
    for op in OPS:
        impl = op.impls["triton"]
        assert (impl.inplace, impl.batch_invariant, impl.entry) == (False, True, "")
        assert 'device("x") in {cuda}' in str(impl.rule)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_no_platform_prefers_it(op):
    for platform in (ir.platforms.CudaPlatform(), ir.platforms.CpuPlatform()):
        for compiling in (False, True):
            assert "triton" not in platform.get_default_ir_op_priority(compiling)[op.name]


def test_the_reason_when_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert provider.why_unsupported() == "triton is not installed"


def test_a_process_with_another_module_of_that_name():
    script = """
        import sys, types
        import torch
        sys.modules["triton"] = types.ModuleType("triton")
        import vllm_ir as ir
        for op in ir.IrOp.registry.values():
            assert not op.impls["triton"].supported
            print(op.impls["triton"].unsupported_reason)
        try:
            torch.ops.vllm_ir_triton.rms_norm
        except AttributeError as error:
            print(error)
    """
    *reasons, lookup = output_of(script).splitlines()
    assert set(reasons) == {"triton is not usable: triton.__spec__ is None"}
    assert lookup.startswith("vllm_ir.triton: torch.ops.vllm_ir_triton.rms_norm needs Triton, got ")


def test_an_operator_where_there_is_no_gpu():
    pytest.importorskip("triton", reason="triton is not installed")
    script = """
        import torch
        import vllm_ir as ir
        x = torch.ones(2, 8)
        for name, *args in (
            ("rms_norm", x, None, 1e-6, None),
            ("fused_add_rms_norm", x, x, None, 1e-6, None),
            ("act_and_mul", x, "silu"),
        ):
            try:
                getattr(torch.ops.vllm_ir_triton, name)(*args)
            except ir.IrValueError as error:
                print(error)
    """
    told = output_of(script).splitlines()
    text = (
        "x must be on a device that triton has a kernel for (cuda), got cpu. "
        "Use the native provider, or lower to another one."
    )
    names = ("rms_norm", "fused_add_rms_norm", "silu_and_mul")
    assert told == [f"vllm_ir.{name}: {text}" for name in names]


@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_process_without_triton(switch):
    script = (
        ABSENT
        + """
    for op in ir.IrOp.registry.values():
        impl = op.impls["triton"]
        assert not impl.supported and impl.unsupported_reason == "triton is not installed"
        assert impl.uuid()
    x = torch.ones(2, 8)
    with ir.ops.rms_norm.set_priority(["triton", "vllm_c"]):
        print(ir.ops.rms_norm.explain(x, None, 1e-6))
        ir.ops.rms_norm(x, None, 1e-6)
    try:
        torch.ops.vllm_ir_triton.rms_norm
    except AttributeError as error:
        print(error)
    """
    )
    first, *decisions, lookup = output_of(script, {"TRITON_INTERPRET": switch}).splitlines()
    assert first.startswith("vllm_ir.rms_norm: vllm_c runs")
    assert "  triton  unsupported: triton is not installed" in decisions
    assert lookup.startswith("vllm_ir.triton: torch.ops.vllm_ir_triton.rms_norm needs Triton, got ")
    assert lookup.endswith("Install triton, or lower to another provider.")


def test_a_process_without_a_gpu():
    script = PRESENT.replace('"13.0", lambda: 1', "None, lambda: 0")
    script += '    print(ir.ops.rms_norm.impls["triton"].unsupported_reason)'
    assert output_of(script).strip() == NO_GPU


def test_a_process_with_a_gpu():
    """Supported, without an import of Triton; and last in nobody's list."""
    script = (
        PRESENT
        + """
    import sys
    for op in ir.IrOp.registry.values():
        assert op.impls["triton"].supported and not op.impls["triton"].unsupported_reason
        print(op.get_priority(), op.get_priority(True))
    assert ir.current_platform().name == "cuda"
    assert not any(name.startswith(("triton", "torch._inductor")) for name in sys.modules)
    with ir.ops.rms_norm.set_priority(["triton"]):
        print(ir.ops.rms_norm.explain(torch.ones(2, 8), None, 1e-6))
    """
    )
    *lists, first, decision, _, _ = output_of(script).splitlines()
    assert set(lists) == {"['vllm_c', 'native'] ['native']"}
    assert first.startswith("vllm_ir.rms_norm: native runs")
    assert "rejected: x is on cpu" in decision


def test_the_command_line_gives_the_reason():
    code = f"{ABSENT.replace('import torch', '')}\n    from vllm_ir.__main__ import main\n"
    listed = output_of(code + "    main(['list', 'rms_norm'])")
    assert "no: triton is not installed" in listed
    done = run_python("-m", "vllm_ir", "list", "rms_norm")
    reason = ir.ops.rms_norm.impls["triton"].unsupported_reason
    assert f"no: {reason}" in done.stdout or not reason
