# SPDX-License-Identifier: Apache-2.0
"""Building and installing: the torch that is found, the wheel, what a build says about CUDA."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TORCH = Path(torch.__file__).parent
NVCC = shutil.which("nvcc")
SETTINGS = ("VLLM_IR_TORCH_ROOT", "VLLM_IR_CUDA", "CUDA", "TORCH_CUDA")  # what names begin with

pytestmark = pytest.mark.slow


def run(
    command: Sequence[str | Path], env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command outside the source tree, so that Python can't import from there by accident."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith((*SETTINGS, "PYTHON"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=Path(sys.prefix),
        env={**clean, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def checked(command: Sequence[str | Path], env: dict[str, str] | None = None) -> str:
    done = run(command, env)
    assert done.returncode == 0, done.stdout
    return done.stdout


def fresh_venv(folder: Path) -> Path:
    """Make an empty virtual environment and return its interpreter."""
    checked([sys.executable, "-m", "venv", folder])
    return folder / "bin" / "python"


# --- D32: pip, with and without build isolation, with and without a torch.


def test_isolated_install_builds_against_the_torch_of_the_target(tmp_path):
    """torch lies in the target's site-packages as files; the rest comes from this environment."""
    python = fresh_venv(tmp_path / "venv")
    one_architecture = {"CUDAARCHS": "90"}  # nvcc's time is proportional to their number
    site = Path(
        checked([python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]).strip()
    )
    (site / "torch").symlink_to(TORCH)
    # A .pth file works for imports; it is no place in which the build looks for torch.
    (site / "rest.pth").write_text(f"{TORCH.parent}\n")

    build_dir = ROOT / "build" / "isolated"
    said = checked(
        [
            python,
            "-m",
            "pip",
            "install",
            "-v",
            "--no-deps",
            f"--config-settings=build-dir={build_dir}",
            ROOT,
        ],
        one_architecture,
    )

    assert "Downloading torch" not in said
    assert f"vllm_ir: building against torch {torch.__version__} in {TORCH.resolve()}" in said
    assert (
        "vllm_ir: CPU kernels only; no CUDA kernels, since " in said or "CUDA kernels, for" in said
    )
    script = (
        "import vllm_ir, vllm_ir._build_info as b; print(vllm_ir.__file__, b.TORCH_FULL, b.VERSION)"
    )
    file, built_for, version = checked([python, "-c", script]).split()
    assert Path(file).is_relative_to(site)
    assert built_for == torch.__version__
    assert version == "0.1.0"
    assert "rms_norm" in checked([tmp_path / "venv" / "bin" / "vllm-ir", "list"])


def test_wheel_without_isolation_holds_the_package_and_nothing_else(tmp_path):
    """Uses the build folder of the installed package: only what changed since is compiled."""
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    settings = {k: v for k, v in os.environ.items() if k.startswith(SETTINGS)}
    checked([*pip, "-w", tmp_path, ROOT], settings)

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read("vllm_ir-0.1.0.dist-info/METADATA").decode()
    assert {name.split("/")[0] for name in names} == {"vllm_ir", "vllm_ir-0.1.0.dist-info"}
    expected = ["_build_info.py", "_version_check.py", "_C.pyi", "py.typed", "ops/__init__.py"]
    expected += ["providers/__init__.py", "include/vllm_ir/entry.h"]
    assert [e for e in expected if f"vllm_ir/{e}" not in names] == []
    assert len([name for name in names if re.fullmatch(r"vllm_ir/_C\..+\.so", name)]) == 1
    assert "vllm_ir-0.1.0.dist-info/licenses/LICENSE" in names
    assert [n for n in names if n.endswith((".pyc", ".cpp", ".a", ".o")) or "/tests/" in n] == []
    assert re.search(r"^Requires-Dist: torch<2\.15,>=2\.11$", metadata, re.M)
    assert "Requires-Python: <3.14,>=3.10" in metadata


@pytest.mark.parametrize("what", [["."], ["-e", "."]], ids=["plain", "editable"])
def test_install_without_torch_fails_with_one_sentence(tmp_path, what):
    python = fresh_venv(tmp_path / "venv")
    arguments = [ROOT if part == "." else part for part in what]
    done = run([python, "-m", "pip", "install", "--no-deps", *arguments])
    assert done.returncode != 0
    (sentence,) = {line.strip() for line in done.stdout.splitlines() if "vllm_ir:" in line}
    assert sentence == (
        f"vllm_ir: building needs an installed torch, got none in {tmp_path}/venv/lib/"
        f"python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch. Install torch "
        "first (pip install 'torch>=2.11,<2.15') and build again; where the build environment is a "
        "fresh one (uv, python -m build), set VLLM_IR_TORCH_ROOT to the torch package folder or "
        "use --no-build-isolation."
    )
    assert "Traceback" not in done.stdout


