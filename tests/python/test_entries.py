# SPDX-License-Identifier: Apache-2.0
"""A C++ provider out of tree: built against `vllm_ir.get_include()`, loaded, registered, run."""

import shutil
import subprocess
import sysconfig
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils import cpp_extension
from torch.utils.cpp_extension import TORCH_LIB_PATH
from toys import new_name, raises_exactly, runs

import vllm_ir as ir
from vllm_ir import entries as entries_module
from vllm_ir.errors import DuplicateError, IrValueError, UnknownNameError

SOURCE = """
    #include <Python.h>

    #include <ATen/ops/add.h>
    #include <ATen/ops/full_like.h>
    #include <ATen/ops/mul.h>

    #include <stdexcept>

    #include "vllm_ir/entry.h"

    at::Tensor scale(const at::Tensor& x, const at::Tensor* y, double scale,
                     std::optional<int64_t> n, bool flag) {
      at::Tensor out = at::mul(x, scale);
      if (n) out = at::mul(out, *n);
      if (flag) out = at::mul(out, -1);
      return y ? at::add(out, *y) : out;
    }

    std::tuple<at::Tensor, at::Tensor> pair_(const at::Tensor& x, const at::Tensor& x_other,
                                             double scale) {
      x_other.add_(x);
      x.copy_(at::mul(x_other, scale));
      return {x, x_other};
    }

    at::Tensor lock_is_held(const at::Tensor& x) {
      return at::full_like(x, static_cast<double>(PyGILState_Check()));
    }

    at::Tensor same(const at::Tensor& x) { return x; }

    at::Tensor fails(const at::Tensor& x) {
      if (x.numel() == 1) throw std::runtime_error("plain C++ error");
      TORCH_CHECK_VALUE(x.numel() != 2, "two is too many");
      TORCH_CHECK(false, "torch error");
    }

    at::Tensor named(const at::Tensor& x, std::string_view name,
                     std::optional<std::string_view> unit) {
      return at::full_like(x, static_cast<double>(name.size() + 100 * unit.value_or("").size()));
    }

    using vllm_ir::entry;
    using vllm_ir::Gil;
    VLLM_IR_ENTRY_TABLE(entry<&scale>("demo::scale"), entry<&pair_>("demo::pair_"),
                        entry<&lock_is_held>("demo::holds"),
                        entry<&lock_is_held>("demo::releases", Gil::kRelease),
                        entry<&lock_is_held>("demo::when_large", Gil::kReleaseWhenLarge),
                        entry<&same>("demo::same"), entry<&fails>("demo::fails"),
                        entry<&named>("demo::named"))
"""
NAMES = ["scale", "pair_", "holds", "releases", "when_large", "same", "fails", "named"]


def toy(
    x: Tensor, y: Tensor | None, scale: float, n: int | None = None, flag: bool = False
) -> Tensor:
    out = x * scale * (1 if n is None else n) * (-1 if flag else 1)
    return out if y is None else out + y


