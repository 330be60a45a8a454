# SPDX-License-Identifier: Apache-2.0
import pytest

from vllm_ir import envs
from vllm_ir.errors import IrValueError


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for row in envs.TABLE:
        monkeypatch.delenv(row.name, raising=False)


@pytest.mark.parametrize(
    ("read", "default"),
    [
        (envs.logging_level, "INFO"),
        (envs.explicit_logging_level, None),
        (envs.batch_invariant, False),
        (envs.strict, False),
        (envs.plugins, None),
    ],
)
def test_defaults(read, default):
    assert read() == default


@pytest.mark.parametrize("name", ["VLLM_IR_STRICT", "VLLM_BATCH_INVARIANT", "VLLM_IR_PLUGINS"])
def test_an_empty_value_counts_as_not_set(monkeypatch, name):
    monkeypatch.setenv(name, " ")
    assert envs.raw(name) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("TRUE", True), ("0", False), ("false", False), (" 1 ", True)],
)
@pytest.mark.parametrize(
    ("name", "read"),
    [("VLLM_IR_STRICT", envs.strict), ("VLLM_BATCH_INVARIANT", envs.batch_invariant)],
)
def test_switches(monkeypatch, name, read, text, value):
    monkeypatch.setenv(name, text)
    assert read() is value


def test_our_logging_level_goes_before_the_engine_s(monkeypatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "error")
    assert envs.logging_level() == "ERROR"
    monkeypatch.setenv("VLLM_IR_LOGGING_LEVEL", "Debug")
    assert envs.logging_level() == "DEBUG"


@pytest.mark.parametrize(
    ("text", "names"),
    [("none", ()), ("a", ("a",)), ("a,b", ("a", "b")), (" a , b ", ("a", "b")), ("a,a", ("a",))],
)
def test_plugins(monkeypatch, text, names):
    monkeypatch.setenv("VLLM_IR_PLUGINS", text)
    assert envs.plugins() == names


LEVELS = "DEBUG, INFO, WARNING, ERROR, CRITICAL"
BAD = [
    ("VLLM_IR_LOGGING_LEVEL", "LOUD", envs.logging_level, LEVELS),
    ("VLLM_LOGGING_LEVEL", "10", envs.logging_level, LEVELS),
    ("VLLM_BATCH_INVARIANT", "yes", envs.batch_invariant, "0, 1, false or true"),
    ("VLLM_IR_STRICT", "2", envs.strict, "0, 1, false or true"),
    ("VLLM_IR_PLUGINS", "a,,b", envs.plugins, "names separated by commas, or none"),
    ("VLLM_IR_PLUGINS", "none,a", envs.plugins, "names separated by commas, or none"),
]


@pytest.mark.parametrize(("name", "text", "read", "allowed"), BAD)
def test_a_bad_value_is_an_error_that_lists_the_allowed_ones(
    monkeypatch, name, text, read, allowed
):
    monkeypatch.setenv(name, text)
    with pytest.raises(IrValueError) as error:
        read()
    assert str(error.value) == (
        f"vllm_ir: {name} must be one of {allowed}, got '{text}'. Correct it or unset it."
    )


def test_check_names_every_bad_variable_at_once(monkeypatch):
    monkeypatch.setenv("VLLM_IR_STRICT", "maybe")
    monkeypatch.setenv("VLLM_IR_LOGGING_LEVEL", "LOUD")
    with pytest.raises(IrValueError) as error:
        envs.check()
    assert str(error.value).splitlines() == [
        f"vllm_ir: VLLM_IR_LOGGING_LEVEL must be one of {LEVELS}, got 'LOUD'. "
        "Correct it or unset it.",
        "vllm_ir: VLLM_IR_STRICT must be one of 0, 1, false or true, got 'maybe'. "
        "Correct it or unset it.",
    ]


def test_a_misspelt_variable_is_pointed_out(monkeypatch):
    monkeypatch.setenv("VLLM_IR_STRIKT", "1")
    assert envs.unknown() == {
        "VLLM_IR_STRIKT": "vllm_ir: VLLM_IR_STRIKT has no meaning. Did you mean 'VLLM_IR_STRICT'?"
    }
    monkeypatch.delenv("VLLM_IR_STRIKT")
    monkeypatch.setenv("VLLM_IR_ZZZ", "1")
    assert envs.unknown() == {"VLLM_IR_ZZZ": "vllm_ir: VLLM_IR_ZZZ has no meaning."}


def test_the_table_is_complete():
    assert len({row.name for row in envs.TABLE}) == len(envs.TABLE)
    assert all(row.meaning and row.allowed for row in envs.TABLE)
