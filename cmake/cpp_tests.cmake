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
