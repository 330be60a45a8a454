# SPDX-License-Identifier: Apache-2.0
"""Identity of functions: it changes with all that decides a result, and with nothing else."""

import ctypes
import functools
import importlib
import logging
import os
import re
import shutil
import sys
import textwrap
import threading
import types
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import pytest
import torch
from processes import output_of
from torch import Tensor

import vllm_ir as ir
from vllm_ir import _C, log, rules
from vllm_ir.identity import (
    LibraryFile,
    UnknownIdentity,
    file_digests,
    identify,
    known_identity,
)

# A predicate, and around it all that it may depend on.
PACKAGE = {
    "__init__.py": "",
    "provider.py": """
        import os
        import torch
        from . import helper, config
        from .helper import shared as other_name
        from .kinds import Kind, Limits, Special

        TABLE = {"rows": [1, 2], torch.float16: (torch.bfloat16, None)}
        NAMES = {"a", "b", "c"}

        def accepts(x, y=None, *, z=3):
            from .lazy import late
            small = lambda t: t.dim() < config.LIMITS.most
            if x.dtype in TABLE and "a" in NAMES:
                return helper.direct(x) and small(x)
            return other_name(x) and late(x) and Special().fits(x) and Kind.WIDE is not None
        """,
    "helper.py": """
        from . import deep

        def direct(x):
            return [deep.rows(t) for t in [x]][0]

        def shared(x):
            return x.dim() == 2
        """,
    "deep.py": """
        LEAST = 1

        def rows(x):
            return x.dim() >= LEAST
        """,
    "config.py": """
        from dataclasses import dataclass

        @dataclass(frozen=True)
        class Limit:
            most: int

        LIMITS = Limit(4)
        """,
    "lazy.py": """
        def late(x):
            return True
        """,
    "kinds.py": """
        import enum
        from .base import Base

        class Kind(enum.Enum):
            WIDE = 1

        class Limits:
            most = 3

        class Special(Base):
            def fits(self, x):
                return x.dim() <= self.most()
        """,
    "base.py": """
        class Base:
            def most(self):
                return 3
        """,
    "unrelated.py": "X = 1",
}


class Package:
    """The package above in a folder, imported anew each time that it is asked for."""

    def __init__(self, folder, name="predicates"):
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        for file, text in PACKAGE.items():
            (self.folder / file).write_text(textwrap.dedent(text))

    def edit(self, file, old, new):
        text = (self.folder / file).read_text()
        assert old in text
        (self.folder / file).write_text(text.replace(old, new))

    def load(self):
        """Import it as a fresh process would."""
        name = self.folder.name
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            del sys.modules[module]
        importlib.invalidate_caches()
        sys.path.insert(0, str(self.folder.parent))
        old, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            return importlib.import_module(f"{name}.provider")
        finally:
            sys.dont_write_bytecode = old
            sys.path.pop(0)

    def digest(self):
        return identify(self.load().accepts).digest


@pytest.fixture
def package(tmp_path):
    yield Package(tmp_path)
    for module in [m for m in sys.modules if m.partition(".")[0] == "predicates"]:
        del sys.modules[module]


