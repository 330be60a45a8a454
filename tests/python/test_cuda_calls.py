# SPDX-License-Identifier: Apache-2.0
"""vllm_c on CUDA as far as it goes without a GPU: when it is chosen, and what a call asks of torch.

A library stands in for torch's CUDA devices (cuda_stand_in.cpp). A launch then fails as it does on
a machine without a driver: the error and everything before it can be seen.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from processes import output_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import cpp_extension

import vllm_ir as ir
from vllm_ir import _build_info, cuda_kernels
from vllm_ir.cuda_kernels import has_code_for

ROOT = Path(__file__).parents[2]
BUILT = not _build_info.CUDA_SKIPPED
ARCHITECTURES = "80-real;86-real;89-real;90-real;100-real;120"


# ---- whether this process can run them -----------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 0), ARCHITECTURES, True),
        ((8, 7), ARCHITECTURES, True),  # machine code of 8.0 and 8.6
        ((7, 5), ARCHITECTURES, False),
        ((9, 0), ARCHITECTURES, True),
        ((10, 3), ARCHITECTURES, True),
        ((11, 0), ARCHITECTURES, False),  # the PTX is for 12.0 and newer
        ((12, 1), ARCHITECTURES, True),
        ((13, 0), ARCHITECTURES, True),  # by PTX
        ((13, 0), "80-real;90-real", False),
        ((9, 0), "80-real;90a-real", True),
        ((9, 1), "90a-real", False),
        ((10, 3), "100f-real", True),
        ((12, 0), "100f", False),
        ((8, 6), "90-virtual", False),
        ((10, 0), "90-virtual", True),
        ((9, 0), "native", True),
    ],
)
def test_what_code_runs_on_which_gpu(capability, architectures, runs):
    assert has_code_for(capability, architectures) is runs


@pytest.fixture
def built(monkeypatch):
    """A build with CUDA kernels on a torch with CUDA, which finds two GPUs."""
    monkeypatch.setattr(_build_info, "CUDA_SKIPPED", "")
    monkeypatch.setattr(_build_info, "CUDA_TOOLKIT", "13.0.88")
    monkeypatch.setattr(_build_info, "CUDA_ARCHITECTURES", ARCHITECTURES)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


class Nvml:
    """The driver's management library: each function returns 0 and writes its answer."""

    def __init__(self, version=13000, capabilities=((9, 0), (8, 0)), broken=""):
        self.version, self.capabilities, self.broken = version, capabilities, broken
        self.open = 0

    def __getattribute__(self, name):
        if name.startswith("nvml") and name == object.__getattribute__(self, "broken"):
            return lambda *args: 999
        return object.__getattribute__(self, name)

    def nvmlInit_v2(self):
        self.open += 1
        return 0

    def nvmlShutdown(self):
        self.open -= 1
        return 0

    def nvmlSystemGetCudaDriverVersion(self, version):
        version._obj.value = self.version
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.capabilities)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, gpu):
        gpu._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, gpu, major, minor):
        major._obj.value, minor._obj.value = self.capabilities[gpu.value - 1]
        return 0


def with_driver(monkeypatch, nvml):
    monkeypatch.setattr(cuda_kernels, "_library", lambda: nvml)
    reason = cuda_kernels.why_unusable()
    assert nvml is None or nvml.open == 0
    return reason


def test_usable(built, monkeypatch):
    assert with_driver(monkeypatch, Nvml()) == ""
    assert with_driver(monkeypatch, Nvml(version=14000)) == ""


def test_a_driver_without_answers_says_nothing_against_it(built, monkeypatch):
    assert with_driver(monkeypatch, None) == ""
    for function in [name for name in vars(Nvml) if name.startswith("nvml")]:
        if function != "nvmlShutdown":
            assert with_driver(monkeypatch, Nvml(version=1, broken=function)) == ""


def test_a_gpu_without_code(built, monkeypatch):
    assert with_driver(monkeypatch, Nvml(capabilities=((9, 0), (7, 5)))) == (
        "this machine has a GPU of compute capability 7.5 (hidden ones count too), and the kernels "
        "were compiled by CUDA 13.0.88 for 80-real;86-real;89-real;90-real;100-real;120, for a "
        "driver that runs CUDA up to 13.0; build vllm_ir with TORCH_CUDA_ARCH_LIST='7.5;9.0'"
    )


