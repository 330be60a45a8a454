# SPDX-License-Identifier: Apache-2.0
"""The tests of the emulated CUDA kernels, tested: each planted fault must be found, by name.

A mutant is the kernels' folder with one text replaced; only the kernels are compiled again.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = Path("cpp/kernels/cuda")
TESTS = ROOT / "tests/cpp/emulation"
ENGINE = ["access.cpp", "block.cpp", "fiber.cpp"]
COMPILER = os.environ.get("CXX", "c++")
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas"]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Mutant:
    """A fault: `old` in `file` becomes `new`; `nth` counts from 0 where `old` is there often."""

    name: str
    file: str
    old: str
    new: str
    run: str  # gtest's filter
    finds: str  # in what the tests print
    nth: int | None = None


def failed(test: str) -> str:
    return f"[  FAILED  ] {test}"


NORM = "CudaRmsNorm/2."
MUTANTS = [
    Mutant(
        "a barrier is missing",
        "row_sum.cuh",
        "__syncthreads();",
        "",
        NORM + "AnyOrder*",
        failed(NORM + "AnyOrderOfThreadsGivesTheSame"),
    ),
    Mutant(
        "some threads skip a barrier",
        "row_sum.cuh",
        "__syncthreads();",
        "if (threadIdx.x < kWarp) __syncthreads();",
        NORM + "AnyOrder*",
        "emulation: divergent barrier: __syncthreads at row_sum.cuh:",
    ),
    Mutant(
        "threads without a row leave before the shuffles",
        "rms_norm.cu",
        "const NormColumns columns =",
        "if (r >= p.rows) return;\n  const NormColumns columns =",
        NORM + "ManyNarrow*",
        "names lanes that do not come",
    ),
    Mutant(
        "the loop over kept vectors has a wrong stride",
        "norm.cuh",
        "kept[k] = row.load(begin + k * step)",
        "kept[k] = row.load(begin + k * (step + N))",
        NORM + "EveryWidth*",
        failed(NORM + "EveryWidthAndLayoutIsTheModelBitForBit"),
    ),
    Mutant(
        "the loop over the rest has a wrong stride",
        "norm.cuh",
        "c < n.cols; c += step",
        "c < n.cols; c += step + N",
        "CudaRmsNorm/0.EveryWidth*",
        failed("CudaRmsNorm/0.EveryWidthAndLayoutIsTheModelBitForBit"),
    ),
    Mutant(
        "a load reads one element too many",
        "vector.cuh",
        "if (c + j >= cols) continue;",
        "if (c + j > cols) continue;",
        NORM + "EveryWidth*",
        "emulation: load outside of the watched memory",
        nth=0,
    ),
    Mutant(
        "a store writes one element too many",
        "vector.cuh",
        "if (c + j >= cols) continue;",
        "if (c + j > cols) continue;",
        NORM + "EveryWidth*",
        "emulation: store outside of the watched memory",
        nth=1,
    ),
    Mutant(
        "the last element is not written",
        "vector.cuh",
        "if (c + j >= cols) continue;",
        "if (c + j >= cols - 1) continue;",
        "CudaActAndMulWidths.Each*",
        failed("CudaActAndMulWidths.EachUpTo2049IsWrittenWhole"),
        nth=1,
    ),
    Mutant(
        "rows are counted in 32 bits",
        "norm.cuh",
        "static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y",
        "static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y)",
        "CudaLarge.TheLastOf*",
        "emulation: load outside of the watched memory",
    ),
    Mutant(
        "the offset of a row has 32 bits",
        "rms_norm.cu",
        "p.x + r * p.x_stride",
        "p.x + static_cast<unsigned>(r * p.x_stride) % 0x80000000u",
        "CudaLarge.RmsNorm*",
        failed("CudaLarge.RmsNormReachesARowBeyondTwoToThe31"),
    ),
    Mutant(
        "the offset of a row of gates has 32 bits",
        "act_and_mul.cu",
        "p.x + r * p.x_stride",
        "p.x + static_cast<unsigned>(r * p.x_stride) % 0x80000000u",
        "CudaLarge.Silu*",
        failed("CudaLarge.SiluAndMulReachesARowBeyondTwoToThe31"),
    ),
    Mutant(
        "pointers are not looked at before wide accesses",
        "rms_norm.cu",
        "wide_pointers({a.out, a.x, a.weight}) &&",
        "",
        NORM + "EveryWidth*",
        "emulation: misaligned access of 16 bytes",
    ),
    Mutant(
        "strides are not looked at before wide accesses",
        "fused_add_rms_norm.cu",
        "wide_strides({a.out_stride, a.residual_out_stride, a.x_stride, a.x_residual_stride}",
        "wide_strides({}",
        "CudaFusedAddRmsNorm/2.EveryWidth*",
        "emulation: misaligned access of 16 bytes",
    ),
    Mutant(
        "the whole row decides on wide accesses, and not its half",
        "act_and_mul.cu",
        "const bool wide = a.cols % N == 0",
        "const bool wide = 2 * a.cols % N == 0",
        "CudaActAndMulWidths.TheWidth*",
        "emulation: misaligned access of 16 bytes",
    ),
    Mutant(
        "the wide path is never taken",
        "rms_norm.cu",
        "const bool wide = ",
        "const bool wide = a.cols < 0 && ",
        NORM + "EveryWidth*",
        "emulation::counts().narrow",
    ),
    Mutant(
        "the norm is of the rounded sum",
        "fused_add_rms_norm.cu",
        "return sum;",
        "return to_floats(rounded_to<T>(sum));",
        "CudaFusedAddRmsNorm/2.Few*",
        failed("CudaFusedAddRmsNorm/2.FewResultsDifferFromNativesRoundingWithAnExactSum"),
    ),
    Mutant(
        "the norm is not rounded before the weight",
        "norm.cuh",
        "product(to_floats(rounded_to<W>(y)), to_floats(w))",
        "product(y, to_floats(w))",
        NORM + "Few*",
        failed(NORM + "FewResultsDifferFromNativesRoundingWithAnExactSum"),
    ),
    Mutant(
        "the activation is not rounded before the product",
        "act_and_mul.cu",
        "product(to_floats(rounded_to<T>(activated)), to_floats(up))",
        "product(activated, to_floats(up))",
        "CudaActAndMul/2.EveryWidth*",
        failed("CudaActAndMul/2.EveryWidthAndLayoutIsTheModelBitForBit"),
    ),
    Mutant(
        "gelu is written with 1 + erf",
        "act_and_mul.cu",
        "erfcf(__fmul_rn(g, -kSqrtHalf))",
        "(1.f + erff(g * kSqrtHalf))",
        "CudaActAndMulFloat.TheActivation*",
        failed("CudaActAndMulFloat.TheActivationIsWithinItsUlps"),
    ),
    Mutant(
        "the variance is over all columns",
        "norm.cuh",
        "if (j < left) sum",
        "sum",
        NORM + "Variance*",
        failed(NORM + "VarianceOverFewerColumnsIsTheModelBitForBit"),
    ),
    Mutant(
        "a kept row is read a second time",
        "norm.cuh",
        "normed<T>(to_floats(kept[k]), weights[k], scale)",
        "normed<T>(to_floats(row.load(begin + k * step)), weights[k], scale)",
        NORM + "EveryWidth*",
        "reads.loaded",
    ),
    Mutant(
        "the batch decides on the order of a sum",
        "rms_norm.cu",
        "norm_shape((a.cols + N - 1) / N)",
        "norm_shape((a.cols + N - 1) / N * (a.rows < 32 ? 4 : 1))",
        "CudaRmsNorm/0.ARow*",
        failed("CudaRmsNorm/0.ARowDoesNotDependOnItsPlaceItsNeighboursOrItsAlignment"),
    ),
    Mutant(
        "no rows are launched",
        "norm_launch.cuh",
        "if (a.rows == 0 || a.cols == 0) return {};",
        "",
        NORM + "Nothing*",
        failed(NORM + "NothingIsLaunchedForNoRowsOrNoColumns"),
    ),
    Mutant(
        "an error is left to the next op",
        "launch.cuh",
        "  cudaGetLastError();\n",
        "",
        "CudaStatus.AFailed*",
        failed("CudaStatus.AFailedLaunchIsReportedAtOnceAndLeavesNothingBehind"),
    ),
]

# What values may not show; the race detector must.
RACES = [
    Mutant(
        "a barrier is missing",
        "row_sum.cuh",
        "__syncthreads();",
        "",
        "CudaRace.RmsNorm",
        "WARNING: ThreadSanitizer: data race",
    ),
    Mutant(
        "two sums share their memory without a barrier between",
        "norm.cuh",
        "rsqrtf(row_sum(sum)",
        "rsqrtf((row_sum(sum) + row_sum(sum)) * 0.5f",
        "CudaRace.RmsNorm",
        "WARNING: ThreadSanitizer: data race",
    ),
]


def checked(command: list[str | Path]) -> None:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def compiled(source: Path, to: Path, kernels: Path, flags: list[str]) -> Path:
    """Compile one file; the headers of the kernels are those under `kernels`."""
    roots = [kernels, ROOT, TESTS / "cuda"]
    includes = [f"-I{root}" for root in roots]
    checked([COMPILER, *FLAGS, *flags, *includes, "-x", "c++", "-c", source, "-o", to])
    return to


def plain_addresses() -> list[str]:
    """Return what to run the race detector with, which can't start at widely random addresses."""
    prefix = ["setarch", "-R"]
    usable = shutil.which("setarch") and subprocess.run([*prefix, "true"], check=False)
    return prefix if usable and usable.returncode == 0 else []


