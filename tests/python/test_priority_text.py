# SPDX-License-Identifier: Apache-2.0
import pytest

from vllm_ir.errors import IrValueError
from vllm_ir.priority_text import PriorityTypeError, parse_priority

MEANINGS = [
    ("a,b", ("a", "b")),
    ("a", ("a",)),
    (" a , b ", ("a", "b")),
    ("a\t,b", ("a", "b")),
    ("a,b\n", ("a", "b")),
    (["a", "b"], ("a", "b")),
    (("a",), ("a",)),
    ([], ()),
    ((), ()),
    (None, ()),
    ("a,b,a", ("a", "b")),
    (["a", "a"], ("a",)),
    (["a", "b", "a"], ("a", "b")),
    ("_a1,vllm_c", ("_a1", "vllm_c")),
]

ONE_PROVIDER = (
    "vllm_ir.rms_norm: a priority names at least one provider, got {}. "
    "Leave the setting out to use the platform's default."
)
EMPTY_ENTRY = (
    "vllm_ir.rms_norm: entry {} of the priority is empty, got {}. "
    "Write one comma between two names and none at the ends."
)
NOT_A_NAME = "vllm_ir.rms_norm: a provider name matches [a-z_][a-z0-9_]*, got {}."
WRONG_TYPE = (
    "vllm_ir.rms_norm: a priority is a text such as 'vllm_c,native' or a list of provider names, "
    "got {}."
)
WRONG_ENTRY = "vllm_ir.rms_norm: a priority list holds provider names (str), got {}."

ERRORS = [
    ("", ONE_PROVIDER.format("''")),
    (" ", ONE_PROVIDER.format("' '")),
    (",", EMPTY_ENTRY.format(1, "','")),
    ("a,,b", EMPTY_ENTRY.format(2, "'a,,b'")),
    ("a,b,", EMPTY_ENTRY.format(3, "'a,b,'")),
    ("A", NOT_A_NAME.format("'A' in 'A'") + " Write 'a'."),
    ("a b", NOT_A_NAME.format("'a b' in 'a b'") + " Write 'a,b'."),
    ("a;b", NOT_A_NAME.format("'a;b' in 'a;b'") + " Write 'a,b'."),
    ("a-b", NOT_A_NAME.format("'a-b' in 'a-b'")),
    ("['a','b']", NOT_A_NAME.format("\"['a','b']\" in \"['a','b']\"") + " Write 'a,b'."),
    ('["a", "b"]', NOT_A_NAME.format('\'["a", "b"]\' in \'["a", "b"]\'') + " Write 'a,b'."),
    (["a,b"], NOT_A_NAME.format("'a,b' in ['a,b']") + " Write ['a', 'b']."),
    ([" a"], NOT_A_NAME.format("' a' in [' a']") + " Write ['a']."),
    ([""], NOT_A_NAME.format("'' in ['']")),
    ("\u00e9", NOT_A_NAME.format("'\u00e9' in '\u00e9'")),
]

TYPE_ERRORS = [
    (5, WRONG_TYPE.format("5 (int)")),
    (b"a", WRONG_TYPE.format("b'a' (bytes)")),
    ({"a"}, WRONG_TYPE.format("{'a'} (set)")),
    ({"a": 1}, WRONG_TYPE.format("{'a': 1} (dict)")),
    (True, WRONG_TYPE.format("True (bool)")),
    ([1], WRONG_ENTRY.format("1 (int) in [1]")),
    ([["a"]], WRONG_ENTRY.format("['a'] (list) in [['a']]")),
    ([None], WRONG_ENTRY.format("None (NoneType) in [None]")),
]


@pytest.mark.parametrize(("value", "names"), MEANINGS)
def test_d22_meaning_of_a_priority(value, names):
    assert parse_priority("rms_norm", value) == names


@pytest.mark.parametrize(("value", "text"), ERRORS)
def test_d22_a_malformed_priority_quotes_the_input(value, text):
    with pytest.raises(IrValueError) as error:
        parse_priority("rms_norm", value)
    assert isinstance(error.value, ValueError)
    assert str(error.value) == text


@pytest.mark.parametrize(("value", "text"), TYPE_ERRORS)
def test_d22_a_wrong_type_quotes_the_input(value, text):
    with pytest.raises(PriorityTypeError) as error:
        parse_priority("rms_norm", value)
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, TypeError)
    assert str(error.value) == text