def test_a_driver_that_is_too_old(built, monkeypatch):
    assert with_driver(monkeypatch, Nvml(version=12080)) == (
        "the kernels were compiled by CUDA 13.0.88, and the driver runs CUDA up to 12.8"
    )


def test_a_driver_compiles_no_ptx_of_a_newer_cuda(built, monkeypatch):
    monkeypatch.setattr(_build_info, "CUDA_TOOLKIT", "13.1.20")
    newer = Nvml(version=13000, capabilities=((13, 0),))
    assert "compute capability 13.0 " in with_driver(monkeypatch, newer)
    assert with_driver(monkeypatch, Nvml(version=13010, capabilities=((13, 0),))) == ""
    assert with_driver(monkeypatch, Nvml(version=13000, capabilities=((12, 0), (9, 0)))) == ""


def test_a_library_without_a_function_says_nothing_against_it(built, monkeypatch):
    class Old(Nvml):
        nvmlDeviceGetCudaComputeCapability = property()  # reading it is an AttributeError

    assert with_driver(monkeypatch, Old(version=1)) == ""


def test_no_gpu(built, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert cuda_kernels.why_unusable() == "torch finds no CUDA GPU"


def test_a_torch_without_cuda(built, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert cuda_kernels.why_unusable() == f"torch {torch.__version__} is not built for CUDA"


def test_a_build_without_cuda(built, monkeypatch):
    monkeypatch.setattr(_build_info, "CUDA_SKIPPED", "VLLM_IR_CUDA=OFF")
    assert cuda_kernels.why_unusable() == (
        "vllm_ir was built without CUDA kernels: VLLM_IR_CUDA=OFF"
    )


def test_a_rejection_tells_why():
    reason = cuda_kernels.why_unusable()
    if not reason:
        pytest.skip("the CUDA kernels are usable here")
    with FakeTensorMode():
        x = torch.empty(2, 8, device="cuda")
    for op, args in {
        ir.ops.rms_norm: (x, None, 1e-6),
        ir.ops.fused_add_rms_norm: (x, x, None, 1e-6),
        ir.ops.silu_and_mul: (x,),
        ir.ops.gelu_and_mul: (x,),
    }.items():
        explained = op.explain(*args)
        (decision,) = [d for d in explained.decisions if d.provider == "vllm_c"]
        assert str(decision) == f'rejected: x is on cuda:0; needs device("x") in {{cpu}}: {reason}'
        assert explained.selected == "native"


# ---- a call --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """The library that stands in for CUDA devices, built."""
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA devices of its own")
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing")
    path = tmp_path_factory.mktemp("cuda") / "stand_in.so"
    done = subprocess.run(
        ["g++", "-std=c++20", "-O0", "-Wall", "-Werror", "-fPIC", "-shared"]
        + [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
        + [f"-I{ROOT}", ROOT / "tests/python/cuda_stand_in.cpp", ROOT / "cpp/torch/cuda_launch.cpp"]
        + ["-o", path]
        + [f"-L{cpp_extension.TORCH_LIB_PATH}", "-lc10", "-ltorch_cpu"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path


CALLS = """
    import torch, vllm_ir
    torch.ops.load_library({path!r})
    on, log = torch.ops.cuda_stand_in.on, torch.ops.cuda_stand_in.taken_log
    ops = torch.ops.vllm_ir_C

    def try_(name, *shape, dtype=torch.float32, weight="", residual="", extra=()):
        x = on(torch.ones(shape, dtype=dtype), "cuda:1")
        args = [x, on(torch.ones(shape, dtype=dtype), residual)] if residual else [x]
        if "norm" in name:
            args += [on(torch.ones(shape[-1], dtype=dtype), weight) if weight else None, 1e-6]
        log()
        try:
            result = getattr(ops, name)(*args, *extra)
            told = None if result is None else (result.shape, result.stride(), result.dtype)
            print("ok", told and (*map(tuple, told[:2]), str(told[2]), str(result.device)))
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
        print(" ", log())
"""
NOT_LAUNCHED = (
    "RuntimeError vllm_ir.{op}: the kernel for x, {x} on cuda:1, was not launched: "
    "CUDA driver version is insufficient for CUDA runtime version. Use the native provider."
)
GUARDED = "  device=1 stream_of=1 handle_of=7 device=0"
built_only = pytest.mark.skipif(not BUILT, reason=f"no CUDA kernels: {_build_info.CUDA_SKIPPED}")


def printed(stand_in, calls):
    return output_of(CALLS.format(path=str(stand_in)) + "    " + calls).splitlines()


@pytest.mark.slow
@built_only
@pytest.mark.parametrize(
    ("call", "op", "x"),
    [
        ("try_('rms_norm', 2, 8, weight='cuda:1')", "rms_norm", "float32 of shape (2, 8)"),
        (
            "try_('fused_add_rms_norm_', 3, 2, 16, dtype=torch.float16, residual='cuda:1')",
            "fused_add_rms_norm",
            "float16 of shape (3, 2, 16)",
        ),
        (
            "try_('silu_and_mul', 4, 8, dtype=torch.bfloat16)",
            "silu_and_mul",
            "bfloat16 of shape (4, 8)",
        ),
        ("try_('gelu_and_mul', 4, 8, extra=('tanh',))", "gelu_and_mul", "float32 of shape (4, 8)"),
    ],
)
def test_a_call_runs_on_the_tensor_s_device_and_stream(stand_in, call, op, x):
    """The device is set and put back, its current stream is used, and the error is clear."""
    assert printed(stand_in, call) == [NOT_LAUNCHED.format(op=op, x=x), GUARDED]


@pytest.mark.slow
@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm", "act_and_mul"])
def test_a_launch_is_on_the_tensor_s_device_and_gets_its_stream(stand_in, op):
    """The device is set while the kernel is launched, and put back also when that fails."""
    name = "silu_and_mul" if op == "act_and_mul" else op
    calls = f"""
    x = on(torch.ones(2, 8), "cuda:1")
    torch.ops.cuda_stand_in.launch(x, {op!r}, True)
    print(log())
    try:
        torch.ops.cuda_stand_in.launch(x, {op!r}, False)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    print(log())
    """
    seen = f"device=1 stream_of=1 handle_of=7 {op}=1 device=0"
    assert printed(stand_in, calls) == [
        seen,
        f"vllm_ir.{name}: the kernel for x, float32 of shape (2, 8) on cuda:1, was not launched: "
        "it was too large. Use the native provider.",
        seen,
    ]


@pytest.mark.slow
@built_only
def test_empty_tensors_launch_nothing(stand_in):
    """So nothing fails, not even without a driver."""
    calls = "try_('rms_norm', 0, 8, dtype=torch.float16); "
    calls += "try_('silu_and_mul', 0, 8, dtype=torch.bfloat16); try_('gelu_and_mul', 2, 0); "
    calls += "try_('fused_add_rms_norm_', 0, 8, residual='cuda:1')"
    assert printed(stand_in, calls)[::2] == [
        "ok ((0, 8), (8, 1), 'torch.float16', 'cuda:1')",
        "ok ((0, 4), (4, 1), 'torch.bfloat16', 'cuda:1')",
        "ok ((2, 0), (1, 1), 'torch.float32', 'cuda:1')",
        "ok None",
    ]


@pytest.mark.slow
@built_only
def test_all_arguments_lie_on_one_gpu(stand_in):
    calls = "try_('rms_norm', 2, 8, weight='cuda:0'); "
    calls += "try_('fused_add_rms_norm_', 2, 8, residual='cuda:0')"
    text = "must be on x's device cuda:1, got cuda:0."
    assert printed(stand_in, calls)[::2] == [
        f"ValueError vllm_ir.rms_norm: weight {text}",
        f"ValueError vllm_ir.fused_add_rms_norm: x_residual {text}",
    ]


@pytest.mark.slow
@pytest.mark.skipif(BUILT, reason="this build has CUDA kernels")
def test_without_cuda_kernels_torch_says_so(stand_in):
    (error, _) = printed(stand_in, "try_('rms_norm', 2, 8)")
    assert error.startswith("NotImplementedError Could not run 'vllm_ir_C::rms_norm'")
