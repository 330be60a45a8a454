# SPDX-License-Identifier: Apache-2.0
import pickle

import pytest

from vllm_ir import errors

BASES = {
    errors.IrError: [Exception],
    errors.IrValueError: [errors.IrError, ValueError],
    errors.IrTypeError: [errors.IrError, TypeError],
    errors.IrRuntimeError: [errors.IrError, RuntimeError],
    errors.IrImportError: [errors.IrError, ImportError],
    errors.UnknownNameError: [errors.IrError, ValueError, KeyError],
    errors.DuplicateError: [errors.IrError, ValueError, AssertionError],
    errors.DonationError: [errors.IrError, ValueError],
}


def test_the_table_has_every_error():
    public = {
        e for e in vars(errors).values() if isinstance(e, type) and e.__module__ == errors.__name__
    }
    assert public == set(BASES)


@pytest.mark.parametrize("error", BASES, ids=lambda e: e.__name__)
def test_every_error_is_also_the_class_that_a_user_expects(error):
    for base in BASES[error]:
        with pytest.raises(base, match=r"^some text$"):
            raise error("some text")
    assert str(error("some text")) == "some text"
    assert str(error()) == ""
    again = pickle.loads(pickle.dumps(error("some text")))
    assert (type(again), str(again)) == (error, "some text")


def test_nearest():
    assert errors.nearest("vlm_c", ["native", "vllm_c"]) == " Did you mean 'vllm_c'?"
    assert errors.nearest("zzz", ["native", "vllm_c"]) == ""
    assert errors.nearest("a", []) == ""


def test_unknown_name():
    assert errors.unknown_name("vllm_ir.f", "provider", "vlm_c", ["vllm_c", "native"]) == (
        "vllm_ir.f: unknown provider 'vlm_c'. Known: native, vllm_c. Did you mean 'vllm_c'?"
    )
    assert errors.unknown_name("vllm_ir", "op", 5, []) == "vllm_ir: unknown op 5. Known: none."
