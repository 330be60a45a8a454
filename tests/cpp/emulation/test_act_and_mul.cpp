// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "tests/cpp/emulation/norm_test.h"
#include "tests/cpp/kernels/act_and_mul_model.h"

namespace vllm_ir::kernels {
namespace {

// In the kernels' order of operations and with the same functions of the C library, so that the
// same bits are due.
float activated(Activation activation, float g) {
  switch (activation) {
    case Activation::kSilu:
      return g / (1.f + std::exp(-g));
    case Activation::kGelu:
      return 0.5f * g * std::erfc(g * -0.70710678118654752440f);
    case Activation::kGeluTanh:
      break;
  }
  const float twice_u = (g + 0.044715f * (g * g * g)) * 1.59576912160573071176f;
  return g / (1.f + std::exp(-twice_u));
}

template <typename T>
LaunchStatus run(Activation activation, Matrix<T>& out, const Matrix<T>& x) {
  return act_and_mul_cuda(args_of(out, x, activation), nullptr);
}

template <typename T>
void expect_model(Activation activation, const Matrix<T>& out, const Matrix<T>& x) {
  for (int64_t r = 0; r < out.rows(); ++r)
    for (int64_t c = 0; c < out.cols(); ++c) {
      const T want =
          rounded_product(activated(activation, value(x.row(r)[c])), x.row(r)[out.cols() + c]);
      ASSERT_TRUE(same(out.row(r)[c], want))
          << "row " << r << " column " << c << " of " << out.cols() << ": " << value(out.row(r)[c])
          << ", want " << value(want);
    }
  ASSERT_TRUE(out.outside_untouched());
}

template <typename T>
void check(Activation activation, const Matrix<T>& x, const Layout& out_layout) {
  Matrix<T> out(x.rows(), x.cols() / 2, out_layout.gap, out_layout.offset);
  const emulation::Watch reads = watched(x), writes = watched(out);
  emulation::counts() = {};
  const LaunchStatus status = run(activation, out, x);
  ASSERT_TRUE(status.ok()) << text_of(status);
  expect_model(activation, out, x);
  ASSERT_EQ(reads.loaded, bytes_of(x));
  ASSERT_EQ(writes.stored, bytes_of(out));
  ASSERT_EQ(reads.stored + writes.loaded, 0);
  const bool wide = is_wide(x) && is_wide(out);  // of out: a multiple of the vector in `cols`
  ASSERT_EQ(wide ? emulation::counts().narrow : emulation::counts().wide, 0);
}

template <typename T>
struct CudaActAndMul : testing::Test {};
using Types = testing::Types<float, Half, BFloat>;
TYPED_TEST_SUITE(CudaActAndMul, Types);

TYPED_TEST(CudaActAndMul, EveryWidthAndLayoutIsTheModelBitForBit) {
  using T = TypeParam;
  for (const Activation activation : kActivations)
    for (const int64_t cols : some_widths())
      for (const Layout& layout : layouts()) {
        const Matrix<T> x = Matrix<T>(cols < 2000 ? 3 : 1, 2 * cols, layout.gap, layout.offset)
                                .randomise(static_cast<uint32_t>(cols), 3);
        check(activation, x, layout);
      }
}

TEST(CudaActAndMulWidths, EachUpTo2049IsWrittenWhole) {
  for (int64_t cols = 1; cols <= 2049; ++cols) {
    check(Activation::kSilu, Matrix<BFloat>(2, 2 * cols).randomise(static_cast<uint32_t>(cols)),
          {0, 0});
    if (testing::Test::HasFatalFailure()) return;
  }
}

// 2 * 3420 * 2 bytes are a multiple of 16, as the rows of out are here; 3420 * 2 are not, so the
// ups are off.
TEST(CudaActAndMulWidths, TheWidthOfHalfARowDecidesThePath) {
  check(Activation::kSilu, Matrix<BFloat>(3, 2 * 3420).randomise(1), {0, 4});
  EXPECT_EQ(emulation::counts().wide, 0);
}

TYPED_TEST(CudaActAndMul, ManyNarrowRowsShareBlocks) {
  using T = TypeParam;
  for (const int64_t cols : {1, 5, 64}) {
    check(Activation::kSilu, Matrix<T>(700, 2 * cols).randomise(1), {0, 0});
    EXPECT_LE(emulation::counts().blocks, 700 / 8);
  }
}

TYPED_TEST(CudaActAndMul, OneWideRowIsSharedByBlocks) {
  using T = TypeParam;
  check(Activation::kSilu, Matrix<T>(1, 2 * 14336).randomise(1), {0, 0});
  EXPECT_EQ(emulation::counts().blocks, sizeof(T) == 4 ? 14 : 7);
}

// The C library's exp and erfc are at least as close as CUDA's are said to be: this bounds the rest
// of the formulas.
TEST(CudaActAndMulFloat, TheActivationIsWithinItsUlps) {
  const std::vector<float> gates = all_kinds_of_numbers();
  const Matrix<float> x = with_ones(gates);
  Matrix<float> out(1, x.cols() / 2);
  for (const auto& [activation, bound] : kCudaUlps) {
    ASSERT_TRUE(run(activation, out, x).ok());
    for (size_t c = 0; c < gates.size(); ++c)
      ASSERT_LE(cuda_ulps(out.row(0)[c], gates[c], activation), bound)
          << std::hexfloat << gates[c] << " became " << out.row(0)[c];
  }
}

TEST(CudaActAndMulFloat, SpecialValuesAreTorchs) {
  const Matrix<float> x = with_ones(special_gates());
  for (const Activation activation : kActivations) {
    Matrix<float> out(1, x.cols() / 2);
    ASSERT_TRUE(run(activation, out, x).ok());
    expect_torchs_values(out.row(0));
  }
}

TYPED_TEST(CudaActAndMul, SpecialValuesPropagateAsInTheModel) {
  using T = TypeParam;
  const std::vector<float> gates = {0.f,  -0.f,  kInfinity, -kInfinity, std::nanf(""), 1e-40f,
                                    90.f, -90.f, 60000.f,   -60000.f,   3e38f,         -3e38f};
  const auto cols = static_cast<int64_t>(gates.size());
  Matrix<T> x = Matrix<T>(3, 2 * cols).randomise(1);
  for (int64_t c = 0; c < cols; ++c)
    for (const auto& [r, up] : {std::pair{0, 2.f}, {1, kInfinity}, {2, -0.f}}) {
      x.row(r)[c] = rounded<T>(gates[c]);
      x.row(r)[cols + c] = rounded<T>(up);
    }
  for (const Activation activation : kActivations) check(activation, x, {0, 0});
}

TYPED_TEST(CudaActAndMul, NothingIsLaunchedForNoRowsOrNoColumns) {
  using T = TypeParam;
  emulation::counts() = {};
  for (const Activation activation : kActivations) {
    Matrix<T> none(0, 8), x(0, 16), narrow(2, 0);
    EXPECT_TRUE(run(activation, none, x).ok());
    EXPECT_TRUE(run(activation, narrow, narrow).ok());
  }
  EXPECT_EQ(emulation::counts().launches, 0);
}

}  // namespace
}  // namespace vllm_ir::kernels
