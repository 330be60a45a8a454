// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cpp/kernels/fused_add_rms_norm.h"
#include "tests/cpp/kernels/matrix.h"
#include "tests/cpp/kernels/model.h"

namespace vllm_ir::kernels {
namespace {

constexpr double kEpsilon = 1e-6;

template <typename T>
struct Inputs {
  Matrix<T> x, residual;
  Inputs(int64_t rows, int64_t cols, int64_t gap = 0, int64_t offset = 0, float spread = 1)
      : x(rows, cols, gap, offset), residual(rows, cols, (gap + 1) % 3, (offset + 2) % 5) {
    x.randomise(static_cast<uint32_t>(cols), spread);
    residual.randomise(static_cast<uint32_t>(cols) + 1, spread);
  }
};

template <typename T>
struct Results {
  Matrix<T> out, residual;
};

template <typename T, typename W>
FusedAddRmsNormArgs args_of(Matrix<T>& out, Matrix<T>& residual_out, const Matrix<T>& x,
                            const Matrix<T>& residual, const W* weight, int64_t var_cols,
                            double epsilon = kEpsilon) {
  FusedAddRmsNormArgs a{};
  a.out = out.data();
  a.residual_out = residual_out.data();
  a.x = x.data();
  a.x_residual = residual.data();
  a.weight = weight;
  a.dtype = kDType<T>;
  a.weight_dtype = kDType<W>;
  a.rows = x.rows();
  a.cols = x.cols();
  a.var_cols = var_cols;
  a.out_stride = out.stride();
  a.residual_out_stride = residual_out.stride();
  a.x_stride = x.stride();
  a.x_residual_stride = residual.stride();
  a.epsilon = epsilon;
  return a;
}

template <typename T, typename W>
Results<T> run(const Inputs<T>& in, const W* weight, int64_t var_cols, double epsilon = kEpsilon) {
  const int64_t rows = in.x.rows(), cols = in.x.cols();
  Results<T> to{Matrix<T>(rows, cols, cols % 4, cols % 3),
                Matrix<T>(rows, cols, cols % 2, cols % 5)};
  fused_add_rms_norm_cpu(args_of(to.out, to.residual, in.x, in.residual, weight, var_cols, epsilon),
                         0, rows);
  return to;
}

template <typename T>
std::vector<float> sum_row(const Inputs<T>& in, int64_t r) {
  std::vector<float> sum = values(in.x.row(r), in.x.cols());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += value(in.residual.row(r)[i]);
  return sum;
}

template <typename T, typename W>
Results<T> model(const Inputs<T>& in, const W* weight, int64_t var_cols, double epsilon = kEpsilon,
                 Sum sum_kind = Sum::kLikeKernel) {
  const int64_t rows = in.x.rows(), cols = in.x.cols();
  Results<T> want{Matrix<T>(rows, cols), Matrix<T>(rows, cols)};
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<float> sum = sum_row(in, r);
    const auto normed = model_norm<T, W>(sum, weight, var_cols, epsilon, sum_kind);
    for (int64_t c = 0; c < cols; ++c) {
      want.out.row(r)[c] = normed[c];
      want.residual.row(r)[c] = rounded<T>(sum[c]);
    }
  }
  return want;
}

template <typename T, typename W>
void expect_model(const Inputs<T>& in, const W* weight, int64_t var_cols,
                  double epsilon = kEpsilon) {
  const Results<T> got = run(in, weight, var_cols, epsilon);
  const Results<T> want = model(in, weight, var_cols, epsilon);
  ASSERT_EQ(count_different(got.out, want.out), 0);
  ASSERT_EQ(count_different(got.residual, want.residual), 0);
  ASSERT_TRUE(got.out.outside_untouched());
  ASSERT_TRUE(got.residual.outside_untouched());
}

// Calls f(weights): none, of type T, and float32.
template <typename T, typename F>
void with_weights(int64_t cols, const F& f) {
  const Matrix<T> own = Matrix<T>(1, cols, 0, 1).randomise(7);
  const Matrix<float> wide = Matrix<float>(1, cols, 0, 1).randomise(8);
  f(static_cast<const T*>(nullptr));
  f(own.data());
  f(wide.data());
}

template <typename T>
struct FusedAddRmsNorm : testing::Test {};
using Types = testing::Types<float, Half, BFloat>;
TYPED_TEST_SUITE(FusedAddRmsNorm, Types);

TYPED_TEST(FusedAddRmsNorm, EveryWidthOffsetAndGapIsTheModelBitForBit) {
  using T = TypeParam;
  std::vector<int64_t> widths = {768, 769, 3420, 3584, 4160, 16384};
  for (int64_t w = 1; w <= 200; ++w) widths.push_back(w);
  at_each_level([&] {
    for (const int64_t cols : widths)
      with_weights<T>(cols, [&](auto* weight) {
        SCOPED_TRACE(cols);
        expect_model(Inputs<T>(2, cols, cols % 3, cols % 5), weight, cols);
      });
  });
}

TYPED_TEST(FusedAddRmsNorm, VarianceOverFewerColumnsIsTheModelBitForBit) {
  using T = TypeParam;
  at_each_level([&] {
    for (const int64_t cols : {1, 63, 64, 65, 200, 769})
      for (const int64_t var_cols : {int64_t{1}, cols / 2, cols - 1, cols})
        if (var_cols > 0)
          with_weights<T>(
              cols, [&](auto* weight) { expect_model(Inputs<T>(3, cols), weight, var_cols); });
  });
}

TYPED_TEST(FusedAddRmsNorm, IsCloseToTheExactValue) {
  using T = TypeParam;
  at_each_level([&] {
    for (const int64_t cols : {1, 100, 4096, 1 << 20})
      with_weights<T>(cols, [&](auto* weight) {
        const Inputs<T> in(1, cols, 0, 0, 4);
        const Results<T> got = run(in, weight, cols);
        const std::vector<float> row = sum_row(in, 0);
        const double mean = exact_mean_square(row, cols);
        for (int64_t c = 0; c < cols; ++c) {
          const double want = exact_element(row, mean, weight, c, kEpsilon);
          ASSERT_NEAR(value(got.out.row(0)[c]), want, kTolerance<T> * std::fabs(want) + 1e-7)
              << cols << " columns, " << c;
        }
      });
  });
}

// A kernel that normalises the rounded residual passes every tolerance: only this count sees it.
TYPED_TEST(FusedAddRmsNorm, TheUnroundedSumIsNormalised) {
  using T = TypeParam;
  if (sizeof(T) == 4) GTEST_SKIP() << "float32 sums are not rounded again";
  const int64_t rows = 16, cols = 4096;
  const Inputs<T> in(rows, cols);
  with_weights<T>(cols, [&](auto* weight) {
    const Results<T> got = run(in, weight, cols);
    EXPECT_LT(count_different(got.out, model(in, weight, cols, kEpsilon, Sum::kExact).out),
              rows * cols / 1000);
    Inputs<T> rounded_sum(rows, cols);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        rounded_sum.x.row(r)[c] = got.residual.row(r)[c];
        rounded_sum.residual.row(r)[c] = rounded<T>(0.f);
      }
    EXPECT_GT(count_different(got.out, model(rounded_sum, weight, cols).out), rows * cols / 20);
  });
}

