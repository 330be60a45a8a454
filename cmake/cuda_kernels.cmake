# SPDX-License-Identifier: Apache-2.0
# Decides whether the CUDA kernels are built, and says so in one line. A compiler is enough: no GPU, no driver and no CUDA
# build of torch is needed. Sets vllm_ir_cuda_sources, and for _build_info.py VLLM_IR_CUDA_TOOLKIT, VLLM_IR_CUDA_ARCHITECTURES
# and VLLM_IR_CUDA_SKIPPED (the reason; empty when they are built).
set(VLLM_IR_CUDA_TOOLKIT "")
set(VLLM_IR_CUDA_ARCHITECTURES "")
set(VLLM_IR_CUDA_SKIPPED "")
file(GLOB vllm_ir_cuda_sources CONFIGURE_DEPENDS cpp/kernels/cuda/*.cu)

if(NOT VLLM_IR_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "VLLM_IR_CUDA must be ON, OFF or AUTO, got '${VLLM_IR_CUDA}'.")
endif()

# What torch was built for, to be read beside the compiler's version.
if(NOT VLLM_IR_EXTENSION)
  set(torch_build "no torch in this build")
elseif(VLLM_IR_TORCH_CUDA)
  set(torch_build "torch ${VLLM_IR_TORCH_VERSION} is built for CUDA ${VLLM_IR_TORCH_CUDA}")
else()
  set(torch_build "torch ${VLLM_IR_TORCH_VERSION} is built for the CPU only")
endif()

set(compiler "no CUDA compiler")
if(NOT VLLM_IR_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE lines ERROR_QUIET)
    string(REGEX MATCH "V([0-9]+)\\.[0-9.]+" toolkit "${lines}")
    set(toolkit_major "${CMAKE_MATCH_1}")
    string(SUBSTRING "${toolkit}" 1 -1 toolkit)
    set(compiler "CUDA compiler ${toolkit} (${CMAKE_CUDA_COMPILER})")
  endif()
endif()

if(VLLM_IR_CUDA STREQUAL "OFF")
  set(VLLM_IR_CUDA_SKIPPED "VLLM_IR_CUDA=OFF")
elseif(NOT CMAKE_CUDA_COMPILER)
  set(VLLM_IR_CUDA_SKIPPED "no CUDA compiler was found (is nvcc on PATH, or CUDACXX set?)")
elseif(NOT vllm_ir_cuda_sources)
  set(VLLM_IR_CUDA_SKIPPED "this version of vllm_ir has no CUDA sources")
elseif(VLLM_IR_TORCH_CUDA AND NOT VLLM_IR_TORCH_CUDA MATCHES "^${toolkit_major}\\.")
  # Code of another major needs another driver than the one that suits this torch.
  set(VLLM_IR_CUDA_SKIPPED "CUDA compiler ${toolkit} and CUDA ${VLLM_IR_TORCH_CUDA} of torch ${VLLM_IR_TORCH_VERSION} differ in their major version")
endif()

if(VLLM_IR_CUDA_SKIPPED)
  if(VLLM_IR_CUDA STREQUAL "ON")
    message(FATAL_ERROR "VLLM_IR_CUDA=ON, but ${VLLM_IR_CUDA_SKIPPED}. Found: ${compiler}; ${torch_build}. "
      "VLLM_IR_CUDA=AUTO builds without CUDA kernels.")
  endif()
  set(vllm_ir_cuda_sources "")
  message(STATUS "vllm_ir: CPU kernels only; no CUDA kernels, since ${VLLM_IR_CUDA_SKIPPED} [${compiler}; ${torch_build}]")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  # Ampere to Blackwell, and PTX of the newest for what comes after. CUDAARCHS=90 builds for one GPU.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  if(known MATCHES "compute_120")
    list(APPEND CMAKE_CUDA_ARCHITECTURES 100-real 120)
  else()
    list(APPEND CMAKE_CUDA_ARCHITECTURES 90-virtual)
  endif()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(VLLM_IR_CUDA_TOOLKIT "${CMAKE_CUDA_COMPILER_VERSION}")
set(VLLM_IR_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
message(STATUS "vllm_ir: CPU and CUDA kernels, for ${CMAKE_CUDA_ARCHITECTURES} [${compiler}; ${torch_build}]")
