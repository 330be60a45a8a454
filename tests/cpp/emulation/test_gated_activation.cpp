// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/cpp/emulation/norm_test.h"

namespace vllm_ir::kernels {
namespace {

enum class Op { kSilu, kGeluErf, kGeluTanh };
constexpr Op kOps[] = {Op::kSilu, Op::kGeluErf, Op::kGeluTanh};

// In the kernels' order of operations and with the same functions of the C library, so that the
// same bits are due.
float activated(Op op, float g) {
  switch (op) {
    case Op::kSilu:
      return g / (1.f + std::exp(-g));
    case Op::kGeluErf:
      return g * 0.5f * (1.f + std::erf(g * 0.70710678118654752440f));
    case Op::kGeluTanh:
      break;
  }
  const float inner = 0.79788456080286535588f * (g + 0.044715f * (g * g * g));
  return 0.5f * g * (1.f + std::tanh(inner));
}

double exactly_activated(Op op, double g) {
  switch (op) {
    case Op::kSilu:
      return g / (1 + std::exp(-g));
    case Op::kGeluErf:
      return g * 0.5 * std::erfc(-g / std::sqrt(2.0));
    case Op::kGeluTanh:
      break;
  }
  return 0.5 * g * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g)));
}

template <typename T>
LaunchStatus run(Op op, Matrix<T>& out, const Matrix<T>& x) {
  GatedActivationArgs a{};
  a.out = out.data();
  a.x = x.data();
  a.dtype = kDType<T>;
  a.rows = out.rows();
  a.cols = out.cols();
  a.out_stride = out.stride();
  a.x_stride = x.stride();
  if (op == Op::kSilu) return silu_and_mul_cuda(a, nullptr);
  return gelu_and_mul_cuda(a, op == Op::kGeluTanh ? GeluForm::kTanh : GeluForm::kErf, nullptr);
}

template <typename T>
void expect_model(Op op, const Matrix<T>& out, const Matrix<T>& x) {
  for (int64_t r = 0; r < out.rows(); ++r)
    for (int64_t c = 0; c < out.cols(); ++c) {
      const T rounded_once = rounded<T>(activated(op, value(x.row(r)[c])));
      const T want = rounded<T>(value(rounded_once) * value(x.row(r)[out.cols() + c]));
      ASSERT_TRUE(same(out.row(r)[c], want))
          << "row " << r << " column " << c << " of " << out.cols() << ": " << value(out.row(r)[c])
          << ", want " << value(want);
    }
  ASSERT_TRUE(out.outside_untouched());
}

template <typename T>
void check(Op op, const Matrix<T>& x, const Layout& out_layout) {
  Matrix<T> out(x.rows(), x.cols() / 2, out_layout.gap, out_layout.offset);
  const emulation::Watch reads = watched(x), writes = watched(out);
  emulation::counts() = {};
  const LaunchStatus status = run(op, out, x);
  ASSERT_TRUE(status.ok()) << text_of(status);
  expect_model(op, out, x);
  ASSERT_EQ(reads.loaded, bytes_of(x));
  ASSERT_EQ(writes.stored, bytes_of(out));
  ASSERT_EQ(reads.stored + writes.loaded, 0);
  const bool wide = is_wide(x) && is_wide(out);  // of out: a multiple of the vector in `cols`
  ASSERT_EQ(wide ? emulation::counts().narrow : emulation::counts().wide, 0);
}

template <typename T>
struct CudaGated : testing::Test {};
using Types = testing::Types<float, Half, BFloat>;
TYPED_TEST_SUITE(CudaGated, Types);

TYPED_TEST(CudaGated, EveryWidthAndLayoutIsTheModelBitForBit) {
  using T = TypeParam;
  for (const Op op : kOps)
    for (const int64_t cols : some_widths())
      for (const Layout& layout : layouts()) {
        const Matrix<T> x = Matrix<T>(cols < 2000 ? 3 : 1, 2 * cols, layout.gap, layout.offset)
                                .randomise(static_cast<uint32_t>(cols), 3);
        check(op, x, layout);
      }
}

TEST(CudaGatedWidths, EachUpTo2049IsWrittenWhole) {
  for (int64_t cols = 1; cols <= 2049; ++cols) {
    check(Op::kSilu, Matrix<BFloat>(2, 2 * cols).randomise(static_cast<uint32_t>(cols)), {0, 0});
    if (testing::Test::HasFatalFailure()) return;
  }
}

// 2 * 3420 * 2 bytes are a multiple of 16, as the rows of out are here; 3420 * 2 are not, so the
// ups are off.
TEST(CudaGatedWidths, TheWidthOfHalfARowDecidesThePath) {
  check(Op::kSilu, Matrix<BFloat>(3, 2 * 3420).randomise(1), {0, 4});
  EXPECT_EQ(emulation::counts().wide, 0);
}

TYPED_TEST(CudaGated, ManyNarrowRowsShareBlocks) {
  using T = TypeParam;
  for (const int64_t cols : {1, 5, 64}) {
    check(Op::kSilu, Matrix<T>(700, 2 * cols).randomise(1), {0, 0});
    EXPECT_LE(emulation::counts().blocks, 700 / 8);
  }
}

TYPED_TEST(CudaGated, OneWideRowIsSharedByBlocks) {
  using T = TypeParam;
  check(Op::kSilu, Matrix<T>(1, 2 * 14336).randomise(1), {0, 0});
  EXPECT_EQ(emulation::counts().blocks, sizeof(T) == 4 ? 14 : 7);
}

TYPED_TEST(CudaGated, IsCloseToTheExactValue) {
  using T = TypeParam;
  for (const Op op : kOps) {
    const int64_t cols = 1000;
    Matrix<T> x = Matrix<T>(1, 2 * cols).randomise(4, 3), out(1, cols);
    ASSERT_TRUE(run(op, out, x).ok());
    for (int64_t c = 0; c < cols; ++c) {
      const double want = exactly_activated(op, value(x.row(0)[c])) * value(x.row(0)[cols + c]);
      // 1 + erf loses what is below the last place of 1.
      const double lost = 1e-6 * std::fabs(value(x.row(0)[cols + c]));
      ASSERT_NEAR(value(out.row(0)[c]), want, kTolerance<T> * std::fabs(want) + lost);
    }
  }
}

TYPED_TEST(CudaGated, SpecialValuesPropagateAsInTheModel) {
  using T = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> gates = {0.f,  -0.f,  infinity, -infinity, std::nanf(""), 1e-40f,
                                    90.f, -90.f, 60000.f,  -60000.f,  3e38f,         -3e38f};
  const auto cols = static_cast<int64_t>(gates.size());
  Matrix<T> x = Matrix<T>(3, 2 * cols).randomise(1);
  for (int64_t c = 0; c < cols; ++c)
    for (const auto& [r, up] : {std::pair{0, 2.f}, {1, infinity}, {2, -0.f}}) {
      x.row(r)[c] = rounded<T>(gates[c]);
      x.row(r)[cols + c] = rounded<T>(up);
    }
  for (const Op op : kOps) check(op, x, {0, 0});
}

TYPED_TEST(CudaGated, NothingIsLaunchedForNoRowsOrNoColumns) {
  using T = TypeParam;
  emulation::counts() = {};
  for (const Op op : kOps) {
    Matrix<T> none(0, 8), x(0, 16), narrow(2, 0);
    EXPECT_TRUE(run(op, none, x).ok());
    EXPECT_TRUE(run(op, narrow, narrow).ok());
  }
  EXPECT_EQ(emulation::counts().launches, 0);
}

}  // namespace
}  // namespace vllm_ir::kernels