TYPED_TEST(FusedAddRmsNorm, SpecialValuesPropagateAsInTheModel) {
  using T = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = sizeof(T) == 4 ? 3e38f : 65504.f;
  at_each_level([&] {
    for (const int64_t cols : {3, 64, 130})
      for (const double epsilon : {kEpsilon, 0.0, -1.0, nan_of_ones()})
        with_weights<T>(cols, [&](auto* weight) {
          Inputs<T> in(7, cols);
          const auto fill = [&](int64_t r, float x, float residual) {
            std::fill_n(in.x.row(r), cols, rounded<T>(x));
            std::fill_n(in.residual.row(r), cols, rounded<T>(residual));
          };
          fill(0, 0.f, -0.f);
          fill(1, 1.f, -1.f);
          fill(2, largest, largest);
          fill(3, infinity, -infinity);
          in.x.row(4)[cols / 2] = rounded<T>(infinity);
          in.residual.row(5)[cols - 1] = rounded<T>(std::nanf(""));
          expect_model(in, weight, cols, epsilon);
        });
  });
}

TYPED_TEST(FusedAddRmsNorm, InPlaceIsTheSame) {
  using T = TypeParam;
  at_each_level([&] {
    for (const int64_t cols : {1, 5, 64, 200, 769})
      with_weights<T>(cols, [&](auto* weight) {
        const Inputs<T> in(3, cols, 1, 1);
        const Results<T> want = run(in, weight, cols);
        Inputs<T> both(in);
        fused_add_rms_norm_cpu(args_of(both.x, both.residual, both.x, both.residual, weight, cols),
                               0, 3);
        EXPECT_EQ(count_different(both.x, want.out), 0);
        EXPECT_EQ(count_different(both.residual, want.residual), 0);
        EXPECT_TRUE(both.x.outside_untouched() && both.residual.outside_untouched());
        // The outputs in the other's place.
        Inputs<T> crossed(in);
        fused_add_rms_norm_cpu(
            args_of(crossed.residual, crossed.x, crossed.x, crossed.residual, weight, cols), 0, 3);
        EXPECT_EQ(count_different(crossed.residual, want.out), 0);
        EXPECT_EQ(count_different(crossed.x, want.residual), 0);
      });
  });
}

