# SPDX-License-Identifier: Apache-2.0
# One test program a layer: tests/cpp/<layer>/test_*.cpp -> test_<layer>.
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(FATAL_ERROR "VLLM_IR_TESTS=ON needs GoogleTest, and CMake finds none. On Debian or Ubuntu: apt-get install libgtest-dev")
endif()
include(GoogleTest)

foreach(layer dispatch kernels)
  file(GLOB sources CONFIGURE_DEPENDS tests/cpp/${layer}/*.cpp)
  if(NOT sources)
    message(STATUS "vllm_ir: no C++ tests in tests/cpp/${layer}")
    continue()
  endif()
  add_executable(test_${layer} ${sources})
  target_link_libraries(test_${layer} PRIVATE vllm_ir_${layer} GTest::gtest_main)
  gtest_discover_tests(test_${layer} TEST_PREFIX ${layer}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 300)
endforeach()

# The CUDA kernels' own sources, compiled for the CPU: headers of tests/cpp/emulation/cuda stand in for those of CUDA, so no
# toolkit is needed. Each .cu file is included by a generated .cpp file, since its language here may be CUDA elsewhere.
file(GLOB cuda_sources CONFIGURE_DEPENDS cpp/kernels/cuda/*.cu)
file(GLOB sources CONFIGURE_DEPENDS tests/cpp/emulation/*.cpp)
foreach(source ${cuda_sources})
  get_filename_component(name ${source} NAME_WE)
  set(wrapper ${PROJECT_BINARY_DIR}/emulation/${name}.cpp)
  file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${source}\"\n")
  # An offset that is cut to 32 bits on its way does not compile.
  set_source_files_properties(${wrapper} PROPERTIES COMPILE_OPTIONS "-Wconversion;-Wno-sign-conversion;-Werror=conversion")
  list(APPEND sources ${wrapper})
endforeach()
add_executable(test_emulation ${sources})
target_compile_features(test_emulation PRIVATE cxx_std_17)
target_include_directories(test_emulation PRIVATE ${PROJECT_SOURCE_DIR} tests/cpp/emulation/cuda)
# A contracted multiply-add would give other bits than the model.
target_compile_options(test_emulation PRIVATE -O1 -ffp-contract=off -Wno-unknown-pragmas)
target_link_libraries(test_emulation PRIVATE GTest::gtest_main)
if(VLLM_IR_SANITIZE STREQUAL "thread")
  # The race detector is to see the kernels and not what runs them.
  set_source_files_properties(tests/cpp/emulation/access.cpp tests/cpp/emulation/block.cpp tests/cpp/emulation/fiber.cpp PROPERTIES
    COMPILE_OPTIONS -fno-sanitize=thread COMPILE_DEFINITIONS VLLM_IR_EMULATION_TSAN)
endif()
gtest_discover_tests(test_emulation TEST_PREFIX emulation. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
  PROPERTIES TIMEOUT 300)

if(vllm_ir_cuda_sources)
  add_executable(test_cuda tests/cpp/cuda/test_launchers.cpp)
  target_link_libraries(test_cuda PRIVATE vllm_ir_kernels CUDA::cudart_static GTest::gtest_main)
  gtest_discover_tests(test_cuda TEST_PREFIX cuda. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 300)
endif()
