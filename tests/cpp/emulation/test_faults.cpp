// SPDX-License-Identifier: Apache-2.0
// The emulation itself: small kernels with known faults, and what it says of each.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "cpp/kernels/cuda/row_sum.cuh"
#include "cpp/kernels/cuda/vector.cuh"
#include "tests/cpp/emulation/emulation.h"
#include "tests/cpp/kernels/elements.h"

namespace vllm_ir::emulation {
namespace {

struct To {
  float* out;
};

void launch(void (*kernel)(To), const dim3& block, float* out = nullptr, const dim3& grid = {1}) {
  To to{out};
  void* arguments[] = {&to};
  cudaLaunchKernel(kernel, grid, block, arguments, 0, nullptr);
  cudaGetLastError();
}

std::string fault_of(void (*kernel)(To), const dim3& block, float* out = nullptr) {
  launch(kernel, block, out);
  return fault();
}

bool begins_with(const std::string& text, const std::string& begin) {
  return text.rfind(begin, 0) == 0;
}

__global__ void barrier_for_some(To) {
  if (threadIdx.x < 40) __syncthreads();
}
__global__ void two_barriers(To) {
  if (threadIdx.x < 40)
    __syncthreads();
  else
    __syncthreads();
}
TEST(Faults, DivergentBarriersAreNamed) {
  const std::string want = "divergent barrier: __syncthreads at test_faults.cpp:";
  EXPECT_TRUE(begins_with(fault_of(barrier_for_some, 64), want)) << fault();
  EXPECT_TRUE(begins_with(fault_of(two_barriers, 64), want)) << fault();
}

__global__ void shuffle_by_half(To) {
  if (threadIdx.x % 32 < 16) __shfl_xor_sync(0xffffffffu, 0.f, 1);
}
__global__ void shuffle_unnamed(To) { __shfl_xor_sync(0xffffu, 0.f, 1); }
__global__ void shuffle_from_unnamed(To) {
  if (threadIdx.x < 16) __shfl_xor_sync(0xffffu, 0.f, 16);
}
__global__ void syncwarp_by_one(To) {
  if (threadIdx.x == 0) __syncwarp();
}
TEST(Faults, MissingLanesAreNamed) {
  const std::string missing = fault_of(shuffle_by_half, 32);
  EXPECT_TRUE(begins_with(missing, "shuffle at test_faults.cpp:")) << missing;
  EXPECT_NE(missing.find("names lanes that do not come: ffff0000"), std::string::npos) << missing;
  EXPECT_EQ(fault_of(shuffle_unnamed, 32),
            "a lane calls a shuffle with a mask that does not name it");
  EXPECT_EQ(fault_of(shuffle_from_unnamed, 32),
            "a shuffle reads a lane that its mask does not name");
  EXPECT_TRUE(begins_with(fault_of(syncwarp_by_one, 32), "__syncwarp at")) << fault();
  // The lanes of a warp that isn't full are missing too.
  EXPECT_TRUE(
      begins_with(fault_of([](To) { __shfl_xor_sync(0xffffffffu, 0.f, 1); }, 16), "shuffle at"));
}

__global__ void misaligned(To to) {
  kernels::load<true, 4>(reinterpret_cast<const kernels::Float32*>(to.out) + 1, 0, 4);
}
__global__ void beyond(To to) {
  kernels::load<false, 4>(reinterpret_cast<const kernels::Float32*>(to.out), 0, 4);
}
TEST(Faults, WrongAccessesAreNamed) {
  alignas(16) float memory[8] = {};
  EXPECT_EQ(fault_of(misaligned, 1, memory), "misaligned access of 16 bytes");
  const Watch watch(memory, memory + 3);
  EXPECT_EQ(fault_of(beyond, 1, memory), "load outside of the watched memory");
}

TEST(Faults, ShapesThatCudaRefusesAreRefused) {
  for (const auto& [grid, block] : {std::pair{dim3(0), dim3(32)},
                                    {dim3(1, 65536), dim3(32)},
                                    {dim3(1), dim3(1025)},
                                    {dim3(1), dim3(32, 33)}}) {
    To to{nullptr};
    void* arguments[] = {&to};
    EXPECT_EQ(cudaLaunchKernel(barrier_for_some, grid, block, arguments, 0, nullptr),
              cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
}

// A sum over warps whose barrier is missing: some order of the threads shows it.
__global__ void sum_without_barrier(To to) {
  __shared__ float partial[8];
  if (threadIdx.x < 8) partial[threadIdx.x] = 0;
  __syncthreads();
  const float sum = kernels::warp_sum(1.f, 32);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  float total = 0;
  for (const float p : partial) total += p;
  to.out[threadIdx.x] = total;
}
__global__ void sum_over_the_row(To to) { to.out[threadIdx.x] = kernels::row_sum(1.f); }

int wrong_sums(void (*kernel)(To), Order order) {
  std::vector<float> out(256, -1.f);
  settings().order = order;
  launch(kernel, 256, out.data());
  settings() = {};
  int wrong = 0;
  for (const float f : out) wrong += f != 256.f;
  return wrong;
}

TEST(Faults, AMissingBarrierShowsInSomeOrder) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "is a race to the detector";
#endif
  EXPECT_GT(wrong_sums(sum_without_barrier, Order::kForward), 0);
  for (const Order order : {Order::kForward, Order::kReverse, Order::kRandom})
    EXPECT_EQ(wrong_sums(sum_over_the_row, order), 0);
}

__global__ void place(To to) {
  const unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
  const unsigned thread = threadIdx.x + blockDim.x * threadIdx.y;
  to.out[block * blockDim.x * blockDim.y + thread] += 1;
}
TEST(Faults, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<float> out(2 * 3 * 8 * 4);
  launch(place, dim3(8, 4), out.data(), dim3(2, 3));
  EXPECT_EQ(std::set<float>(out.begin(), out.end()), std::set<float>{1});
  EXPECT_EQ(fault(), "");
}

TEST(Elements, ConversionsAreThoseOfTheFormats) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const kernels::Half half{static_cast<uint16_t>(bits)};
    const float f = float_of_half(half.bits);
    ASSERT_TRUE(kernels::same(f, half.value())) << bits;
    // The value itself, its neighbours and the midpoint to the next value.
    for (const uint32_t step : {0u, 1u, ~0u, 0x1000u, 0xfffu, 0x1001u}) {
      const float near = __uint_as_float(__float_as_uint(f) + step);
      const kernels::Half got{half_of(near)};
      ASSERT_TRUE(kernels::same(got, kernels::Half::of(near))) << near;
      const float wide = __uint_as_float((bits << 16) + step * 8);
      const kernels::BFloat brain{bfloat16_of(wide)};
      ASSERT_TRUE(kernels::same(brain, kernels::BFloat::of(wide))) << wide;
    }
  }
}

}  // namespace
}  // namespace vllm_ir::emulation
