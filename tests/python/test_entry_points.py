# SPDX-License-Identifier: Apache-2.0
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest

from vllm_ir import entry_points, log
from vllm_ir.entry_points import PLATFORMS, PROVIDERS, PluginRecord, load_group
from vllm_ir.errors import IrImportError


@pytest.fixture
def install(monkeypatch):
    """Pretend that plugins are installed: name=object, loaded from a module of the test."""
    monkeypatch.delenv("VLLM_IR_PLUGINS", raising=False)
    monkeypatch.setattr(entry_points, "_records", {})
    module = ModuleType("test_plugin_module")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    log.forget_once()

    def make(group=PROVIDERS, **objects):
        points = []
        for name, value in objects.items():
            setattr(module, name, value)
            points.append(EntryPoint(name, f"{module.__name__}:{name}", group))
        monkeypatch.setattr(entry_points, "_all_installed", lambda: EntryPoints(points))

    yield make
    log.forget_once()


def fail():
    raise ModuleNotFoundError("No module named 'libspecial'")


def call(loaded):
    return loaded()


def states():
    return {record.name: record.state for record in entry_points.records()}


def test_a_plugin_is_used_once(install):
    calls = []
    install(a=lambda: calls.append(1))
    assert len(load_group(PROVIDERS, call)) == 1
    assert load_group(PROVIDERS, call) == []
    assert calls == [1]
    assert states() == {"a": "loaded"}


def test_the_result_of_use_comes_back_with_the_record(install):
    install(a=lambda: 7)
    (loaded,) = load_group(PROVIDERS, call)
    assert loaded.value == 7
    assert loaded.record == PluginRecord(
        PROVIDERS, "a", "test_plugin_module:a", "an unknown package", "loaded"
    )


def test_plugins_load_by_name_in_order_and_one_group_at_a_time(install):
    calls = []
    install(b=lambda: calls.append("b"), a=lambda: calls.append("a"))
    load_group(PLATFORMS, call)
    assert calls == []
    load_group(PROVIDERS, call)
    assert calls == ["a", "b"]


def test_a_plugin_that_loads_plugins_gets_none(install):
    inner = []
    install(a=lambda: inner.append(load_group(PROVIDERS, call)))
    load_group(PROVIDERS, call)
    assert inner == [[]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", {"a": "disabled", "b": "disabled"}),
        ("a", {"a": "loaded", "b": "disabled"}),
        ("a,b", {"a": "loaded", "b": "loaded"}),
    ],
)
def test_vllm_ir_plugins_chooses_by_name(install, monkeypatch, text, expected):
    install(a=lambda: None, b=lambda: None)
    monkeypatch.setenv("VLLM_IR_PLUGINS", text)
    load_group(PROVIDERS, call)
    assert states() == expected


FAILURE = (
    "vllm_ir.plugins: plugin 'bad' of an unknown package (vllm_ir.providers = "
    "test_plugin_module:bad) failed, got ModuleNotFoundError: No module named 'libspecial'. "
    "Mend or uninstall it, or leave it out with VLLM_IR_PLUGINS={}."
)


def test_a_failing_plugin_gives_one_warning_and_the_others_load(install, caplog):
    install(bad=fail, good=lambda: None)
    load_group(PROVIDERS, call)
    assert states() == {"bad": "failed", "good": "loaded"}
    assert caplog.messages == [FAILURE.format("good")]


def test_a_missing_attribute_and_a_missing_module_are_failures(install, monkeypatch, caplog):
    install()
    points = [EntryPoint("a", "no_such_module", PROVIDERS), EntryPoint("b", "os:nope", PROVIDERS)]
    monkeypatch.setattr(entry_points, "_all_installed", lambda: EntryPoints(points))
    load_group(PROVIDERS, call)
    reasons = [record.reason for record in entry_points.records()]
    assert reasons == [
        "ModuleNotFoundError: No module named 'no_such_module'",
        "AttributeError: module 'os' has no attribute 'nope'",
    ]
    assert len(caplog.messages) == 2


def test_raise_failures_names_every_failure_and_the_plugins_that_work(install):
    install(good=lambda: None, bad=fail)
    load_group(PROVIDERS, call)
    with pytest.raises(IrImportError) as error:
        entry_points.raise_failures()
    assert str(error.value) == FAILURE.format("good")
    assert isinstance(error.value, ImportError)


def test_raise_failures_is_silent_when_all_is_well(install):
    install(good=lambda: None)
    load_group(PROVIDERS, call)
    entry_points.raise_failures()


def test_a_name_that_no_plugin_has_is_pointed_out(install, monkeypatch):
    install(example=lambda: None)
    monkeypatch.setenv("VLLM_IR_PLUGINS", "exmaple")
    load_group(PROVIDERS, call)
    text = (
        "vllm_ir.plugins: VLLM_IR_PLUGINS names installed plugins, got 'exmaple'. "
        "Installed: example. Did you mean 'example'?"
    )
    assert entry_points.unknown_names() == [text]
    with pytest.raises(IrImportError) as error:
        entry_points.raise_failures()
    assert str(error.value) == text
