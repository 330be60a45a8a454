// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cpp/emulation/norm_test.h"

namespace vllm_ir::kernels {
namespace {

template <typename T>
RmsNormArgs args_of(Matrix<T>& out, const Matrix<T>& x, const WeightView& weight, int64_t var_cols,
                    double epsilon = kEpsilon) {
  RmsNormArgs a{};
  a.out = out.data();
  a.x = x.data();
  a.weight = weight.data;
  a.dtype = kDType<T>;
  a.weight_dtype = weight.dtype;
  a.rows = x.rows();
  a.cols = x.cols();
  a.var_cols = var_cols;
  a.out_stride = out.stride();
  a.x_stride = x.stride();
  a.epsilon = epsilon;
  return a;
}

// Bit for bit.
template <typename T>
void expect_model(const Matrix<T>& out, const Matrix<T>& x, const WeightView& weight,
                  int64_t var_cols, double epsilon = kEpsilon) {
  for (int64_t r = 0; r < x.rows(); ++r) {
    const auto want = cuda_model_norm<T>(values(x.row(r), x.cols()), weight, var_cols, epsilon);
    for (int64_t c = 0; c < x.cols(); ++c)
      ASSERT_TRUE(same(out.row(r)[c], want[c]))
          << "row " << r << " column " << c << " of " << x.cols() << ": " << value(out.row(r)[c])
          << ", want " << value(want[c]);
  }
  ASSERT_TRUE(out.outside_untouched());
}

// Runs the launcher; looks at the values, at what was accessed how often, and at the path.
template <typename T>
void check(const Matrix<T>& x, const Layout& out_layout, const WeightView& weight, int64_t var_cols,
           double epsilon = kEpsilon) {
  Matrix<T> out(x.rows(), x.cols(), out_layout.gap, out_layout.offset);
  const emulation::Watch reads = watched(x), writes = watched(out), weights = watched(weight);
  emulation::counts() = {};
  const LaunchStatus status = rms_norm_cuda(args_of(out, x, weight, var_cols, epsilon), nullptr);
  ASSERT_TRUE(status.ok()) << text_of(status);
  expect_model(out, x, weight, var_cols, epsilon);
  ASSERT_EQ(reads.loaded, loaded_bytes(x, var_cols));
  ASSERT_EQ(reads.stored + weights.stored + writes.loaded, 0);
  ASSERT_EQ(writes.stored, bytes_of(out));
  const bool wide = is_wide(x) && is_wide(out) && is_wide(weight);
  ASSERT_EQ(wide ? emulation::counts().narrow : emulation::counts().wide, 0);
}

template <typename T>
struct CudaRmsNorm : testing::Test {};
using Types = testing::Types<float, Half, BFloat>;
TYPED_TEST_SUITE(CudaRmsNorm, Types);

TYPED_TEST(CudaRmsNorm, EveryWidthAndLayoutIsTheModelBitForBit) {
  using T = TypeParam;
  for (const int64_t cols : some_widths())
    for (const Layout& layout : layouts())
      with_weights<T>(cols, layout.offset, [&](const WeightView& weight) {
        SCOPED_TRACE(cols);
        const Matrix<T> x = Matrix<T>(cols < 2000 ? 3 : 1, cols, layout.gap, layout.offset)
                                .randomise(static_cast<uint32_t>(cols));
        check(x, layout, weight, cols);
      });
}

TEST(CudaRmsNormWidths, EachUpTo2049IsWrittenWhole) {
  for (int64_t cols = 1; cols <= 2049; ++cols) {
    SCOPED_TRACE(cols);
    const Matrix<BFloat> x = Matrix<BFloat>(2, cols).randomise(static_cast<uint32_t>(cols));
    const Matrix<BFloat> weight = Matrix<BFloat>(1, cols).randomise(3);
    check(x, {0, 0}, view(weight), cols);
    if (HasFatalFailure()) return;
  }
}

TYPED_TEST(CudaRmsNorm, OneMisalignedPointerIsEnoughForTheNarrowPath) {
  using T = TypeParam;
  const int64_t cols = 1024;
  for (const int64_t x_offset : {0, 1})
    for (const int64_t out_offset : {0, 1})
      for (const int64_t weight_offset : {0, 1})
        for (const int64_t gap : {0, 1, 8}) {
          const Matrix<T> x = Matrix<T>(2, cols, gap, x_offset).randomise(1);
          const Matrix<T> weight = Matrix<T>(1, cols, 0, weight_offset).randomise(2);
          check(x, {out_offset, 0}, view(weight), cols);
          check(x, {out_offset, gap}, view(weight), cols);
        }
}

TYPED_TEST(CudaRmsNorm, VarianceOverFewerColumnsIsTheModelBitForBit) {
  using T = TypeParam;
  for (const int64_t cols : {1, 8, 64, 200, 769, 1024, 16400})
    for (const int64_t var_cols : {int64_t{1}, cols / 2, cols - 1})
      if (var_cols > 0)
        with_weights<T>(cols, 0, [&](const WeightView& weight) {
          check(Matrix<T>(1, cols).randomise(5), {0, 0}, weight, var_cols);
        });
}

TYPED_TEST(CudaRmsNorm, AnyOrderOfThreadsGivesTheSame) {
  using T = TypeParam;
  in_each_order([] {
    for (const int64_t cols : {64, 129, 1024, 3584}) {
      const Matrix<T> weight = Matrix<T>(1, cols).randomise(2);
      check(Matrix<T>(5, cols).randomise(1), {0, 0}, view(weight), cols);
    }
  });
}

// 300 rows of 128: several rows a block, and a last block that is not full.
TYPED_TEST(CudaRmsNorm, ManyNarrowRowsShareBlocks) {
  using T = TypeParam;
  for (const int64_t cols : {1, 5, 64, 128}) {
    emulation::counts() = {};
    const Matrix<T> weight = Matrix<T>(1, cols).randomise(2);
    check(Matrix<T>(300, cols).randomise(1), {0, 0}, view(weight), cols);
    EXPECT_LE(emulation::counts().blocks, 300 / 4);
  }
}

TYPED_TEST(CudaRmsNorm, IsCloseToTheExactValue) {
  using T = TypeParam;
  for (const int64_t cols : {1, 100, 4096, 1 << 17})
    with_weights<T>(cols, 0, [&](const WeightView& weight) {
      const Matrix<T> x = Matrix<T>(1, cols).randomise(3, 4);
      Matrix<T> out(1, cols);
      ASSERT_TRUE(rms_norm_cuda(args_of(out, x, weight, cols), nullptr).ok());
      const std::vector<float> row = values(x.row(0), cols);
      const double mean = exact_mean_square(row, cols);
      for (int64_t c = 0; c < cols; ++c) {
        const double want =
            row[c] / std::sqrt(mean + kEpsilon) * (weight.data == nullptr ? 1 : weight.values[c]);
        // The second term: float16 has few bits below 2^-14.
        ASSERT_NEAR(value(out.row(0)[c]), want, kTolerance<T> * std::fabs(want) + 1e-7);
      }
    });
}

// Against a sum without error only those results differ that lie next to a rounding boundary.
TYPED_TEST(CudaRmsNorm, FewResultsDifferFromNativesRoundingWithAnExactSum) {
  using T = TypeParam;
  if (sizeof(T) == 4) GTEST_SKIP() << "in float32 the error of the sum shows in the last place";
  const int64_t rows = 4, cols = 4096;
  const Matrix<T> x = Matrix<T>(rows, cols).randomise(1);
  with_weights<T>(cols, 0, [&](const WeightView& weight) {
    Matrix<T> out(rows, cols), want(rows, cols);
    ASSERT_TRUE(rms_norm_cuda(args_of(out, x, weight, cols), nullptr).ok());
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = exact_sum_norm<T>(values(x.row(r), cols), weight);
      std::copy(row.begin(), row.end(), want.row(r));
    }
    EXPECT_LT(count_different(out, want), rows * cols / 1000);
  });
}

TYPED_TEST(CudaRmsNorm, SpecialValuesPropagateAsInTheModel) {
  using T = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const float largest = sizeof(T) == 4 ? 3e38f : 65504.f;
  for (const int64_t cols : {3, 64, 1032})
    for (const double epsilon : {kEpsilon, 0.0, -1.0, nan_of_ones(), 1e300})
      with_weights<T>(cols, 0, [&](const WeightView& weight) {
        Matrix<T> x = Matrix<T>(9, cols).randomise(2);
        const auto fill = [&](int64_t r, float f) { std::fill_n(x.row(r), cols, rounded<T>(f)); };
        fill(0, 0.f);
        fill(1, -0.f);
        fill(2, largest);
        fill(3, 1e-40f);
        fill(4, infinity);
        x.row(5)[cols / 2] = rounded<T>(infinity);
        x.row(6)[cols - 1] = rounded<T>(-infinity);
        x.row(7)[0] = rounded<T>(nan);
        check(x, {0, 0}, weight, cols, epsilon);
      });
}

// Several rows, since an order of its own for a sum need not show in one.
TYPED_TEST(CudaRmsNorm, ARowDoesNotDependOnItsPlaceItsNeighboursOrItsAlignment) {
  using T = TypeParam;
  for (const int64_t cols : {128, 1032, 3584}) {
    const Matrix<T> source = Matrix<T>(16, cols).randomise(1);
    Matrix<T> alone(16, cols);
    RmsNormArgs one = args_of<T>(alone, source, {}, cols);
    one.rows = 1;
    for (int64_t r = 0; r < 16; ++r) {
      one.x = source.row(r);
      one.out = alone.row(r);
      ASSERT_TRUE(rms_norm_cuda(one, nullptr).ok());
    }
    for (const int64_t rows : {16, 17, 50})
      for (const Layout& layout : layouts()) {
        Matrix<T> x = Matrix<T>(rows, cols, layout.gap, layout.offset).randomise(9);
        const int64_t first = rows - 16;
        for (int64_t r = 0; r < 16; ++r) std::copy_n(source.row(r), cols, x.row(first + r));
        Matrix<T> out(rows, cols);
        ASSERT_TRUE(rms_norm_cuda(args_of<T>(out, x, {}, cols), nullptr).ok());
        for (int64_t r = 0; r < 16; ++r)
          for (int64_t c = 0; c < cols; ++c)
            ASSERT_TRUE(same(out.row(first + r)[c], alone.row(r)[c]));
      }
  }
}

TYPED_TEST(CudaRmsNorm, InPlaceIsTheSame) {
  using T = TypeParam;
  for (const int64_t cols : {5, 64, 1032, 16400}) {
    const Matrix<T> x = Matrix<T>(2, cols, 1).randomise(1);
    Matrix<T> overwritten(x);
    ASSERT_TRUE(rms_norm_cuda(args_of<T>(overwritten, overwritten, {}, cols), nullptr).ok());
    expect_model<T>(overwritten, x, {}, cols);
  }
}

TYPED_TEST(CudaRmsNorm, ARowMayBeRepeatedByAStrideOfZero) {
  using T = TypeParam;
  const Matrix<T> x = Matrix<T>(1, 128).randomise(1);
  Matrix<T> out(3, 128);
  RmsNormArgs a = args_of<T>(out, x, {}, 128);
  a.rows = 3;
  a.x_stride = 0;
  ASSERT_TRUE(rms_norm_cuda(a, nullptr).ok());
  for (int64_t r = 1; r < 3; ++r)
    for (int64_t c = 0; c < 128; ++c) ASSERT_TRUE(same(out.row(r)[c], out.row(0)[c]));
}

TYPED_TEST(CudaRmsNorm, NothingIsLaunchedForNoRowsOrNoColumns) {
  using T = TypeParam;
  Matrix<T> x(2, 8), out(2, 8);
  RmsNormArgs a = args_of<T>(out, x, {}, 8);
  emulation::counts() = {};
  a.rows = 0;
  EXPECT_TRUE(rms_norm_cuda(a, nullptr).ok());
  a.rows = 2;
  a.cols = a.var_cols = 0;
  EXPECT_TRUE(rms_norm_cuda(a, nullptr).ok());
  EXPECT_EQ(emulation::counts().launches, 0);
  EXPECT_EQ(count_different(out, Matrix<T>(2, 8)), 0);
}

}  // namespace
}  // namespace vllm_ir::kernels