EDITS = {
    "its own body": ("provider.py", "x.dtype in TABLE", "x.dtype not in TABLE"),
    "a default": ("provider.py", "y=None", "y=1"),
    "a default of a keyword": ("provider.py", "z=3", "z=4"),
    "a lambda in the body": ("provider.py", "t.dim() <", "t.dim() <="),
    "a constant of the module": ("provider.py", "torch.bfloat16, None", "torch.bfloat16, 1"),
    "a set of the module": ("provider.py", '"c"}', '"d"}'),
    "a comment in the file": ("provider.py", "import os", "import os  # for nothing"),
    "a helper module": ("helper.py", "return [deep", "return not [deep"),
    "a helper imported by name": ("helper.py", "== 2", "== 3"),
    "a helper two imports away": ("deep.py", ">= LEAST", "> LEAST"),
    "a constant two imports away": ("deep.py", "LEAST = 1", "LEAST = 2"),
    "a value of a frozen dataclass": ("config.py", "Limit(4)", "Limit(5)"),
    "a function imported while it runs": ("lazy.py", "True", "False"),
    "a method": ("kinds.py", "x.dim() <=", "x.dim() <"),
    "a base class": ("base.py", "return 3", "return 4"),
    "a member of an enum": ("kinds.py", "WIDE = 1", "WIDE = 2"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_changes_the_identity(package, edit):
    before = package.digest()
    file, old, new = EDITS[edit]
    package.edit(file, old, new)
    changed = package.digest()
    assert changed != before
    package.edit(file, new, old)
    assert package.digest() == before


def test_what_nothing_refers_to_does_not_count(package):
    before = package.digest()
    package.edit("unrelated.py", "X = 1", "X = 2")
    assert package.digest() == before


def test_the_place_does_not_count(package, tmp_path):
    before = package.digest()
    shutil.copytree(package.folder, tmp_path / "elsewhere" / package.folder.name)
    package.folder = tmp_path / "elsewhere" / package.folder.name
    assert package.digest() == before


def test_a_value_that_changes_while_the_process_runs(package):
    module = package.load()
    before = identify(module.accepts)
    module.helper.deep.LEAST = 7
    assert identify(module.accepts) != before
    module.helper.deep.LEAST = 1
    assert identify(module.accepts) == before


def test_a_file_that_was_edited_after_its_import_is_not_what_runs(package):
    """Old code with a new file is neither the old state nor the new one."""
    module = package.load()
    before = identify(module.accepts).digest
    package.edit("deep.py", ">= LEAST", "> LEAST")
    stale = identify(module.accepts).digest
    assert stale not in (before, package.digest())


def test_a_fresh_process_with_another_seed_and_home(package, tmp_path):
    script = f"""
        import sys
        sys.path.insert(0, {str(package.folder.parent)!r})
        from predicates.provider import accepts
        from vllm_ir.identity import identify
        print(identify(accepts).digest)
    """
    seen = set()
    for seed in ("1", "2"):
        home = tmp_path / f"home{seed}"
        home.mkdir()
        env = {"PYTHONHASHSEED": seed, "HOME": str(home), "UNRELATED_VARIABLE": seed}
        seen.add(output_of(script, env))
    assert len(seen) == 1
    assert seen == {package.digest() + "\n"}


# ---- the environment -----------------------------------------------------------------------------


def by_getenv():
    return os.getenv("VLLM_IR_TEST_SWITCH") == "1"


def by_environ():
    return os.environ.get("VLLM_IR_TEST_SWITCH", "0") == "1"


def by_item():
    return os.environ["VLLM_IR_TEST_SWITCH"] == "1"


def by_membership():
    return "VLLM_IR_TEST_SWITCH" in os.environ


def by_unknown_name(name):
    return os.environ.get(name, "FALSE") == "TRUE"


def all_of_it():
    return dict(os.environ)


@pytest.mark.parametrize("fn", [by_getenv, by_environ, by_item, by_membership])
def test_a_variable_that_is_read_counts_and_others_do_not(monkeypatch, fn):
    unset = identify(fn)
    monkeypatch.setenv("VLLM_IR_TEST_OTHER", "1")
    assert identify(fn) == unset
    monkeypatch.setenv("VLLM_IR_TEST_SWITCH", "1")
    on = identify(fn)
    monkeypatch.setenv("VLLM_IR_TEST_SWITCH", "0")
    assert len({unset, on, identify(fn)}) == 3


@pytest.mark.parametrize("fn", [by_unknown_name, all_of_it])
def test_a_variable_whose_name_is_not_in_the_code_is_unknown(fn):
    text = (
        "an environment variable whose name isn't written there "
        rf"\('os.environ(.get)?' in {fn.__name__}\(\)\)"
    )
    with pytest.raises(UnknownIdentity, match=f"^{text}$"):
        identify(fn)


# ---- values --------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Frozen:
    x: object
    y: int = 0


@dataclass
class Thawed:
    x: int


class Colour(Enum):
    RED = 1
    BLUE = 2


def plain(x):
    return x + 1


def other(x):
    return x + 2


def holding(value):
    def closure(x):
        return x, value

    return closure


class Kernel:
    """As Triton's: a function, configurations, and what was made of them so far."""

    __module__ = "triton.runtime.jit"

    def __init__(self, fn, warps):
        self.fn = fn
        self.num_warps = warps
        self.cache = object()


DIFFERENT = {
    "functions of Triton kernels": (Kernel(plain, 4), Kernel(other, 4)),
    "settings of Triton kernels": (Kernel(plain, 4), Kernel(plain, 8)),
    "None and False": (None, False),
    "0 and False": (0, False),
    "1 and 1.0": (1, 1.0),
    "0.0 and -0.0": (0.0, -0.0),
    "text and bytes": ("a", b"a"),
    "tuple and list": ((1,), [1]),
    "how a list is nested": ([[1], 2], [[1, 2]]),
    "a dict's value": ({"a": 1}, {"a": 2}),
    "a dict's order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "sets": ({1, 2}, {1, 3}),
    "set and frozenset of other size": (frozenset({1}), frozenset({1, 2})),
    "ranges": (range(3), range(4)),
    "slices": (slice(1, 2), slice(1, 3)),
    "dtypes": (torch.float16, torch.bfloat16),
    "devices": (torch.device("cpu"), torch.device("meta")),
    "patterns": (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
    "flags of patterns": (re.compile("a"), re.compile("a", re.IGNORECASE)),
    "named tuples": (Point(1, 2), Point(1, 3)),
    "named tuple and tuple": (Point(1, 2), (1, 2)),
    "frozen dataclasses": (Frozen(1), Frozen(2)),
    "members of an enum": (Colour.RED, Colour.BLUE),
    "functions": (plain, other),
    "closures": (holding(1), holding(2)),
    "functions in closures": (holding(plain), holding(other)),
    "arguments of partials": (functools.partial(plain, 1), functools.partial(plain, 2)),
    "functions of partials": (functools.partial(plain, 1), functools.partial(other, 1)),
    "cached functions": (functools.cache(plain), functools.cache(other)),
    "methods of frozen objects": (Frozen(1).__eq__, Frozen(2).__eq__),
    "builtins": (len, max),
    "functions of torch": (torch.nn.functional.relu, torch.nn.functional.gelu),
    "methods of torch": (torch.Tensor.add, torch.Tensor.mul),
    "classes": (Frozen, Thawed),
    "modules of torch": (torch, torch.nn),
    "aliases of types": (list[int], list[str]),
    "unions": (int | str, int | bytes),
    "rules": (rules.is_none("y"), rules.is_none("z")),
    "ops": (ir.ops.rms_norm, ir.ops.fused_add_rms_norm),
    "overloads": (ir.ops.fused_add_rms_norm, ir.ops.fused_add_rms_norm.maybe_inplace),
    "implementations": (ir.ops.rms_norm.impls["native"], ir.ops.rms_norm.impls["vllm_c"]),
    "operators": (torch.ops.aten.add, torch.ops.aten.mul),
    "overloads of operators": (torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar),
    "decorated by torch": (torch.no_grad()(plain), torch.no_grad()(other)),
    "decorators of torch": (torch.no_grad()(plain), torch.enable_grad()(plain)),
    "order": ((1, 2), (2, 1)),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_values_have_different_identities(case):
    first, second = DIFFERENT[case]
    assert identify(first) == identify(first)
    assert identify(first) != identify(second)
    assert identify(holding(first)) != identify(holding(second))


def test_equal_values_made_twice_are_equal():
    def make():
        return [
            {"a": [Frozen(Point(1, 2)), {3, 4, "b"}]},
            functools.partial(holding(plain), y=frozenset("abc")),
            re.compile("x"),
            lambda x: x,
        ]

    assert identify(*make()) == identify(*make())


def test_a_cycle_ends():
    loop: list = [1]
    loop.append(loop)
    assert identify(loop) == identify(loop)
    assert identify(even) == identify(even)
    assert identify(even) != identify(odd)


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


logger = logging.getLogger(__name__)
_lock = threading.Lock()


def logs_and_locks(x):
    with _lock:
        logger.debug("x")
    return x


def test_loggers_and_locks_have_no_say():
    assert identify(logs_and_locks) == identify(logs_and_locks)


# ---- what can't be known -------------------------------------------------------------------------


class Stateful:
    def __init__(self):
        self.limit = 3

    def method(self, x):
        return x.dim() < self.limit


_stateful = Stateful()


def reads_state(x):
    return _stateful.method(x)


def reads_a_file(x):
    return open("limits").read()


def evaluates(x):
    return eval("x")


def imports_by_name(name):
    return importlib.import_module(name)


def looks_for_a_module(x):
    return sys.modules["processes"].run_python(x)


def takes_a_module(x):
    return getattr(processes_module, x)


import processes as processes_module  # noqa: E402


class Raising:
    """Raises at every look, and wherever it can."""

    def __getattribute__(self, name):
        raise RuntimeError(f"no {name}")


def deep(n):
    fn = plain
    for _ in range(n):
        fn = holding(fn)
    return fn


UNKNOWN = {
    "an object that raises": (Raising(), "an object that can't be looked at (RuntimeError)"),
    "what is nested too deep": (deep(2000), "an object that can't be looked at (RecursionError)"),
    "the state of an object": (
        reads_state,
        "the state of a Stateful object ('_stateful.method' in reads_state())",
    ),
    "a bound method": (Stateful().method, "the state of a Stateful object"),
    "a dataclass that may change": (Thawed(1), "the state of a Thawed object"),
    "inside a container": ([{"a": Thawed(1)}], "the state of a Thawed object"),
    "in a closure": (
        holding(torch.ones(1)),
        "the state of a Tensor object ('value' in holding.<locals>.closure())",
    ),
    "a file that is read": (reads_a_file, "a call of open() ('open' in reads_a_file())"),
    "eval": (evaluates, "a call of eval() ('eval' in evaluates())"),
    "an import by a computed name": (
        imports_by_name,
        "a call of import_module() ('importlib.import_module' in imports_by_name())",
    ),
    "modules by their names": (
        looks_for_a_module,
        "a look into sys.modules ('sys.modules' in looks_for_a_module())",
    ),
    "a module as a value": (
        takes_a_module,
        "the module processes, taken as a value ('processes_module' in takes_a_module())",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_can_t_be_known_says_so(case):
    value, text = UNKNOWN[case]
    with pytest.raises(UnknownIdentity) as error:
        identify(value)
    assert str(error.value) == text


def test_a_function_without_a_file_is_unknown():
    scope = {}
    exec("def typed(x):\n    return x", scope)
    with pytest.raises(UnknownIdentity) as error:
        identify(scope["typed"])
    assert str(error.value) == "the function typed without a source file"


def test_the_warning_comes_once_and_says_what_to_do(caplog):
    log.forget_once()
    for _ in range(2):
        assert known_identity("vllm_ir.toy.mine", reads_state) is None
    assert caplog.messages == [
        "vllm_ir.toy.mine: compile caches need to know what decides the result, got the state of a "
        "Stateful object ('_stateful.method' in reads_state()). They are bypassed: each process "
        "compiles anew. Use functions in files, plain values and frozen dataclasses."
    ]
    assert known_identity("vllm_ir.toy.mine", plain) is not None


# ---- ops and operators ---------------------------------------------------------------------------


def calls_ops(x):
    y = ir.ops.rms_norm(x, None, 1e-6)
    return torch.ops.vllm_ir.fused_add_rms_norm(x, y, None, 1e-6)


def test_the_ops_that_are_called_are_told():
    assert identify(calls_ops).ops == {"rms_norm", "fused_add_rms_norm"}
    assert identify([{ir.ops.rms_norm}]).ops == {"rms_norm"}
    assert identify(plain).ops == frozenset()


def fake_of_test(x):
    return torch.empty_like(x)


def test_an_operator_in_python_counts_by_its_schema_its_files_and_its_fake():
    name = "vllm_ir_test_identity::half"
    definition = torch.library.custom_op(name, mutates_args=())(_half)
    definition.register_fake(fake_of_test)
    operator = torch.ops.vllm_ir_test_identity.half
    before = identify(operator)
    assert identify(definition) == before
    operator(torch.ones(2))
    with torch._subclasses.FakeTensorMode():
        operator(torch.ones(2))
    assert identify(operator) == before  # torch's wrapper of a fake remembers that it ran
    definition._abstract_fn = lambda x: torch.empty_like(x, dtype=torch.float64)
    assert identify(operator) != before


def _half(x: Tensor) -> Tensor:
    return x / 2


def test_an_operator_of_a_python_library_counts_by_its_file(tmp_path):
    file = tmp_path / "library_of_test.py"
    text = """if True:
        import torch
        library = torch.library.Library("vllm_ir_test_library", "FRAGMENT")
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
    """
    file.write_text(text)
    scope: dict = {}
    exec(compile(text, str(file), "exec"), scope)
    operator = torch.ops.vllm_ir_test_library.twice
    before = identify(operator)
    file.write_text(text.replace("x * 2", "x + x"))
    assert identify(operator) != before
    scope["library"]._destroy()


def test_an_operator_of_a_library_counts_by_the_content_of_the_library(monkeypatch):
    operator = torch.ops.vllm_ir_C.rms_norm
    before = identify(operator)
    looked_at = []

    def library_digest(path):
        looked_at.append(path)
        return "another content"

    monkeypatch.setattr("vllm_ir.identity.operators.library_digest", library_digest)
    assert identify(operator) != before
    assert looked_at == [os.path.realpath(_C.__file__)]


def test_an_operator_that_nobody_has_registered_is_unknown(monkeypatch):
    monkeypatch.setattr("vllm_ir.identity.operators.libraries_that_mention", lambda text: [])
    with pytest.raises(UnknownIdentity) as error:
        identify(torch.ops.vllm_ir_C.rms_norm)
    text = "the operator vllm_ir_C::rms_norm, whose library isn't known"
    assert str(error.value) == text


# ---- files and libraries -------------------------------------------------------------------------


def test_a_library_counts_by_its_content(tmp_path):
    file = tmp_path / "kernel.so"
    file.write_bytes(b"first")
    before = identify(LibraryFile(str(file)))
    file.write_bytes(b"other")
    assert identify(LibraryFile(str(file))) != before
    (tmp_path / "copy.so").write_bytes(b"first")
    assert identify(LibraryFile(str(tmp_path / "copy.so"))) == before
    file.unlink()
    with pytest.raises(UnknownIdentity) as error:
        identify(LibraryFile(str(file)))
    assert str(error.value) == f"the file {file}, which can't be read (No such file or directory)"


def test_a_library_that_was_replaced_since_it_was_loaded_is_unknown(tmp_path):
    file, new = tmp_path / "replaced.so", tmp_path / "new.so"
    shutil.copy(importlib.import_module("_struct").__file__, file)
    library = ctypes.CDLL(str(file))
    before = identify(library)
    assert identify(library) == before
    shutil.copy(file, new)
    os.replace(new, file)
    for _ in range(2):
        with pytest.raises(UnknownIdentity) as error:
            identify(library)
        text = f"the library {file}, which was replaced since it was loaded"
        assert str(error.value) == text


def test_a_file_is_read_again_only_when_it_changed(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("a")
    old = file.stat().st_mtime_ns
    first = file_digests.file_digest(str(file))
    file.write_text("b")
    os.utime(file, ns=(old, old))  # same size and times: the file is too young to be trusted
    assert file_digests.file_digest(str(file)) != first

    monkeypatch.setattr(file_digests, "_SETTLED_NS", -(10**18))
    file_digests.file_digest(str(file))
    monkeypatch.setattr(file_digests.Path, "read_bytes", lambda path: pytest.fail("read again"))
    file_digests.file_digest(str(file))


def test_a_module_that_is_only_called_like_one_of_python_s_counts_by_its_content(tmp_path):
    """A module of the user's with the name of a module of the standard library."""
    module = types.ModuleType("statistics")
    file = tmp_path / "statistics.py"
    text = "def mean(x):\n    return x\n"
    file.write_text(text)
    module.__file__ = str(file)
    exec(compile(text, str(file), "exec"), vars(module))
    kept = sys.modules.get("statistics")
    sys.modules["statistics"] = module
    try:
        before = identify(module.mean)
        file.write_text(text.replace("return x", "return -x"))
        assert identify(module.mean) != before
    finally:
        sys.modules.pop("statistics")
        if kept is not None:
            sys.modules["statistics"] = kept
