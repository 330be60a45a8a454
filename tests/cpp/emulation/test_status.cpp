// SPDX-License-Identifier: Apache-2.0
// What a launcher says when nothing can be launched.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "cpp/kernels/cuda/launch_shape.h"
#include "cpp/kernels/cuda/launchers.h"
#include "tests/cpp/emulation/emulation.h"

namespace vllm_ir::kernels {
namespace {

using Kind = LaunchStatus::Kind;

RmsNormArgs norm_of(int64_t rows, int64_t cols, int64_t var_cols) {
  RmsNormArgs a{};
  a.dtype = DType::kBFloat16;
  a.rows = rows;
  a.cols = cols;
  a.var_cols = var_cols;
  return a;
}

Kind kind_of(const RmsNormArgs& a) { return rms_norm_cuda(a, nullptr).kind; }

TEST(CudaStatus, MoreThanAGridOrARowCanHaveIsTooLarge) {
  emulation::counts() = {};
  EXPECT_EQ(kind_of(norm_of(1, kMaxCols + 1, 1)), Kind::kTooLarge);
  EXPECT_EQ(kind_of(norm_of(int64_t{1} << 31, 4096, 4096)), Kind::kTooLarge);
  ActAndMulArgs wide{};
  wide.rows = 1;
  wide.cols = kMaxCols + 1;
  EXPECT_EQ(act_and_mul_cuda(wide, nullptr).kind, Kind::kTooLarge);
  EXPECT_EQ(emulation::counts().launches, 0);
  EXPECT_STREQ(text_of({Kind::kTooLarge}),
               "the tensor has more rows or columns than a launch can have");
}

TEST(CudaStatus, WhatIsOutOfRangeIsInvalid) {
  EXPECT_EQ(kind_of(norm_of(1, 4096, 4097)), Kind::kInvalidArgument);
  EXPECT_EQ(kind_of(norm_of(1, 4096, 0)), Kind::kInvalidArgument);
  RmsNormArgs a = norm_of(1, 8, 8);
  a.dtype = static_cast<DType>(7);
  EXPECT_EQ(kind_of(a), Kind::kInvalidArgument);
  a = norm_of(1, 8, 8);
  a.weight = &a;
  a.weight_dtype = DType::kFloat16;  // neither x's nor float32
  EXPECT_EQ(kind_of(a), Kind::kInvalidArgument);
  ActAndMulArgs gated{};
  gated.rows = gated.cols = 1;
  gated.activation = static_cast<Activation>(7);
  EXPECT_EQ(act_and_mul_cuda(gated, nullptr).kind, Kind::kInvalidArgument);
  EXPECT_STREQ(text_of({Kind::kInvalidArgument}), "an argument is out of range");
}

TEST(CudaStatus, AFailedLaunchIsReportedAtOnceAndLeavesNothingBehind) {
  emulation::settings().refuse = true;
  const LaunchStatus norm = rms_norm_cuda(norm_of(1, 8, 8), nullptr);
  EXPECT_EQ(norm.kind, Kind::kCudaError);
  EXPECT_EQ(norm.cuda_error, cudaErrorInvalidConfiguration);
  EXPECT_STREQ(text_of(norm), "invalid configuration argument");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  emulation::settings() = {};
  EXPECT_STREQ(text_of({}), "no error");
}

}  // namespace
}  // namespace vllm_ir::kernels