def test_a_wrong_torch_root_is_named(tmp_path):
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "-w",
        tmp_path,
    ]
    done = run([*pip, ROOT], {"VLLM_IR_TORCH_ROOT": str(tmp_path)})
    assert done.returncode != 0
    assert f"vllm_ir: building needs an installed torch, got none in {tmp_path}." in done.stdout
    assert "Traceback" not in done.stdout


# --- D33, D34: what configuring says. Nothing is compiled.


def fake_torch(root: Path, version: str, cuda: str | None) -> Path:
    """Make the files of a torch package that configuring looks at."""
    for folder in ("include/ATen", "lib"):
        (root / folder).mkdir(parents=True)
    for library in ("torch_cpu", "c10", "torch", "torch_python"):
        (root / "lib" / f"lib{library}.so").touch()
    (root / "version.py").write_text(
        f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    )
    return root


@pytest.fixture(name="tree")
def tree_with_a_cuda_source(tmp_path: Path) -> Path:
    """Copy what CMake reads and add one CUDA source, so that the switch has something to decide."""
    tree = tmp_path / "tree"
    for part in ("cpp", "cmake"):
        shutil.copytree(ROOT / part, tree / part)
    shutil.copy(ROOT / "CMakeLists.txt", tree)
    (tree / "cpp/kernels/cuda").mkdir(exist_ok=True)
    (tree / "cpp/kernels/cuda/probe.cu").write_text("__global__ void probe(float* x) { *x = 1; }\n")
    return tree


