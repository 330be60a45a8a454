# SPDX-License-Identifier: Apache-2.0
"""The benches of the compiler count rightly: calls in generated code, allocations; goals hold."""

import sys
from pathlib import Path

import pytest
import torch

import vllm_ir as ir

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from allocations import Allocations, add_up, allocations_of
from bench_compile import run_subject
from compile_contenders import contenders
from compile_subjects import HIDDEN, LINKS, Subject
from generated_code import Code, code_of, read_code
from torch._inductor.utils import fresh_cache

compiles = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

MODULE = """
class Runner:
    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        assert_size_stride(arg0_1, (4, 8), (8, 1), 'input')
        buf0 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
        cpp_fused__to_copy_add_0(arg0_1, buf0)
        extern_kernels.mm(reinterpret_tensor(buf0, (8, 4), (1, 8), 0), arg1_1, out=buf0)
        buf1 = torch.ops.vllm_ir_C.rms_norm.default(buf0, None, 1e-06)
        buf2 = buf1[0]
        cpp_fused_clone_1(buf2, buf0)
        arg0_1.copy_(buf2)
        triton_poi_fused_add_2.run(buf0, 32, stream=stream0)
        return (buf0, )
"""


def test_generated_code_is_counted_call_by_call() -> None:
    code = read_code([MODULE])
    assert code == Code(
        kernels=("cpp_fused__to_copy_add_0", "cpp_fused_clone_1", "triton_poi_fused_add_2"),
        externs=(
            "extern_kernels.mm",
            "torch.ops.vllm_ir_C.rms_norm.default",
            "arg0_1.copy_",
        ),
        allocated=1,
    )
    assert code.calls == 6
    assert code.copies == 2  # a cast isn't one


def test_a_module_without_its_function_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"must have one function 'call', got 0\.$"):
        read_code(["x = 1"])


@compiles
def test_code_of_what_was_compiled() -> None:
    torch._dynamo.reset()
    x, y = torch.ones(8, 8), torch.ones(8, 8)
    with fresh_cache(), torch.no_grad():
        code = code_of(torch.compile(lambda x, y: (x + 1) @ y), x, y)
    assert (len(code.kernels), code.externs, code.allocated) == (1, ("extern_kernels.mm",), 2)


def test_memory_is_added_up() -> None:
    assert add_up([100, 4, -4, 50, -100, 60]) == Allocations(count=3, total=210, peak=150)
    assert add_up([]) == Allocations(0, 0, 0)


def test_allocations_are_those_of_the_call() -> None:
    x = torch.zeros(256)

    def call() -> torch.Tensor:
        y = torch.empty(512)
        del y
        return x.clone()

    assert allocations_of(call) == Allocations(count=2, total=3072, peak=2048)
    assert allocations_of(lambda: x.add_(1)) == Allocations(0, 0, 0)


@compiles
def test_a_chain_of_in_place_norms_is_what_one_writes_by_hand() -> None:
    with torch.inference_mode():
        rows = run_subject(Subject("chain", 4, torch.bfloat16), threads=1, rounds=2)
    assert list(rows) == list(contenders(1))
    lowered, hand = rows["lowered vllm_c"], rows["by hand"]
    kernel = "torch.ops.vllm_ir_C.fused_add_rms_norm_.default"
    assert lowered.code == rows["by hand, compiled"].code == Code((), (kernel,) * LINKS, 0)
    assert lowered.kept == 0
    assert lowered.memory == hand.memory == Allocations(0, 0, 0)
    native, plain = rows["lowered native"], rows["compiled native"]
    assert native.code is not None
    assert plain.code is not None
    assert native.code.externs == plain.code.externs == ()
    assert len(native.code.kernels) <= len(plain.code.kernels)
    assert native.memory == plain.memory
    assert rows["eager native"].memory.count > LINKS


@pytest.mark.slow
@compiles
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_decoder_layer_is_what_one_writes_by_hand(dtype: torch.dtype, tokens: int) -> None:
    with torch.inference_mode():
        rows = run_subject(Subject("layer", tokens, dtype), threads=1, rounds=2)
    lowered, hand = rows["lowered vllm_c"], rows["by hand, compiled"]
    assert lowered.kept == 0
    assert lowered.code is not None
    assert hand.code is not None
    assert sorted(lowered.code.externs) == sorted(hand.code.externs)
    assert len(lowered.code.kernels) == len(hand.code.kernels)
    assert lowered.memory == hand.memory
    native, plain = rows["lowered native"], rows["compiled native"]
    assert native.code is not None
    assert plain.code is not None
    assert native.code.calls == plain.code.calls
    assert native.memory == plain.memory


def test_a_row_that_ran_something_else_gets_no_time() -> None:
    ways = contenders(1)
    args = (torch.ones(2, HIDDEN), torch.ones(2, HIDDEN), torch.ones(HIDDEN), 1e-6)
    for label, provider in (("eager native", "native"), ("lowered vllm_c", "vllm_c")):
        with ways[label].scope():
            assert ir.ops.fused_add_rms_norm.dispatch(*args).provider == provider