class Bench:
    """The compiled tests and kernels; faulty kernels take the place of the right ones."""

    def __init__(self, folder: Path, tests: list[str], engine: list[str], rest: list[str]) -> None:
        self.folder, self.flags = folder, rest
        self.tests = [
            compiled(TESTS / name, folder / f"{name}.o", ROOT, flags)
            for names, flags in ((ENGINE, engine), (tests, rest))
            for name in names
        ]
        self.kernels = self.compiled_kernels(ROOT, folder)

    def compiled_kernels(self, root: Path, to: Path, only: str = "*.cu") -> dict[str, Path]:
        sources = sorted((root / KERNELS).glob(only))
        return {s.name: compiled(s, to / f"{s.name}.o", root, self.flags) for s in sources}

    def run(self, kernels: dict[str, Path], tests: str) -> subprocess.CompletedProcess[str]:
        """Link some kernels in the place of the right ones and run some of the tests."""
        program = self.folder / "tests"
        objects = [*self.tests, *{**self.kernels, **kernels}.values()]
        libraries = ["-lgtest_main", "-lgtest", "-pthread"]
        checked([COMPILER, *self.flags, *objects, "-o", program, *libraries])
        command = [str(program), f"--gtest_filter={tests}"]
        if self.flags:
            command = [*plain_addresses(), *command]
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )

    def expect_found(self, mutant: Mutant, root: Path) -> None:
        plant(mutant, root)
        only = mutant.file if mutant.file.endswith(".cu") else "*.cu"
        done = self.run(self.compiled_kernels(root, root, only), mutant.run)
        assert done.returncode != 0, "the fault was not found"
        assert mutant.finds in done.stdout, done.stdout[-3000:]


