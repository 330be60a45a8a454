# SPDX-License-Identifier: Apache-2.0
"""An op is one thing in a process: copies, pickles and reloads give it back, by name."""

import copy
import importlib
import multiprocessing
import pickle
import textwrap

import pytest
import torch
from processes import output_of
from toys import new_name, new_pair, new_toy, raises_exactly, toy_native

import vllm_ir as ir
from vllm_ir.errors import DuplicateError, UnknownNameError

WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {p}": lambda o, p=p: pickle.loads(pickle.dumps(o, p))
        for p in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_d27_handles_come_back_as_themselves(way):
    op, pair = new_toy("a"), new_pair("fast")
    handles = [op, op.impls["a"], op.impls["native"], pair, pair.maybe_inplace, pair.impls["fast"]]
    handles += [ir.ops.rms_norm, ir.ops.fused_add_rms_norm.maybe_inplace]
    for handle in handles:
        assert WAYS[way](handle) is handle


def test_d27_inside_of_modules_and_containers():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.op = ir.ops.fused_add_rms_norm
            self.call = self.op.maybe_inplace
            self.weight = torch.nn.Parameter(torch.ones(3))

    layer = Layer()
    twin = copy.deepcopy(layer)
    assert twin.op is layer.op
    assert twin.call is layer.call
    assert twin.weight is not layer.weight
    assert pickle.loads(pickle.dumps({"ops": [layer.op, layer.op]}))["ops"] == [layer.op] * 2


def test_d27_a_config_round_trips():
    config = ir.IrOpPriorityConfig(rms_norm=["vllm_c", "native"], fused_add_rms_norm=["native"])
    for way in WAYS.values():
        assert way(config) == config


def test_a_pickle_is_small_and_holds_no_code():
    assert len(pickle.dumps(ir.ops.rms_norm)) < 200


def test_unpickling_imports_the_module_that_declares_the_op(tmp_path, monkeypatch):
    name = new_name("late")
    (tmp_path / f"{name}_module.py").write_text(textwrap.dedent(MODULE.format(name=name)))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(f"{name}_module")
    op = ir.IrOp.registry[name]
    gone = ir.register_op(toy_native, name=new_name("gone"))  # its module, toys, won't declare it
    script = f"""
        import pickle, sys
        op, impl = pickle.loads({pickle.dumps((op, op.impls["native"]))!r})
        import vllm_ir as ir
        print(op is ir.ops.{name}, impl is op.impls["native"], "{name}_module" in sys.modules)
        sys.modules["toys"] = sys
        try:
            pickle.loads({pickle.dumps(gone)!r})
        except ir.UnknownNameError as error:
            print(error)
    """
    lines = output_of(script, {"PYTHONPATH": str(tmp_path)}).splitlines()
    assert lines[0] == "True True True"
    known = ", ".join(sorted([name, *ir.ops.__all__]))
    assert lines[1].startswith(f"vllm_ir: unknown op '{gone.name}'. Known: {known}.")


def child(connection, op, impl, overload):
    connection.send((op is ir.ops.rms_norm, impl.provider, overload.op.name, impl.op is op))


def test_handles_travel_to_a_spawned_process():
    """The child imports this module anew, and finds its own ops by name."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    op = ir.ops.rms_norm
    arguments = (theirs, op, op.impls["vllm_c"], ir.ops.fused_add_rms_norm.maybe_inplace)
    process = context.Process(target=child, args=arguments)
    process.start()
    try:
        assert ours.poll(60)
        assert ours.recv() == (True, "vllm_c", "fused_add_rms_norm", True)
    finally:
        process.join(30)
    assert process.exitcode == 0


# ---- loading twice (D25) -------------------------------------------------------------------------

MODULE = """
    import torch, vllm_ir as ir
    @ir.register_op(name="{name}")
    def native(x: torch.Tensor) -> torch.Tensor:
        return x + 1
"""


def test_d25_reloading_a_module_that_declares_an_op_names_both_places(tmp_path, monkeypatch):
    name = new_name("reloaded")
    path = tmp_path / f"{name}_module.py"
    path.write_text(textwrap.dedent(MODULE.format(name=name)))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(f"{name}_module")
    where = f"{path}:3"
    with raises_exactly(
        DuplicateError,
        f"vllm_ir.{name}: the op is already registered at {where}; the second registration is at "
        f"{where}. Import the module once, or choose another name.",
    ):
        importlib.reload(module)
    op = ir.IrOp.registry[name]
    op.set_default(["native"])
    assert op(torch.zeros(1)).item() == 1


def test_d25_importing_by_two_paths_names_both_places(tmp_path, monkeypatch):
    name = new_name("twice")
    text = textwrap.dedent(MODULE.format(name=name))
    for folder in ("one", "two"):
        (tmp_path / f"{name}_{folder}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(f"{name}_one")
    with pytest.raises(DuplicateError) as error:
        importlib.import_module(f"{name}_two")
    assert f"{tmp_path / f'{name}_one.py'}:3" in str(error.value)
    assert f"{tmp_path / f'{name}_two.py'}:3" in str(error.value)


def test_d25_loading_the_package_or_its_library_twice_never_aborts(tmp_path):
    script = f"""
        import importlib, importlib.util, shutil, torch, vllm_ir as ir
        from vllm_ir import _C
        for name in ("vllm_ir", "vllm_ir.ops", "vllm_ir.ops.layernorm", "vllm_ir.providers.vllm_c"):
            try:
                importlib.reload(importlib.import_module(name))
                print("fine")
            except ir.DuplicateError:
                print("duplicate")
        copied = shutil.copy(_C.__file__, {str(tmp_path)!r})
        spec = importlib.util.spec_from_file_location("another._C", copied)
        try:
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        except Exception as error:
            print(str(error).splitlines()[0])
        x = torch.ones(2, 8)
        assert ir.ops.rms_norm.dispatch(x, None, 1e-6).provider == "vllm_c"
        print(ir.ops.rms_norm(x, None, 0.0).equal(x))
    """
    assert output_of(script).splitlines() == [
        *("fine", "fine", "duplicate", "duplicate"),
        "vllm_ir: the torch operator library 'vllm_ir_C' is already registered in this process. "
        "Another copy of vllm_ir is loaded: import only one.",
        "True",
    ]


def test_an_unknown_name_error_pickles_with_its_text():
    with pytest.raises(UnknownNameError) as raised:
        ir.IrOp.registry["no_such_op"]
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again)) == (UnknownNameError, str(raised.value))