TYPED_TEST(FusedAddRmsNorm, ARowDoesNotDependOnItsPlaceOrItsNeighbours) {
  using T = TypeParam;
  const int64_t cols = 333;
  at_each_level([&] {
    const Inputs<T> alone(1, cols);
    const Results<T> want = run(alone, static_cast<const T*>(nullptr), cols);
    Inputs<T> in(33, cols, 1, 3);
    std::copy_n(alone.x.row(0), cols, in.x.row(31));
    std::copy_n(alone.residual.row(0), cols, in.residual.row(31));
    Matrix<T> out(33, cols), residual(33, cols);
    const auto a = args_of<T, T>(out, residual, in.x, in.residual, nullptr, cols);
    for (int64_t r = 32; r >= 0; --r) fused_add_rms_norm_cpu(a, r, r + 1);  // as threads might
    for (int64_t c = 0; c < cols; ++c) {
      ASSERT_TRUE(same(out.row(31)[c], want.out.row(0)[c]));
      ASSERT_TRUE(same(residual.row(31)[c], want.residual.row(0)[c]));
    }
    const Results<T> at_once = run(in, static_cast<const T*>(nullptr), cols);
    ASSERT_EQ(count_different(out, at_once.out), 0);
    ASSERT_EQ(count_different(residual, at_once.residual), 0);
  });
}

TYPED_TEST(FusedAddRmsNorm, NothingIsWrittenForNoRowsOrNoColumns) {
  using T = TypeParam;
  at_each_level([&] {
    const Inputs<T> in(2, 8);
    Matrix<T> out(2, 8), residual(2, 8);
    FusedAddRmsNormArgs a = args_of<T, T>(out, residual, in.x, in.residual, nullptr, 8);
    fused_add_rms_norm_cpu(a, 1, 1);
    a.cols = a.var_cols = 0;
    fused_add_rms_norm_cpu(a, 0, 2);
    EXPECT_EQ(count_different(out, Matrix<T>(2, 8)), 0);
    EXPECT_EQ(count_different(residual, Matrix<T>(2, 8)), 0);
  });
}

}  // namespace
}  // namespace vllm_ir::kernels