@pytest.fixture(name="bench", scope="module")
def plain_bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    tests = [p.name for p in TESTS.glob("test_*.cpp") if "faults" not in p.name]
    return Bench(tmp_path_factory.mktemp("plain"), sorted(tests), [], [])


@pytest.fixture(name="race_bench", scope="module")
def bench_with_race_detector(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    detector = ["-fsanitize=thread", "-g"]
    engine = ["-DVLLM_IR_EMULATION_TSAN"]
    return Bench(tmp_path_factory.mktemp("race"), ["test_race.cpp"], engine, detector)


def plant(mutant: Mutant, root: Path) -> None:
    """Copy the kernels with the fault in them."""
    shutil.copytree(ROOT / KERNELS, root / KERNELS)
    file = root / KERNELS / mutant.file
    parts = file.read_text().split(mutant.old)
    places = len(parts) - 1
    assert places == 1 if mutant.nth is None else places > mutant.nth, "the source has changed"
    at = (mutant.nth or 0) + 1
    file.write_text(mutant.old.join(parts[:at]) + mutant.new + mutant.old.join(parts[at:]))


def name_of(mutant: Mutant) -> str:
    return mutant.name.replace(" ", "_")


def test_without_a_fault_the_tests_pass(bench):
    done = bench.run({}, ":".join({mutant.run for mutant in MUTANTS}))
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_a_fault_is_found(bench, tmp_path, mutant):
    bench.expect_found(mutant, tmp_path)


def test_without_a_fault_there_is_no_race(race_bench):
    done = race_bench.run({}, "*")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("mutant", RACES, ids=name_of)
def test_a_race_is_found(race_bench, tmp_path, mutant):
    race_bench.expect_found(mutant, tmp_path)
