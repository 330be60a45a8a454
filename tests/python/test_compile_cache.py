# SPDX-License-Identifier: Apache-2.0
"""No stale artifact is used, and no fresh one is made twice: runs in processes of their own.

H2, H3 and D30 of the failures that this backend must not have: whatever decides the result is in
the key of Inductor's caches.
"""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from cached_runs import BYPASS, HIT, MISS, Run, outcomes_of, write_package
from torch.utils import cpp_extension
from torch.utils.cpp_extension import TORCH_LIB_PATH

import vllm_ir as ir

pytestmark = pytest.mark.slow

# What is edited in the user's package: (file, old text, new text). None changes what is computed.
EDITS = {
    "the implementation": ("ops", "kernels.multiply(x, factor)", "kernels.multiply(x, factor) "),
    "a helper of the implementation": ("kernels", "factor * x", "x * factor"),
    "the native function": ("kernels", "return x * factor", "return factor * x"),
    "the predicate": ("predicates", "return limits", "return bool(x.dtype) and limits"),
    "a helper of the predicate": ("limits", "<=", "<"),
    "a number two imports away": ("numbers", "4", "5"),
}
RULED = "op.set_default(['ruled', 'native'])"
# What a process chooses before it compiles.
CHOICES = {
    "the priority": {"setup": RULED},
    "a longer priority": {"setup": "op.set_default(['mine', 'ruled', 'native'])"},
    "batch invariance": {"setup": "ir.set_batch_invariant(True)"},
    "strict mode": {"setup": "ir.set_strict(True)"},
    "a fake function": {"setup": "op.register_fake(ops.kernels.shapes)"},
    "strict numerics": {"config": {"strict_numerics": True}},
    "what inputs may be overwritten": {"config": {"donate_graph_inputs": False}},
    "the fusions": {"config": {"fusions": ()}},
    "a variable that the predicate reads": {"env": {"USER_SWITCH": "on"}},
}
# What has no say.
SAME = {
    "nothing": {},
    "a variable that nobody reads": {"env": {"USER_OTHER_SWITCH": "on"}},
    "the home folder": {"env": {"HOME": "/nonexistent"}},
    "a scope in place of a default": {
        "setup": "op.set_default([]); op.set_priority(['mine', 'native']).__enter__()"
    },
    "a provider that nobody asks for": {
        "setup": "ir.ops.rms_norm.register_impl('late')(ir.ops.rms_norm.impls['native'].impl_fn)"
    },
}
UNKNOWN_OP = """
    class Scale:
        factor = 2

    scale = Scale()

    @ir.register_op(name="user_unknown")
    def unknown(x: Tensor) -> Tensor:
        return x * scale.factor
"""
STATEFUL = {
    "predicates": ("return limits.is_small(x)", "return limits.SETTINGS.most >= x.dim()"),
    "limits": ("MOST\n", "MOST\n\n        class Settings:\n            most = 4\n\n"
               "        SETTINGS = Settings()\n"),
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder: what is compiled once for all, a header above all, takes longest."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, cache):
    """The outcome of each run by name; they follow each other on one cache folder."""
    folder = tmp_path_factory.mktemp("packages")

    def package(name, **changes):
        return write_package(folder / name.replace(" ", "_"), **changes)

    base = package("base")
    runs = {"first": Run(base), "again": Run(base), "another checkout": Run(package("copy"))}
    for name, (file, old, new) in EDITS.items():
        runs[name] = Run(package(name, **{file: (old, new)}))
    for name, change in {**CHOICES, **SAME}.items():
        runs[name] = Run(base, **change)
    runs["the priority again"] = Run(base, setup=RULED)
    runs["batch invariance again"] = Run(base, **CHOICES["batch invariance"])
    runs["a rule"] = Run(package("a rule", ruled=("2)", "4)")), setup=RULED)
    runs["with an unknown op"] = Run(package("unknown op", append=UNKNOWN_OP))
    runs["with an unknown op again"] = runs["with an unknown op"]
    runs["stateful"] = runs["stateful again"] = Run(package("stateful", **STATEFUL))
    runs |= _donating_and_not(package)
    runs["last"] = Run(base)
    return dict(zip(runs, outcomes_of(list(runs.values()), cache), strict=True))


def _donating_and_not(package):
    runs = {}
    for order in (["donating", "functional"], ["functional", "donating"]):
        folder = package(f"{order[0]} first", salt=order[0])
        for i, function in enumerate(order * 2):
            name = f"{order[0]} first: {i}"
            runs[name] = Run(folder, setup="op.set_default(['writes'])", function=function)
    return runs


def test_the_first_run_finds_nothing(outcomes):
    assert outcomes["first"].caches == MISS
    assert outcomes["first"].cached == [False]


@pytest.mark.parametrize("same", ["again", "another checkout", *SAME, "last"])
def test_an_equal_run_finds_the_result_and_its_report(outcomes, same):
    outcome = outcomes[same]
    assert outcome.caches == HIT
    assert (outcome.right, outcome.untouched) == (True, True)
    assert (outcome.selected, outcome.cached) == (["mine"], [True])
    assert outcome.messages == []


@pytest.mark.parametrize("change", [*EDITS, *CHOICES, "a rule"])
def test_h3_a_run_that_differs_finds_nothing_stale(outcomes, change):
    outcome = outcomes[change]
    assert outcome.caches == MISS
    assert (outcome.right, outcome.untouched) == (True, True)
    ruled = change in ("the priority", "a rule")
    assert (outcome.selected, outcome.cached) == (["ruled" if ruled else "mine"], [False])


def test_a_choice_that_was_made_before_finds_its_own_result(outcomes):
    assert outcomes["the priority again"].caches == HIT
    assert outcomes["the priority again"].selected == ["ruled"]


def test_code_that_calls_eager_operators_finds_them_in_another_process(outcomes):
    """Batch invariance: lowering defines the operators, and it doesn't run on a hit."""
    again = outcomes["batch invariance again"]
    assert (again.caches, again.right, again.selected) == (HIT, True, ["mine"])


@pytest.mark.parametrize("first", ["donating", "functional"])
def test_h2_donating_and_functional_calls_never_share_code(outcomes, first):
    found = [outcomes[f"{first} first: {i}"] for i in range(4)]
    assert [o.caches for o in found] == [MISS, MISS, HIT, HIT]
    assert all(o.right and o.selected == ["writes"] for o in found)
    untouched = [first == "functional", first == "donating"]
    assert [o.untouched for o in found] == untouched * 2


def test_what_has_no_identity_is_compiled_in_each_process_and_says_so(outcomes):
    for name in ("stateful", "stateful again"):
        outcome = outcomes[name]
        assert outcome.caches == BYPASS
        assert (outcome.right, outcome.selected, outcome.cached) == (True, ["mine"], [False])
        assert outcome.messages == [
            "vllm_ir.user_scaled.mine: compile caches need to know what decides the result, got "
            "the state of a Settings object ('limits.SETTINGS.most' in accepts()). They are "
            "bypassed: each process compiles anew. Use functions in files, plain values and frozen "
            "dataclasses."
        ]


def test_an_op_that_the_graph_does_not_call_needs_no_identity(outcomes):
    first, again = outcomes["with an unknown op"], outcomes["with an unknown op again"]
    assert (first.caches, again.caches) == (MISS, HIT)
    assert first.messages == again.messages == []


def test_fresh_interpreters_share_results_and_d30_see_an_edit(tmp_path, cache):
    same = write_package(tmp_path / "same", salt="fresh")
    edited = write_package(tmp_path / "edited", salt="to be edited")
    runs = [Run(same), Run(edited)]
    first = outcomes_of(runs, cache, {"PYTHONHASHSEED": "1"})
    file = Path(edited) / "user" / "kernels.py"
    file.write_text(file.read_text().replace("return factor * x", "return factor * x + 1"))
    (tmp_path / "home").mkdir()
    moved = {"HOME": str(tmp_path / "home"), "UNRELATED_VARIABLE": "1", "PYTHONHASHSEED": "2"}
    second = outcomes_of(runs, cache, moved)
    assert [o.caches for o in first] == [MISS, MISS]
    assert [o.right for o in first] == [True, True]
    assert [o.caches for o in second] == [HIT, MISS]
    assert [o.right for o in second] == [True, False]  # it adds one, as edited
    assert [o.cached for o in second] == [[True], [False]]
    assert second[0].selected == ["mine"]


# ---- a kernel behind an entry --------------------------------------------------------------------

KERNEL = """
    #include <ATen/ops/mul.h>

    #include "vllm_ir/entry.h"

    at::Tensor scaled(const at::Tensor& x, double factor) { return at::mul(x, factor); }

    VLLM_IR_ENTRY_TABLE(vllm_ir::entry<&scaled>("user::scaled"))
"""
REGISTER = """
    import os

    ir.load_entries(os.environ["USER_KERNEL"])

    @scaled.register_impl("compiled", entry="user::scaled")
    def compiled(x: Tensor, factor: float) -> Tensor:
        return x * factor

    scaled.set_default(["compiled"])
"""


def test_h3_the_kernel_behind_an_entry(tmp_path, cache):
    library, same, changed = (tmp_path / f"{name}.so" for name in ("kernel", "same", "changed"))
    (tmp_path / "kernel.cpp").write_text(KERNEL)
    subprocess.run(
        ["g++", "-std=c++20", "-O0", "-fPIC", "-shared"]
        + [f"-I{ir.get_include()}", f"-I{sysconfig.get_path('include')}"]
        + [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
        + ["kernel.cpp", "-o", str(library), f"-L{TORCH_LIB_PATH}", "-lc10", "-ltorch_cpu"],
        cwd=tmp_path,
        check=True,
    )
    shutil.copy(library, same)
    changed.write_bytes(library.read_bytes() + b"\n")  # behind the end of what is loaded
    base = write_package(tmp_path / "base", append=REGISTER)
    runs = [Run(base, env={"USER_KERNEL": str(path)}) for path in (library, same, changed)]
    found = outcomes_of(runs, cache)
    assert [o.caches for o in found] == [MISS, HIT, MISS]
    assert all(o.right and o.selected == ["compiled"] for o in found)
