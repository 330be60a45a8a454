// SPDX-License-Identifier: Apache-2.0
// One small shape a path, for the race detector, which is slow. The values are looked at elsewhere.
#include <gtest/gtest.h>

#include "tests/cpp/emulation/norm_test.h"

namespace vllm_ir::kernels {
namespace {

constexpr int64_t kWidths[] = {64, 129, 1024, 1032};

TEST(CudaRace, RmsNorm) {
  for (const int64_t cols : kWidths) {
    const Matrix<BFloat> x = Matrix<BFloat>(2, cols).randomise(1);
    Matrix<BFloat> out(2, cols);
    const RmsNormArgs a{out.data(), x.data(), x.data(), DType::kBFloat16, DType::kBFloat16, 2, cols,
                        cols,       cols,     cols,     kEpsilon};
    ASSERT_TRUE(rms_norm_cuda(a, nullptr).ok());
  }
}

TEST(CudaRace, FusedAddRmsNormInPlace) {
  for (const int64_t cols : kWidths) {
    Matrix<BFloat> x = Matrix<BFloat>(2, cols).randomise(1), residual(x);
    const FusedAddRmsNormArgs a{x.data(),
                                residual.data(),
                                x.data(),
                                residual.data(),
                                nullptr,
                                DType::kBFloat16,
                                DType::kBFloat16,
                                2,
                                cols,
                                cols,
                                cols,
                                cols,
                                cols,
                                cols,
                                kEpsilon};
    ASSERT_TRUE(fused_add_rms_norm_cuda(a, nullptr).ok());
  }
}

TEST(CudaRace, SiluAndMul) {
  const Matrix<BFloat> x = Matrix<BFloat>(2, 258).randomise(1);
  Matrix<BFloat> out(2, 129);
  const ActAndMulArgs a{out.data(), x.data(), DType::kBFloat16, Activation::kSilu, 2, 129,
                        129,        258};
  ASSERT_TRUE(act_and_mul_cuda(a, nullptr).ok());
}

}  // namespace
}  // namespace vllm_ir::kernels