def configure(
    tree: Path,
    build: Path,
    *options: str,
    path: str | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    env = {**({} if path is None else {"PATH": path}), **(env or {})}
    command = [shutil.which("cmake"), "-S", tree, "-B", build, "-G", "Ninja"]
    command += [
        f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    done = run([*command, *options], env)
    # CMake breaks lines of errors: one space stands for any white space.
    done.stdout = " ".join(done.stdout.split())
    return done


def path_without_nvcc() -> str:
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(f for f in folders if not (Path(f) / "nvcc").exists())


def test_auto_without_a_compiler_says_why_there_are_no_cuda_kernels(tmp_path, tree):
    done = configure(tree, tmp_path / "b", "-DVLLM_IR_EXTENSION=OFF", path=path_without_nvcc())
    assert done.returncode == 0, done.stdout
    assert (
        "vllm_ir: CPU kernels only; no CUDA kernels, since no CUDA compiler was found "
        "(is nvcc on PATH, or CUDACXX set?) [no CUDA compiler; no torch in this build]"
    ) in done.stdout


def test_on_without_a_compiler_fails_and_names_path_and_cudacxx(tmp_path, tree):
    options = ["-DVLLM_IR_EXTENSION=OFF", "-DVLLM_IR_CUDA=ON"]
    done = configure(tree, tmp_path / "b", *options, path=path_without_nvcc())
    assert done.returncode != 0
    assert (
        "VLLM_IR_CUDA=ON, but no CUDA compiler was found (is nvcc on PATH, or CUDACXX set?)."
    ) in done.stdout


def test_off_does_not_look_for_a_compiler(tmp_path, tree):
    done = configure(tree, tmp_path / "b", "-DVLLM_IR_EXTENSION=OFF", "-DVLLM_IR_CUDA=OFF")
    assert done.returncode == 0, done.stdout
    assert "no CUDA kernels, since VLLM_IR_CUDA=OFF" in done.stdout
    assert "Looking for a CUDA compiler" not in done.stdout


def test_a_misspelt_switch_lists_the_allowed_values(tmp_path, tree):
    done = configure(tree, tmp_path / "b", "-DVLLM_IR_EXTENSION=OFF", "-DVLLM_IR_CUDA=YES")
    assert done.returncode != 0
    assert "VLLM_IR_CUDA must be ON, OFF or AUTO, got 'YES'." in done.stdout


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_a_compiler_alone_compiles_for_the_default_architectures(tmp_path, tree):
    """D34: no GPU and no architecture list."""
    done = configure(tree, tmp_path / "b", "-DVLLM_IR_EXTENSION=OFF")
    assert done.returncode == 0, done.stdout
    assert "vllm_ir: CPU and CUDA kernels, for 80-real;86-real;89-real;90-real;" in done.stdout
    probe = "CMakeFiles/vllm_ir_kernels.dir/cpp/kernels/cuda/probe.cu.o"
    checked([shutil.which("cmake") or "cmake", "--build", tmp_path / "b", "--target", probe])


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_torchs_architecture_list_is_honoured(tmp_path, tree):
    env = {"TORCH_CUDA_ARCH_LIST": "8.0;8.6+PTX 9.0a"}
    done = configure(tree, tmp_path / "b", "-DVLLM_IR_EXTENSION=OFF", env=env)
    assert done.returncode == 0, done.stdout
    assert "vllm_ir: CPU and CUDA kernels, for 80-real;86;90a-real [" in done.stdout


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("Hopper", "must name compute capabilities such as '8.0 9.0+PTX', got 'Hopper'."),
        ("1.0", "has '1.0', for which the CUDA compiler"),
    ],
)
def test_an_architecture_that_cannot_be_built_is_named(tmp_path, tree, wanted, said):
    env = {"TORCH_CUDA_ARCH_LIST": wanted}
    done = configure(tree, tmp_path / "b", "-DVLLM_IR_EXTENSION=OFF", env=env)
    assert done.returncode != 0
    assert f"TORCH_CUDA_ARCH_LIST {said}" in done.stdout


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_cmakes_own_architectures_come_before_torchs(tmp_path, tree):
    env = {"TORCH_CUDA_ARCH_LIST": "8.0"}
    options = ["-DVLLM_IR_EXTENSION=OFF", "-DCMAKE_CUDA_ARCHITECTURES=90"]
    done = configure(tree, tmp_path / "b", *options, env=env)
    assert "vllm_ir: CPU and CUDA kernels, for 90 [" in done.stdout


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_the_launchers_link_and_load_without_a_gpu(tmp_path):
    """Without a driver a launch gives a status; with a GPU the same program compares values."""
    options = ["-DVLLM_IR_EXTENSION=OFF", "-DVLLM_IR_TESTS=ON", "-DVLLM_IR_CUDA=ON"]
    done = configure(ROOT, tmp_path / "b", *options, "-DCMAKE_CUDA_ARCHITECTURES=90")
    assert done.returncode == 0, done.stdout
    commands = json.loads((tmp_path / "b" / "compile_commands.json").read_text())
    compiled = [Path(c["file"]).name for c in commands if c["file"].endswith(".cu")]
    sources = [p.name for p in (ROOT / "cpp/kernels/cuda").glob("*.cu")]
    assert sorted(compiled) == sorted(sources), "each is compiled once, whatever links it"
    cmake = shutil.which("cmake") or "cmake"
    checked([cmake, "--build", tmp_path / "b", "--target", "test_cuda"])
    said = checked([tmp_path / "b" / "test_cuda"])
    assert "[  PASSED  ]" in said


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_a_cpu_torch_does_not_prevent_cuda_kernels(tmp_path, tree):
    """D33: a CUDA compiler beside a torch for the CPU builds both, and says so."""
    root = fake_torch(tmp_path / "torch", "2.13.0+cpu", None)
    done = configure(tree, tmp_path / "b", f"-DVLLM_IR_TORCH_ROOT={root}", "-DVLLM_IR_CUDA=ON")
    assert done.returncode == 0, done.stdout
    assert "vllm_ir: CPU and CUDA kernels, for 80-real;" in done.stdout
    assert "torch 2.13.0+cpu is built for the CPU only]" in done.stdout
    info = (tmp_path / "b" / "_build_info.py").read_text()
    assert 'CUDA_SKIPPED = ""' in info
    assert 'CUDA_ARCHITECTURES = "80-real;' in info


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("switch", ["AUTO", "ON"])
def test_a_compiler_of_another_major_than_torchs_is_named_with_both_versions(
    tmp_path, tree, switch
):
    root = fake_torch(tmp_path / "torch", "2.13.0+cu99", "99.1")
    options = [f"-DVLLM_IR_TORCH_ROOT={root}", f"-DVLLM_IR_CUDA={switch}"]
    done = configure(tree, tmp_path / "b", *options)
    reason = (
        r"CUDA compiler [\d.]+ and CUDA 99\.1 of torch 2\.13\.0\+cu99 differ in their major version"
    )
    assert re.search(reason, done.stdout)
    assert (done.returncode == 0) == (switch == "AUTO")


@pytest.mark.parametrize("version", ["2.10.1", "2.15.0a0"])
def test_a_torch_outside_the_supported_minors_is_refused(tmp_path, version):
    root = fake_torch(tmp_path / "torch", version, None)
    done = configure(ROOT, tmp_path / "b", f"-DVLLM_IR_TORCH_ROOT={root}", "-DVLLM_IR_CUDA=OFF")
    assert done.returncode != 0
    assert f"vllm_ir: torch must be 2.11 to 2.14, got {version} in {root}." in done.stdout


def test_sanitizers_are_refused_for_the_extension(tmp_path):
    done = configure(ROOT, tmp_path / "b", "-DVLLM_IR_SANITIZE=thread")
    assert done.returncode != 0
    assert "VLLM_IR_SANITIZE is for the C++ tests, got VLLM_IR_EXTENSION=ON." in done.stdout
