# SPDX-License-Identifier: Apache-2.0
"""The configuration object. Also run under `python -O`, see test_optimised.py."""

import copy
import itertools
import pickle
import threading

import pytest
import torch

import vllm_ir as ir
from vllm_ir import log
from vllm_ir.errors import IrError, IrRuntimeError, IrValueError, UnknownNameError
from vllm_ir.priority import IrOpPriorityConfig, KernelConfig, combine
from vllm_ir.priority_text import PriorityTypeError

_number = itertools.count()


@pytest.fixture
def new_op():
    """Make an op with the providers fast (odd widths only), off (unsupported) and slow."""

    def make():
        def native(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        op = ir.register_op(native, name=f"config_op_{next(_number)}")
        op.register_impl("fast", supports_args=odd_width)(plain)
        op.register_impl("off", supported=False, unsupported_reason="no such chip")(plain)
        op.register_impl("slow")(plain)
        return op

    return make


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def odd_width(x: torch.Tensor) -> bool:
    return x.shape[-1] % 2 == 1


def fail_inside(*ops):
    assert [op.get_priority() for op in ops] == [["native"]] * len(ops)
    raise ZeroDivisionError


@pytest.fixture
def strict():
    ir.set_strict(True)
    yield
    ir.set_strict(False)


# --- the object


def test_a_list_may_be_text_a_list_or_a_tuple():
    config = IrOpPriorityConfig(a="p,q", b=["p", "q"], c=("p", "q"))
    assert set(config.values()) == {("p", "q")}


def test_it_is_a_mapping():
    config = IrOpPriorityConfig(a="p", b="q")
    assert dict(config) == {"a": ("p",), "b": ("q",)}
    assert "a" in config
    assert "c" not in config
    assert len(config) == 2


def test_nothing_said_is_as_if_the_op_were_left_out():
    assert IrOpPriorityConfig(a=None, b=[], c=()) == IrOpPriorityConfig()


def test_an_op_of_any_name_can_be_configured():
    """Such names would clash with methods and parameters if lists were attributes."""
    names = ["self", "apply", "items", "lists", "cls"]
    assert list(IrOpPriorityConfig(**dict.fromkeys(names, "native"))) == names


def test_from_dict_and_from_any():
    config = IrOpPriorityConfig(a="p")
    assert IrOpPriorityConfig.from_dict({"a": ["p"]}) == config
    assert IrOpPriorityConfig.from_any({"a": ["p"]}) == config
    assert IrOpPriorityConfig.from_any(config) is config
    assert IrOpPriorityConfig.from_any(None) == IrOpPriorityConfig()


def test_equality_and_hash_ignore_the_order_of_ops_but_not_of_providers():
    one, same = IrOpPriorityConfig(a="p", b="q"), IrOpPriorityConfig(b="q", a="p")
    assert one == same
    assert hash(one) == hash(same)
    assert one.compute_hash() == same.compute_hash()
    swapped, straight = IrOpPriorityConfig(a="p,q"), IrOpPriorityConfig(a="q,p")
    assert swapped != straight
    assert swapped.compute_hash() != straight.compute_hash()
    assert one != {"a": ("p",), "b": ("q",)}


def test_compute_hash_is_the_same_in_every_process():
    assert IrOpPriorityConfig(rms_norm="vllm_c,native").compute_hash() == (
        "b5e2ad6fd829364fc93eb64871e214f291b73a0f8e70667530c6c739bb1b132f"
    )


def test_repr_makes_an_equal_object():
    config = IrOpPriorityConfig(a="p,q", b="r")
    assert repr(config) == "IrOpPriorityConfig(a=['p', 'q'], b=['r'])"
    assert eval(repr(config)) == config


def test_it_is_immutable():
    config = IrOpPriorityConfig(a="p")
    with pytest.raises(TypeError):
        config["a"] = ("q",)
    with pytest.raises(AttributeError):
        config.a = ("q",)
    with pytest.raises(TypeError):
        config._lists["a"] = ("q",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "config",
    [
        IrOpPriorityConfig(),
        IrOpPriorityConfig(rms_norm="vllm_c,native", not_registered="p"),
        KernelConfig({"rms_norm": ["native"]}),
        KernelConfig(),
    ],
)
def test_d27_configuration_survives_pickle_and_deepcopy(config, protocol):
    for copied in (pickle.loads(pickle.dumps(config, protocol)), copy.deepcopy(config)):
        assert copied == config
        assert type(copied) is type(config)
        assert hash(copied) == hash(config)


def test_d27_an_op_handle_resolves_by_name():
    assert pickle.loads(pickle.dumps(ir.ops.rms_norm)) is ir.ops.rms_norm
    assert copy.deepcopy(ir.ops.rms_norm) is ir.ops.rms_norm


def test_user_lists_go_before_platform_lists():
    merged = IrOpPriorityConfig(a="x,p", b="y").merged_with_defaults({"a": ["p", "q"], "c": "r"})
    assert merged == IrOpPriorityConfig(a="x,p,q", b="y", c="r")


# --- what is wrong, and the text that says so


def test_d20_an_unknown_provider_names_the_known_ones_and_the_nearest():
    config = IrOpPriorityConfig(rms_norm="vlm_c")
    for action in (config.validate, config.apply, config.scoped().__enter__):
        with pytest.raises(UnknownNameError) as error:
            action()
        assert isinstance(error.value, ValueError)
        assert isinstance(error.value, KeyError)
        known = ", ".join(sorted(ir.ops.rms_norm.impls))
        assert str(error.value) == (
            f"vllm_ir.rms_norm: unknown provider 'vlm_c'. Known: {known}. Did you mean 'vllm_c'?"
        )


def test_d20_an_unknown_op_names_the_known_ones_and_the_nearest():
    with pytest.raises(UnknownNameError) as error:
        IrOpPriorityConfig(rmsnorm="native").validate()
    known = ", ".join(sorted(ir.IrOp.registry))
    assert str(error.value) == (
        f"vllm_ir: unknown op 'rmsnorm'. Known: {known}. Did you mean 'rms_norm'?"
    )


def test_d20_hashing_a_typo_raises_nothing():
    assert IrOpPriorityConfig(rmsnorm="vlm_c").compute_hash()


def test_d21_a_repeated_provider_counts_once():
    assert IrOpPriorityConfig(a=["p", "p"], b=["p", "q", "p"]) == IrOpPriorityConfig(a="p", b="p,q")


def test_d21_one_error_names_every_problem_of_a_start():
    with pytest.raises(UnknownNameError) as error:
        combine(
            {
                "the command line": {"rms_norm": "vlm_c", "fused_add_rms_norm": "a,,b"},
                "KernelConfig": KernelConfig({"rms_norm": ["native"], "rmsnorm": ["native"]}),
            }
        )
    title, *lines = str(error.value).splitlines()
    assert title == "vllm_ir: 4 problems in the priorities."
    assert lines[0].startswith("  vllm_ir.fused_add_rms_norm: entry 2 of the priority is empty")
    assert lines[1].startswith("  vllm_ir.rms_norm: one place sets the priority of an op, got 'vlm")
    assert lines[2].startswith("  vllm_ir.rms_norm: unknown provider 'vlm_c'. Known: ")
    assert lines[3].startswith("  vllm_ir: unknown op 'rmsnorm'. Known: ")


def test_d21_an_op_set_by_two_places_is_an_error():
    with pytest.raises(IrValueError) as error:
        combine({"a file": {"rms_norm": "native"}, "KernelConfig": {"rms_norm": "vllm_c"}})
    assert str(error.value) == (
        "vllm_ir.rms_norm: one place sets the priority of an op, got 'native' from a file "
        "and 'vllm_c' from KernelConfig. Remove one of them."
    )


def test_two_places_that_agree_or_speak_of_different_ops_combine():
    assert combine(
        {
            "the command line": IrOpPriorityConfig(rms_norm="vllm_c, native"),
            "KernelConfig": KernelConfig({"rms_norm": ["vllm_c", "native"]}),
            "a file": {"fused_add_rms_norm": "native"},
            "nothing": None,
        }
    ) == IrOpPriorityConfig(rms_norm="vllm_c,native", fused_add_rms_norm="native")


@pytest.mark.parametrize("make", [IrOpPriorityConfig.from_any, KernelConfig])
@pytest.mark.parametrize("value", [5, "rms_norm=native", [("rms_norm", "native")]])
def test_d22_a_configuration_of_the_wrong_type(make, value):
    with pytest.raises(PriorityTypeError) as error:
        make(value)
    assert str(error.value) == (
        "IrOpPriorityConfig: priorities are given as an IrOpPriorityConfig, a dict of lists by op "
        f"or None, got {value!r} ({type(value).__name__})."
    )


def test_d22_an_op_name_of_the_wrong_type():
    with pytest.raises(PriorityTypeError) as error:
        IrOpPriorityConfig.from_dict({5: "native"})
    assert str(error.value) == "IrOpPriorityConfig: an op is given by its name (str), got 5 (int)."


def test_d22_all_malformed_lists_are_named_when_the_object_is_made():
    with pytest.raises(PriorityTypeError) as error:
        IrOpPriorityConfig(rms_norm="a,,b", fused_add_rms_norm=5)
    title, first, second = str(error.value).splitlines()
    assert title == "vllm_ir: 2 problems in the priorities."
    assert first.startswith("  vllm_ir.rms_norm: entry 2 of the priority is empty, got 'a,,b'.")
    assert second.startswith("  vllm_ir.fused_add_rms_norm: a priority is a text")


def test_asking_for_an_op_that_has_no_list():
    with pytest.raises(UnknownNameError) as error:
        IrOpPriorityConfig(rms_norm="native")["rmsnorm"]
    assert str(error.value) == (
        "IrOpPriorityConfig: unknown op 'rmsnorm'. Known: rms_norm. Did you mean 'rms_norm'?"
    )


# --- setting lists


def test_names_are_looked_up_when_used_not_when_made(new_op):
    number = next(_number)
    config = IrOpPriorityConfig(**{f"config_op_{number + 1}": "slow"})
    with pytest.raises(UnknownNameError):
        config.validate()
    op = new_op()
    assert op.name in config
    config.apply()
    assert op.get_priority() == ["slow"]


@pytest.mark.parametrize("wrap", [IrOpPriorityConfig.from_any, KernelConfig])
def test_apply_is_permanent(new_op, wrap):
    one, other = new_op(), new_op()
    wrap({one.name: "fast,slow", other.name: "slow"}).apply()
    assert one.get_priority() == ["fast", "slow"]
    assert other.get_priority() == ["slow"]


@pytest.mark.parametrize("wrap", [IrOpPriorityConfig.from_any, KernelConfig])
def test_scopes_nest_and_restore_also_on_exceptions(new_op, wrap):
    one, other = new_op(), new_op()
    wrap({one.name: "slow", other.name: "slow"}).apply()
    with wrap({one.name: "fast,slow", other.name: "native"}).scoped():
        assert one.get_priority() == ["fast", "slow"]
        with pytest.raises(ZeroDivisionError), wrap({one.name: "native"}).scoped():
            fail_inside(one, other)
        assert one.get_priority() == ["fast", "slow"]
    assert one.get_priority() == other.get_priority() == ["slow"]


def test_nothing_is_set_when_one_name_is_wrong(new_op):
    op = new_op()
    IrOpPriorityConfig(**{op.name: "slow"}).apply()
    wrong = IrOpPriorityConfig(**{op.name: "native", "rmsnorm": "native"})
    with pytest.raises(UnknownNameError):
        wrong.apply()
    with pytest.raises(UnknownNameError), wrong.scoped():
        pytest.fail("the scope opened")
    assert op.get_priority() == ["slow"]


def test_strict_mode_refuses_an_unsupported_provider_before_it_sets_anything(new_op, strict):
    first, second = new_op(), new_op()
    config = IrOpPriorityConfig(**{first.name: "slow", second.name: "off,slow"})
    ir.set_strict(False)
    config.validate()
    ir.set_strict(True)
    before = first.get_priority()
    with pytest.raises(IrRuntimeError) as error:
        config.apply()
    assert str(error.value) == (
        f"vllm_ir.{second.name}.off: strict mode: unsupported here (no such chip). "
        "Remove it from the priority list."
    )
    assert first.get_priority() == before


def test_problems_of_one_kind_keep_their_class(new_op, strict):
    config = IrOpPriorityConfig(**{new_op().name: "off", new_op().name: "off"})
    with pytest.raises(IrRuntimeError) as error:
        config.validate()
    assert str(error.value).startswith("vllm_ir: 2 problems in the priorities.\n  vllm_ir.config")


def test_the_core_says_the_same_of_an_unsupported_provider(new_op, strict):
    op = new_op()
    with pytest.raises(IrError) as ours:
        IrOpPriorityConfig(**{op.name: "off"}).validate()
    with pytest.raises(IrError) as core:
        op.set_default(["off"])
    assert type(ours.value) is type(core.value)
    assert str(ours.value) == str(core.value)


def test_an_unsupported_provider_is_skipped_and_stays_visible(new_op):
    op = new_op()
    IrOpPriorityConfig(**{op.name: "off,slow"}).apply()
    assert op.get_priority() == ["slow"]
    assert "no such chip" in str(op.explain(torch.ones(1, 2)))


# --- what users see of it


def test_d41_outside_a_context_the_default_runs_with_one_notice(new_op, caplog):
    op = new_op()
    log.forget_once()
    x = torch.ones(1, 3)
    config = IrOpPriorityConfig(**{op.name: "fast,native"})
    seen = {}
    with config.scoped():
        seen["inside"] = op.dispatch(x).provider
        thread = threading.Thread(target=lambda: seen.update(thread=op.dispatch(x).provider))
        thread.start()
        thread.join()
        op(x)
    for _ in range(3):
        op(x)
    seen["after"] = op.dispatch(x).provider
    assert seen == {"inside": "fast", "thread": "native", "after": "native"}
    notices = [m for m in caplog.messages if "Priority not set for op" in m and op.name in m]
    assert len(notices) == 1


def test_d42_a_provider_behind_a_catch_all_is_announced_as_unreachable(new_op, caplog):
    op = new_op()
    config = IrOpPriorityConfig(**{op.name: "native,fast"})
    for _ in range(2):
        config.apply()
        with config.scoped():
            pass
    assert op.get_priority() == ["native"]
    assert "unreachable behind native" in str(op.explain(torch.ones(1, 3)))
    assert [m for m in caplog.messages if "unreachable" in m] == [
        f"vllm_ir.{op.name}.fast: unreachable in the priority list behind native, which accepts "
        "everything. Put 'fast' before it, or remove it."
    ]


def test_d42_native_behind_a_catch_all_is_no_news(new_op, caplog):
    op = new_op()
    IrOpPriorityConfig(**{op.name: "slow,native"}).apply()
    assert [m for m in caplog.messages if "unreachable" in m] == []
