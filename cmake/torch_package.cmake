# SPDX-License-Identifier: Apache-2.0
# The torch to build against, found as files: torch is never imported to build. Sets VLLM_IR_TORCH_VERSION ("2.13.0+cpu"),
# VLLM_IR_TORCH_MINOR ("2.13"), VLLM_IR_TORCH_CUDA ("" for a CPU build), vllm_ir_torch_root, and the target vllm_ir_torch_package.
#
# Not find_package(Torch): for a CUDA build of torch it insists on a whole CUDA toolkit, and it sets its own architecture flags.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)

# A plain variable: a build folder that is used again must not keep another environment's torch.
set(vllm_ir_torch_root "${VLLM_IR_TORCH_ROOT}")
if(NOT vllm_ir_torch_root)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE vllm_ir_torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT EXISTS "${vllm_ir_torch_root}/version.py")
  message(FATAL_ERROR "vllm_ir: building needs an installed torch, got none from ${Python_EXECUTABLE} and "
    "VLLM_IR_TORCH_ROOT='${VLLM_IR_TORCH_ROOT}'. Install torch first, or set VLLM_IR_TORCH_ROOT to its package folder.")
endif()

file(STRINGS ${vllm_ir_torch_root}/version.py lines REGEX "^(__version__|cuda)")
string(REGEX MATCH "__version__ = '(([0-9]+\\.[0-9]+)[^']*)'" matched "${lines}")
set(VLLM_IR_TORCH_VERSION "${CMAKE_MATCH_1}")
set(VLLM_IR_TORCH_MINOR "${CMAKE_MATCH_2}")
set(VLLM_IR_TORCH_CUDA "")
if(lines MATCHES "cuda[^=;]*= '([0-9.]+)'")
  set(VLLM_IR_TORCH_CUDA "${CMAKE_MATCH_1}")
endif()
if(VLLM_IR_TORCH_MINOR VERSION_LESS 2.11 OR VLLM_IR_TORCH_MINOR VERSION_GREATER_EQUAL 2.15)
  message(FATAL_ERROR "vllm_ir: torch must be 2.11 to 2.14, got ${VLLM_IR_TORCH_VERSION} in ${vllm_ir_torch_root}. "
    "Install one of these first.")
endif()

add_library(vllm_ir_torch_package INTERFACE)
target_include_directories(vllm_ir_torch_package SYSTEM INTERFACE
  ${vllm_ir_torch_root}/include ${vllm_ir_torch_root}/include/torch/csrc/api/include)
# torch is loaded RTLD_LOCAL, so what links against it must itself name every library.
target_link_options(vllm_ir_torch_package INTERFACE -Wl,--no-as-needed)
foreach(name torch_cpu c10 torch torch_python)
  find_library(vllm_ir_lib_${name} ${name} PATHS ${vllm_ir_torch_root}/lib NO_DEFAULT_PATH NO_CACHE REQUIRED)
  target_link_libraries(vllm_ir_torch_package INTERFACE ${vllm_ir_lib_${name}})
endforeach()
