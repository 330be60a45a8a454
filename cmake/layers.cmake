# SPDX-License-Identifier: Apache-2.0
# The two layers that need nothing but the C++ standard library.

# vllm_ir_add_layer(<name> <C++ standard>): the static library vllm_ir_<name> of cpp/<name>/*.cpp.
function(vllm_ir_add_layer name standard)
  file(GLOB sources CONFIGURE_DEPENDS cpp/${name}/*.cpp)
  # The headers are listed so that a layer without a source file yet is a library too.
  file(GLOB headers CONFIGURE_DEPENDS cpp/${name}/*.h)
  add_library(vllm_ir_${name} STATIC ${sources} ${headers})
  set_target_properties(vllm_ir_${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_features(vllm_ir_${name} PUBLIC cxx_std_${standard})
  target_include_directories(vllm_ir_${name} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# The static library vllm_ir_kernels. A source cpp/kernels/cpu/*_level.cpp is compiled once for each CPU level, in a
# namespace of its own that VLLM_IR_CPU_LEVEL names; the others are compiled once and choose among the levels at load.
function(vllm_ir_add_kernels)
  vllm_ir_add_layer(kernels 17)
  file(GLOB sources CONFIGURE_DEPENDS cpp/kernels/cpu/*.cpp)
  set(level_sources ${sources})
  list(FILTER level_sources INCLUDE REGEX "_level\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_level\\.cpp$")
  target_sources(vllm_ir_kernels PRIVATE ${sources})
  target_compile_options(vllm_ir_kernels PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
  vllm_ir_add_cpu_level(base "${level_sources}")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    vllm_ir_add_cpu_level(v3 "${level_sources}" -march=x86-64-v3)
    vllm_ir_add_cpu_level(v4 "${level_sources}" -march=x86-64-v4 -mprefer-vector-width=512)
    target_compile_definitions(vllm_ir_kernels PRIVATE VLLM_IR_X86_LEVELS)
  endif()
  if(vllm_ir_cuda_sources)
    vllm_ir_add_cuda_kernels()
  else()
    target_sources(vllm_ir_kernels PRIVATE cpp/kernels/cuda/not_built.cpp)
  endif()
endfunction()

# vllm_ir_add_cpu_level(<level> <sources> <compiler flags>...)
# Never with link-time optimisation: the linker could then give one level's code to another. -fno-math-errno and
# -fno-trapping-math let loops vectorise and change no value; a contracted multiply-add would.
function(vllm_ir_add_cpu_level level sources)
  if(NOT sources)
    return()
  endif()
  add_library(vllm_ir_cpu_${level} OBJECT ${sources})
  target_compile_features(vllm_ir_cpu_${level} PRIVATE cxx_std_17)
  target_include_directories(vllm_ir_cpu_${level} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(vllm_ir_cpu_${level} PRIVATE VLLM_IR_CPU_LEVEL=${level})
  target_compile_options(vllm_ir_cpu_${level} PRIVATE
    $<IF:$<CONFIG:Debug>,-O1,-O3> -ffp-contract=off -fno-math-errno -fno-trapping-math ${ARGN})
  target_sources(vllm_ir_kernels PRIVATE $<TARGET_OBJECTS:vllm_ir_cpu_${level}>)
endfunction()

# The .cu sources. The runtime is linked statically, so its names can't clash with those of torch's, and what links the
# kernels loads where there is no driver.
function(vllm_ir_add_cuda_kernels)
  target_sources(vllm_ir_kernels PRIVATE ${vllm_ir_cuda_sources})
  target_compile_definitions(vllm_ir_kernels PUBLIC VLLM_IR_HAVE_CUDA)
  target_compile_options(vllm_ir_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xfatbin=-compress-all --threads=2>)
  if(VLLM_IR_WERROR)
    target_compile_options(vllm_ir_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  set_target_properties(vllm_ir_kernels PROPERTIES
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Static CUDA_VISIBILITY_PRESET hidden)
  target_link_libraries(vllm_ir_kernels PUBLIC CUDA::cudart_static)
endfunction()
