# SPDX-License-Identifier: Apache-2.0
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest

import vllm_ir as ir
from vllm_ir import entry_points, log, platforms, plugins
from vllm_ir.entry_points import PLATFORMS, PROVIDERS
from vllm_ir.errors import IrImportError


class Preferring(ir.Platform):
    name = "preferring"

    def get_default_ir_op_priority(self, compiling=False):
        return ir.IrOpPriorityConfig(rms_norm="native")


class Second(Preferring):
    name = "second"


class Absent(Preferring):
    name = "absent"

    def is_available(self):
        return False


class Broken(Preferring):
    name = "broken"

    def import_ir_kernels(self):
        raise ImportError("libspecial.so: cannot open shared object file")


@pytest.fixture(autouse=True)
def restore():
    yield
    ir.set_strict(False)
    log.forget_once()
    platforms.apply_platform_defaults()


@pytest.fixture
def start(monkeypatch):
    """Start as `import vllm_ir` does, with the given plugins installed; return their outcomes."""
    monkeypatch.delenv("VLLM_IR_PLUGINS", raising=False)
    module = ModuleType("test_plugins_module")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def run(providers=None, platforms_=None):
        points = []
        for group, objects in ((PROVIDERS, providers or {}), (PLATFORMS, platforms_ or {})):
            for name, value in objects.items():
                setattr(module, name, value)
                points.append(EntryPoint(name, f"{module.__name__}:{name}", group))
        monkeypatch.setattr(entry_points, "_all_installed", lambda: EntryPoints(points))
        monkeypatch.setattr(entry_points, "_records", {})
        monkeypatch.setattr(platforms, "_detected", None)
        monkeypatch.setattr(platforms, "_plugins", [])
        monkeypatch.setattr(plugins, "_state", "new")
        log.forget_once()
        return {record.name: record.outcome for record in plugins.load_plugins()}

    return run


# --- providers


def test_a_function_is_called_once_and_a_module_is_imported(start):
    calls = []
    outcomes = start({"function": lambda: calls.append(1), "module": ModuleType("m")})
    assert outcomes == {"function": "loaded", "module": "loaded"}
    plugins.load_plugins()
    assert calls == [1]


def test_a_plugin_may_load_plugins_itself(start):
    seen = []
    start({"a": lambda: seen.append(plugins.load_plugins()[0].state)})
    assert seen == ["found"]


def test_something_else_than_a_module_or_function_fails(start, caplog):
    outcomes = start({"number": 5})
    assert outcomes == {
        "number": "failed: IrTypeError: an entry point of vllm_ir.providers is a module or a "
        "function, got 5 (int)"
    }
    assert len([m for m in caplog.messages if "'number'" in m]) == 1


def test_an_unknown_name_in_vllm_ir_plugins_gives_a_warning(start, monkeypatch, caplog):
    monkeypatch.setattr(entry_points.envs, "plugins", lambda: ("exmaple",))
    start({"example": lambda: None})
    assert [m for m in caplog.messages if "VLLM_IR_PLUGINS" in m] == entry_points.unknown_names()


def test_strict_mode_raises_what_would_have_been_a_warning(start):
    ir.set_strict(True)
    with pytest.raises(IrImportError, match="plugin 'number' of an unknown package"):
        start({"number": 5})
    with pytest.raises(IrImportError):  # also when the failed import is tried again
        plugins.load_plugins()


# --- platforms


@pytest.mark.parametrize(
    "entry",
    [Preferring, Preferring(), lambda: Preferring(), lambda: Preferring],
    ids=["class", "instance", "function", "function that returns a class"],
)
def test_an_available_platform_goes_before_the_built_in_ones(start, entry):
    assert start(platforms_={"p": entry}) == {"p": "loaded"}
    assert ir.current_platform().name == "preferring"
    assert ir.ops.rms_norm.get_priority() == ["native"]


@pytest.mark.parametrize("entry", [Absent, lambda: None], ids=["class", "function"])
def test_a_platform_that_is_not_available_is_left_out(start, entry):
    assert start(platforms_={"p": entry}) == {"p": "unavailable: the platform isn't available here"}
    assert isinstance(ir.current_platform(), platforms._BUILT_IN)


def test_two_available_platforms_are_an_error_not_a_silent_win(start, caplog):
    outcomes = start(platforms_={"one": Preferring, "two": Second})
    conflict = (
        "one platform is available at a time, got 'one' of an unknown package, "
        "'two' of an unknown package"
    )
    assert outcomes == dict.fromkeys(["one", "two"], f"failed: {conflict}")
    assert isinstance(ir.current_platform(), platforms._BUILT_IN)
    assert [m for m in caplog.messages if "at a time" in m] == [
        f"vllm_ir.plugins: {conflict}. Name the plugins to load in VLLM_IR_PLUGINS."
    ]


def test_a_platform_of_the_wrong_type_fails(start):
    assert start(platforms_={"p": lambda: "cuda"}) == {
        "p": "failed: IrTypeError: an entry point of vllm_ir.platforms gives a vllm_ir.Platform or "
        "None, got 'cuda' (str)"
    }


def test_a_platform_whose_lists_cannot_be_read_fails(start):
    class Malformed(ir.Platform):
        def get_default_ir_op_priority(self):
            return {"rms_norm": "a,,b"}

    (outcome,) = start(platforms_={"p": Malformed}).values()
    assert outcome.startswith("failed: IrValueError: vllm_ir.rms_norm: entry 2 of the priority")


def test_a_platform_whose_kernels_cannot_be_imported_makes_room_for_a_built_in_one(start, caplog):
    assert start(platforms_={"p": Broken}) == {
        "p": "failed: ImportError: libspecial.so: cannot open shared object file"
    }
    assert isinstance(ir.current_platform(), platforms._BUILT_IN)
    assert len([m for m in caplog.messages if "libspecial" in m]) == 1


def test_a_plugin_may_ask_for_the_platform_while_plugins_load(start):
    seen = []
    start({"a": lambda: seen.append(ir.current_platform().name)}, {"p": Preferring})
    assert seen == ["preferring"]
