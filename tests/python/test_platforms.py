# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import torch

import vllm_ir as ir
from vllm_ir import log, platforms
from vllm_ir.errors import IrTypeError, UnknownNameError
from vllm_ir.platforms import (
    CpuPlatform,
    CudaPlatform,
    Platform,
    RocmPlatform,
    XpuPlatform,
    current_platform,
    default_priority,
    set_platform,
)
from vllm_ir.priority import IrOpPriorityConfig

_number = itertools.count()


class Prefers(Platform):
    """A platform with the same lists for eager and compiling, as the design document writes it."""

    def __init__(self, **lists):
        self.lists = lists

    def get_default_ir_op_priority(self):
        return IrOpPriorityConfig(**self.lists)


@pytest.fixture(autouse=True)
def restore():
    log.forget_once()
    yield
    ir.set_strict(False)
    set_platform(None)
    log.forget_once()


@pytest.fixture
def new_op():
    def make(*providers):
        def native(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        op = ir.register_op(native, name=f"platform_op_{next(_number)}")
        for provider in providers:
            op.register_impl(provider)(native)
        return op

    return make


# --- the lists of the built-in platforms


@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm"])
@pytest.mark.parametrize(
    ("platform", "eager"),
    [
        (CudaPlatform, ("vllm_c", "native")),
        (RocmPlatform, ("vllm_c", "native")),
        (XpuPlatform, ("xpu_kernels", "native")),
        (CpuPlatform, ("vllm_c", "native")),
    ],
)
def test_defaults_of_the_built_in_platforms(platform, op, eager):
    assert platform().get_default_ir_op_priority(compiling=True)[op] == ("native",)
    assert platform().get_default_ir_op_priority(compiling=False)[op] == eager
    assert platform().get_default_ir_op_priority()[op] == eager


def test_built_in_defaults_speak_of_in_tree_ops_only(new_op):
    assert new_op("vllm_c").name not in CpuPlatform().get_default_ir_op_priority()


# --- which platform it is


@pytest.fixture
def detect(monkeypatch):
    def run(*, cuda=None, hip=None, xpu=None, devices=0):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.version, "xpu", xpu, raising=False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        monkeypatch.setattr(torch.xpu, "device_count", lambda: devices)
        monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("a device was started"))
        monkeypatch.setattr(platforms, "_detected", None)
        monkeypatch.setattr(platforms, "_plugins", [])
        return current_platform().name

    return run


@pytest.mark.parametrize(
    ("build", "name"),
    [
        ({}, "cpu"),
        ({"devices": 1}, "cpu"),  # a CPU build of torch beside a GPU
        ({"cuda": "13.0", "devices": 1}, "cuda"),
        ({"cuda": "13.0"}, "cpu"),
        ({"hip": "6.4", "devices": 1}, "rocm"),
        ({"hip": "6.4"}, "cpu"),
        ({"xpu": "2025", "devices": 1}, "xpu"),
        ({"xpu": "2025"}, "cpu"),
    ],
)
def test_detection_asks_torch_s_build_and_counts_devices(detect, build, name):
    assert detect(**build) == name


def test_detection_runs_once(monkeypatch):
    first = current_platform()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("asked again"))
    assert current_platform() is first


def test_a_platform_is_named_after_its_class_unless_it_says_otherwise():
    assert Prefers().name == "Prefers"
    assert CudaPlatform().name == "cuda"


def test_set_platform_replaces_the_defaults_of_every_op_and_none_restores_them(new_op):
    op = new_op("mine")
    before = ir.ops.rms_norm.get_priority()
    set_platform(Prefers(**{op.name: ["mine"]}))
    assert current_platform().name == "Prefers"
    assert op.get_priority() == ["mine"]
    assert ir.ops.rms_norm.get_priority() == ["native"]
    set_platform(None)
    assert op.get_priority() == ["native"]
    assert ir.ops.rms_norm.get_priority() == before


def test_the_user_s_list_goes_before_the_platform_s(new_op):
    op = new_op("mine", "theirs")
    set_platform(Prefers(**{op.name: ["mine"]}))
    IrOpPriorityConfig(**{op.name: "theirs"}).apply()
    assert op.get_priority() == ["theirs"]


def test_set_platform_takes_platforms_only():
    with pytest.raises(IrTypeError) as error:
        set_platform(CudaPlatform)
    assert str(error.value) == (
        "vllm_ir.set_platform: needs an instance of vllm_ir.Platform or None, "
        f"got {CudaPlatform!r} (ABCMeta)."
    )


# --- how a platform may write its method


def lists_by_mode(platform):
    return {mode: dict(default_priority(platform, compiling=mode)) for mode in (False, True)}


def test_a_platform_may_leave_compiling_out():
    same = {"rms_norm": ("native",)}
    assert lists_by_mode(Prefers(rms_norm="native")) == {False: same, True: same}


def test_a_platform_may_return_a_dict_and_be_a_class_method():
    class Plain(Platform):
        @classmethod
        def get_default_ir_op_priority(cls, compiling=False):
            return {"rms_norm": ["native"] if compiling else ["vllm_c", "native"]}

    assert lists_by_mode(Plain()) == {
        False: {"rms_norm": ("vllm_c", "native")},
        True: {"rms_norm": ("native",)},
    }


def test_import_ir_kernels_imports_the_in_tree_providers():
    import sys

    Prefers().import_ir_kernels()
    assert "vllm_ir.providers" in sys.modules


# --- defaults that name what nobody registered


def test_d23_a_missing_provider_gives_one_notice_and_native_runs(new_op, caplog):
    has, lacks = new_op("xpu_kernels"), new_op()
    lists = dict.fromkeys([has.name, lacks.name], "xpu_kernels,native")
    for _ in range(3):
        set_platform(Prefers(**lists))
    assert has.get_priority() == ["xpu_kernels"]
    assert lacks.get_priority() == ["native"]
    assert lacks.dispatch(torch.ones(1)).provider == "native"
    assert [m for m in caplog.messages if "xpu_kernels" in m] == [
        f"vllm_ir.{lacks.name}: unknown provider 'xpu_kernels'. Known: native. "
        "The platform 'Prefers' names it in its default priority. It is skipped."
    ]


def test_d23_a_provider_that_registers_later_counts(new_op):
    op = new_op()
    set_platform(Prefers(**{op.name: ["later", "native"]}))
    assert op.get_priority() == ["native"]
    op.register_impl("later")(op.impls["native"].impl_fn)
    assert op.get_priority() == ["later"]


def test_d23_strict_mode_raises_and_changes_nothing(new_op):
    op = new_op("mine")
    set_platform(Prefers(**{op.name: ["mine"]}))
    ir.set_strict(True)
    with pytest.raises(UnknownNameError) as error:
        set_platform(Prefers(**{op.name: ["native"], "rms_norm": ["xpu_kernels"]}))
    known = ", ".join(sorted(ir.ops.rms_norm.impls))
    assert str(error.value) == (
        f"vllm_ir.rms_norm: unknown provider 'xpu_kernels'. Known: {known}. "
        "The platform 'Prefers' names it in its default priority."
    )
    assert op.get_priority() == ["mine"]
    assert current_platform().lists == {op.name: ["mine"]}


def test_d23_an_unknown_op_in_a_default_gives_a_notice(caplog):
    set_platform(Prefers(rmsnorm=["native"]))
    assert [m.partition(" Known:")[0] for m in caplog.messages if "unknown op" in m] == [
        "vllm_ir: unknown op 'rmsnorm'."
    ]
