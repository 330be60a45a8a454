# SPDX-License-Identifier: Apache-2.0
# The Python extension vllm_ir._C: the torch layer over the kernels, and the module that binds all of it.
if(NOT pybind11_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
    OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_package(pybind11 CONFIG REQUIRED)

# An object library: a static one would lose the files whose only content is an op registration.
file(GLOB sources CONFIGURE_DEPENDS cpp/torch/*.cpp)
add_library(vllm_ir_torch OBJECT ${sources})
target_compile_features(vllm_ir_torch PUBLIC cxx_std_20)
target_link_libraries(vllm_ir_torch PUBLIC vllm_ir_dispatch vllm_ir_kernels vllm_ir_torch_package)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # at::parallel_for is serial without it. Compiled with, but not linked with: the symbols must come from the libgomp
  # that torch itself brings, which owns torch's thread pool.
  target_compile_options(vllm_ir_torch PRIVATE -fopenmp)
endif()

file(GLOB sources CONFIGURE_DEPENDS cpp/python/*.cpp)
pybind11_add_module(_C NO_EXTRAS ${sources})  # NO_EXTRAS: link-time optimisation cost 7 to 14 s
# First of all the pybind11 that torch brings, if it does: its headers are written for that one.
target_include_directories(_C SYSTEM BEFORE PRIVATE ${vllm_ir_torch_root}/include)
target_link_libraries(_C PRIVATE vllm_ir_torch ${CMAKE_DL_LIBS})
set_target_properties(_C PROPERTIES
  BUILD_RPATH "${vllm_ir_torch_root}/lib" INSTALL_RPATH "$ORIGIN/../torch/lib")

configure_file(${PROJECT_SOURCE_DIR}/cmake/build_info.py.in ${PROJECT_BINARY_DIR}/_build_info.py @ONLY)
install(TARGETS _C LIBRARY DESTINATION vllm_ir)
install(FILES ${PROJECT_BINARY_DIR}/_build_info.py DESTINATION vllm_ir)
install(FILES cpp/torch/entry.h DESTINATION vllm_ir/include/vllm_ir)
message(STATUS "vllm_ir: building against torch ${VLLM_IR_TORCH_VERSION} in ${vllm_ir_torch_root}")