def pair(x: Tensor, x_other: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    total = x + x_other
    return total * scale, total


def unary(x: Tensor) -> Tensor:
    return x.clone()


def sized(x: Tensor, name: str = "none", unit: str | None = None) -> Tensor:
    return torch.full_like(x, len(name.encode()) + 100 * len((unit or "").encode()))


def not_to_be_run(fn):
    """Return a body with this signature that eager calls must not take: they have an entry."""

    def body(*args):
        raise AssertionError("the Python body ran")

    body.__wrapped__ = fn
    return body


def op_with_entry(fn, entry, **options):
    op = ir.register_op(fn, name=new_name("entry"), allow_inplace=fn is pair)
    op.register_impl("cpp", entry=f"demo::{entry}", **options)(not_to_be_run(fn))
    op.set_default(["cpp"])
    return op


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The built library, loaded."""
    folder = tmp_path_factory.mktemp("entries")
    (folder / "demo.cpp").write_text(textwrap.dedent(SOURCE))
    done = subprocess.run(
        ["g++", "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        + [f"-I{ir.get_include()}", f"-I{sysconfig.get_path('include')}"]
        + [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
        + ["demo.cpp", "-o", "demo.so", f"-L{TORCH_LIB_PATH}", "-lc10", "-ltorch_cpu"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path = folder / "demo.so"
    assert ir.load_entries(path) == [f"demo::{name}" for name in NAMES]
    return path


slow = pytest.mark.slow


@slow
def test_an_entry_takes_every_kind_of_argument(library):
    op = op_with_entry(toy, "scale")
    x, y = torch.arange(3.0), torch.ones(3)
    for args in [(x, None, 2.0), (x, y, 2.0, 3), (x, y, 0.5, None, True), (x, None, 2, 1, True)]:
        with runs(op, cpp=2):
            assert torch.equal(op(*args), toy(*args))
            assert torch.equal(op.torch_op(*args), toy(*args))
    assert op.impls["cpp"].entry == "demo::scale"
    assert entries_module.entry_library("demo::scale") == str(library)


@slow
def test_an_entry_takes_texts(library):
    op = op_with_entry(sized, "named")
    x = torch.zeros(2)
    for args in [
        (x,),
        (x, "tanh"),
        (x, ""),
        (x, "ä\0b", "kg"),
        (x, "n", None),
        (x, "n" * 1000, ""),
    ]:
        with runs(op, cpp=2):
            assert torch.equal(op(*args), sized(*args))
            assert torch.equal(op.torch_op(*args), sized(*args))
    with runs(op), pytest.raises((TypeError, RuntimeError, UnicodeEncodeError)):
        op(x, "\ud800")


@slow
def test_the_library_is_part_of_the_impl_s_identity(library, monkeypatch, tmp_path):
    impl = op_with_entry(toy, "scale").impls["cpp"]
    before = impl.uuid()
    assert before is not None
    changed = tmp_path / "changed.so"
    changed.write_bytes(library.read_bytes() + b"!")
    monkeypatch.setitem(entries_module._LIBRARIES, "demo::scale", str(changed))
    assert impl.uuid() not in (None, before)


@slow
def test_an_in_place_entry(library):
    op = op_with_entry(pair, "pair_", inplace=True)
    for call in (op, op.torch_op):
        x, other = torch.ones(2), torch.ones(2)
        with runs(op, cpp=1):
            results = call(x, other, 3.0)
        assert [r.tolist() for r in results] == [[6.0] * 2, [2.0] * 2]
        assert (x.tolist(), other.tolist()) == ([1.0] * 2, [1.0] * 2)
    x, other = torch.ones(2), torch.ones(2)
    with runs(op, cpp=1):
        results = op.maybe_inplace(x, other, 3.0)
    assert [r.data_ptr() for r in results] == [x.data_ptr(), other.data_ptr()]


@slow
@pytest.mark.parametrize(
    ("entry", "small", "large"),
    [("holds", 1.0, 1.0), ("releases", 0.0, 0.0), ("when_large", 1.0, 0.0)],
)
def test_python_s_lock(library, entry, small, large):
    op = op_with_entry(unary, entry)
    with runs(op, cpp=3):
        assert op(torch.ones(4))[0].item() == small
        assert op(torch.ones(32767))[0].item() == small
        assert op(torch.ones(32768))[0].item() == large


@slow
def test_an_entry_that_returns_its_input_is_copied(library, caplog):
    op = op_with_entry(unary, "same")
    x = torch.ones(2)
    with runs(op, cpp=2):
        for call in (op, op.torch_op):
            call(x).add_(1)
            assert x.tolist() == [1.0, 1.0]
    assert [m.split(",")[0] for m in caplog.messages] == [
        f"vllm_ir.{op.name}.cpp: a result shares memory with 'x'"
    ]


@slow
def test_errors_of_an_entry_keep_their_class_and_text(library):
    op = op_with_entry(unary, "fails")
    for call in (op, op.torch_op):
        with pytest.raises(RuntimeError, match=r"^plain C\+\+ error"):
            call(torch.ones(1))
        with pytest.raises(ValueError, match=r"^two is too many"):
            call(torch.ones(2))
        with pytest.raises(RuntimeError, match=r"^torch error"):
            call(torch.ones(3))


@slow
def test_tracing_and_fakes_use_the_python_side(library):
    op = op_with_entry(unary, "holds")
    with torch._subclasses.FakeTensorMode():
        assert op(torch.empty(3)).shape == (3,)
    leaf = torch.ones(3, requires_grad=True)
    with runs(op, native=1):
        op(leaf).sum().backward()
    assert leaf.grad.tolist() == [1.0] * 3


@slow
def test_an_entry_of_another_signature_is_refused(library):
    op = ir.register_op(toy, name=new_name("entry"))
    cases = {
        "holds": "(Tensor -> Tensor)",
        "pair_": "(Tensor, Tensor, float -> Tensor, Tensor)",
    }
    for entry, got in cases.items():
        text = (
            f"vllm_ir.{op.name}.cpp: entry 'demo::{entry}' does not match native schema: "
            f"(Tensor, Tensor?, float, int?, bool -> Tensor) is needed, got {got}. "
            "Change the function's parameters."
        )
        with raises_exactly(IrValueError, text):
            op.register_impl("cpp", entry=f"demo::{entry}")(not_to_be_run(toy))
        assert list(op.impls) == ["native"]


@slow
def test_an_unknown_entry_names_the_nearest(library):
    op = ir.register_op(toy, name=new_name("entry"))
    with pytest.raises(UnknownNameError) as error:
        op.register_impl("cpp", entry="demo::scal")(not_to_be_run(toy))
    text = str(error.value)
    assert text.startswith(f"vllm_ir.{op.name}.cpp: unknown entry 'demo::scal'. Known: demo::fails")
    assert text.endswith(" Did you mean 'demo::scale'?")


@slow
def test_loading_twice_is_idempotent_and_a_copy_is_a_duplicate(library, tmp_path):
    assert ir.load_entries(str(library)) == [f"demo::{name}" for name in NAMES]
    copied = shutil.copy(library, tmp_path / "copy.so")
    text = (
        f"vllm_ir.load_entries: entry 'demo::scale' of {copied} is already taken by {library}. "
        "Rename one of them."
    )
    with raises_exactly(DuplicateError, text):
        ir.load_entries(copied)
    assert entries_module.entry_library("demo::scale") == str(library)


# ---- libraries that are refused: these need no compiler of C++ -----------------------------------


def test_what_can_t_be_loaded(tmp_path):
    missing, text_file = tmp_path / "missing.so", tmp_path / "text.so"
    text_file.write_text("hello")
    for path, why in [
        (missing, "cannot open shared object file: No such file or directory"),
        (text_file, "file too short"),
    ]:
        with raises_exactly(
            IrValueError, f"vllm_ir.load_entries: {path}: can't be loaded: {path}: {why}"
        ):
            ir.load_entries(path)


def tiny_library(folder, code):
    """Compile a few lines of C."""
    (folder / "tiny.c").write_text(textwrap.dedent(code))
    subprocess.run(["gcc", "-shared", "-fPIC", "tiny.c", "-o", "tiny.so"], cwd=folder, check=True)
    return folder / "tiny.so"


TABLE = """
    #include <stddef.h>
    static struct {{ int abi, major, minor; size_t count; void* entries; }} table =
        {{ {abi}, {major}, {minor}, 0, NULL }};
    void* vllm_ir_entry_table(void) {{ return &table; }}
"""


def torch_version():
    return [int(part) for part in torch.__version__.split("+")[0].split(".")[:2]]


def test_a_library_without_a_table(tmp_path):
    path = tiny_library(tmp_path, "int nothing;")
    with raises_exactly(
        IrValueError,
        f"vllm_ir.load_entries: {path}: has no entry table. "
        "Use VLLM_IR_ENTRY_TABLE in one source file.",
    ):
        ir.load_entries(path)


def test_a_library_of_another_header(tmp_path):
    major, minor = torch_version()
    path = tiny_library(tmp_path, TABLE.format(abi=99, major=major, minor=minor))
    with raises_exactly(
        IrValueError,
        f"vllm_ir.load_entries: {path}: was built with another vllm_ir/entry.h (version 99, "
        "this is 1). Build it again.",
    ):
        ir.load_entries(path)


def test_d35_a_library_built_for_another_torch(tmp_path):
    major, minor = torch_version()
    path = tiny_library(tmp_path, TABLE.format(abi=1, major=major, minor=minor + 1))
    with raises_exactly(
        IrValueError,
        f"vllm_ir.load_entries: {path}: was built for torch {major}.{minor + 1}, but vllm_ir for "
        f"torch {major}.{minor}. Build it again.",
    ):
        ir.load_entries(path)


def test_a_library_of_no_entries(tmp_path):
    major, minor = torch_version()
    path = tiny_library(tmp_path, TABLE.format(abi=1, major=major, minor=minor))
    assert ir.load_entries(path) == []


def test_the_header_is_where_get_include_says():
    assert (Path(ir.get_include()) / "vllm_ir" / "entry.h").is_file()
