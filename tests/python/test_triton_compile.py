# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels compiled for GPUs that this machine may not have: what the compiler makes."""

import os
import re
import subprocess

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET", "0") == "1":
    pytest.skip("TRITON_INTERPRET is on: nothing is compiled", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from vllm_ir.providers.triton.kernels import gated_kernel, norm_kernel  # noqa: E402
from vllm_ir.providers.triton.operators import WIDEST_BLOCK, _row_block  # noqa: E402

H100 = GPUTarget("cuda", 90, 32)
MI300 = GPUTarget("hip", "gfx942", 64)
DTYPES = ("fp32", "fp16", "bf16")
ACTIVATIONS = ("silu", "gelu_none", "gelu_tanh")
ALIGNED = frozenset({"x", "residual", "x_stride", "residual_stride"})  # what may be, or not
NEW = ("out", "total", "first")  # always aligned: new memory, and 0


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Compile anew, whatever an earlier run has left behind."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


def compiled(kernel, types, constants, warps, target=H100, aligned=ALIGNED):
    names = kernel.arg_names
    place = {name: (i,) for i, name in enumerate(names)}
    is_aligned = [n for n in types if n in (*NEW, "weight") or n in aligned]
    source = ASTSource(
        kernel,
        {name: types.get(name, "constexpr") for name in names},
        {place[name]: value for name, value in constants.items()},
        {place[name]: [["tt.divisibility", 16]] for name in is_aligned},
    )
    return triton.compile(source, target=target, options={"num_warps": warps})


def norm(dtype, width, *, residual=False, weight="", target=H100, aligned=ALIGNED):
    pointers = dict.fromkeys(("x", "residual", "out", "total"), f"*{dtype}")
    types = {
        **pointers,
        "weight": f"*{weight or dtype}",
        **{"x_stride": "i32", "residual_stride": "i32", "first": "i32", "epsilon": "fp32"},
    }
    block = _row_block(width)
    constants = {
        "WIDTH": width,
        "VARIANCE_SIZE": width,
        "BLOCK": block["BLOCK"],
        "HAS_RESIDUAL": residual,
        "HAS_WEIGHT": bool(weight),
    }
    return compiled(norm_kernel, types, constants, block["num_warps"], target, aligned)


def gated(dtype, width, activation, target=H100):
    types = {"x": f"*{dtype}", "out": f"*{dtype}", "x_stride": "i32", "first": "i32"}
    constants = {"WIDTH": width, "BLOCK": WIDEST_BLOCK, "ACTIVATION": activation}
    return compiled(gated_kernel, types, constants, 4, target)


def accesses(made):
    """Return the kinds of accesses to global memory in PTX."""
    return set(re.findall(r"\b((?:ld|st)\.global[.\w:]*)", made.asm["ptx"]))


def assert_in_registers(made, tmp_path):
    """No thread keeps values in memory: cuobjdump comes with Triton."""
    file = tmp_path / "kernel.cubin"
    file.write_bytes(made.asm["cubin"])
    tool = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/cuobjdump")
    told = subprocess.run(
        [tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True
    ).stdout
    numbers = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told))
    assert (numbers["STACK"], numbers["LOCAL"]) == ("0", "0"), told
    assert 8 <= int(numbers["REG"]) <= 128, told


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [4096, 16384, 32768])
def test_norms_move_16_bytes_at_a_time(dtype, width, tmp_path):
    for residual, weight in ((False, ""), (False, dtype), (True, dtype), (True, "fp32")):
        made = norm(dtype, width, residual=residual, weight=weight)
        assert accesses(made) == {"ld.global.v4.b32", "st.global.v4.b32"}
        assert_in_registers(made, tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_move_16_bytes_at_a_time(dtype, activation, tmp_path):
    made = gated(dtype, 14336, activation)
    assert accesses(made) == {"ld.global.v4.b32", "st.global.v4.b32"}
    assert_in_registers(made, tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_aligned_is_read_value_by_value(dtype, tmp_path):
    bits = "b32" if dtype == "fp32" else "b16"
    odd = norm(dtype, 129, residual=True, weight=dtype)
    assert f"ld.global.{bits}" in accesses(odd)
    assert_in_registers(odd, tmp_path)
    assert accesses(gated(dtype, 129, "silu")) == {f"ld.global.{bits}", f"st.global.{bits}"}
    shifted = norm(dtype, 4096, aligned=frozenset())
    assert accesses(shifted) == {f"ld.global.{bits}", "st.global.v4.b32"}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_compiler_keeps_the_rounding_points(dtype):
    short = dtype.replace("fp", "f")

    def roundings(made):
        """Count the values that are rounded: by conversions, or by products in 16 bits."""
        found = re.findall(rf"(?:cvt\.rn|mul)\.{short}(x2)?(?:\.f32)?\s", made.asm["ptx"])
        return sum(2 if pair else 1 for pair in found)

    values = 4096 // 256  # of each thread
    assert roundings(norm(dtype, 4096)) == values
    assert roundings(norm(dtype, 4096, weight="fp32")) == values
    assert roundings(norm(dtype, 4096, weight=dtype)) == 2 * values
    assert roundings(norm(dtype, 4096, residual=True, weight=dtype)) == 3 * values
    assert roundings(gated(dtype, 4096, "silu")) == 2 * WIDEST_BLOCK // 128


def layout_of_the_sum(made):
    """Return how the summed values lie in threads, which fixes the order of the sum."""
    text = made.asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", text, re.M))
    (name,) = re.findall(r'"tt.reduce"\(.*?\}\) : \(tensor<[^,]*, (#\w+)>', text, re.S)
    return layouts[name]


SOME = (frozenset(), {"x"}, {"x_stride"}, {"x", "x_stride"}, {"residual", "residual_stride"})


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "width", [4098, 129, 20001, *(pytest.param(w, marks=pytest.mark.slow) for w in (4104, 32776))]
)
def test_the_order_of_the_sum_depends_on_the_width_alone(dtype, width):
    """A row alone may be aligned where the rows of a batch are not, and must give the same bits."""
    for residual, weight in ((False, "fp32"), (True, dtype)):
        layouts = {
            layout_of_the_sum(norm(dtype, width, residual=residual, weight=weight, aligned=aligned))
            for aligned in (ALIGNED, *SOME)
        }
        assert len(layouts) == 1, layouts


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_compile_for_amd(dtype):
    made = [norm(dtype, w, residual=True, weight=dtype, target=MI300) for w in (129, 4096, 32768)]
    made += [gated(dtype, 14336, activation, MI300) for activation in ACTIVATIONS]
    for kernel in made:
        assert kernel.asm["hsaco"]
        assert re.findall(r"vgpr_spill_count:\s*(\d+)", kernel.asm["amdgcn"]) == ["0"]
    assert re.search(r"(buffer|global)_load_dwordx4", made[1].asm["amdgcn"])
