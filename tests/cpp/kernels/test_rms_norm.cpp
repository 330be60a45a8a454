// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cpp/kernels/rms_norm.h"
#include "tests/cpp/kernels/matrix.h"
#include "tests/cpp/kernels/model.h"

namespace vllm_ir::kernels {
namespace {

constexpr double kEpsilon = 1e-5;

template <typename T, typename W>
RmsNormArgs args_of(Matrix<T>& out, const Matrix<T>& x, const W* weight, int64_t var_cols,
                    double epsilon = kEpsilon) {
  RmsNormArgs a{};
  a.out = out.data();
  a.x = x.data();
  a.weight = weight;
  a.dtype = kDType<T>;
  a.weight_dtype = kDType<W>;
  a.rows = x.rows();
  a.cols = x.cols();
  a.var_cols = var_cols;
  a.out_stride = out.stride();
  a.x_stride = x.stride();
  a.epsilon = epsilon;
  return a;
}

template <typename T, typename W>
void run(Matrix<T>& out, const Matrix<T>& x, const W* weight, int64_t var_cols,
         double epsilon = kEpsilon) {
  rms_norm_cpu(args_of(out, x, weight, var_cols, epsilon), 0, x.rows());
}

// All rows against the model, bit for bit.
template <typename T, typename W>
void expect_model(const Matrix<T>& out, const Matrix<T>& x, const W* weight, int64_t var_cols,
                  double epsilon = kEpsilon) {
  for (int64_t r = 0; r < x.rows(); ++r) {
    const auto want = model_norm<T, W>(values(x.row(r), x.cols()), weight, var_cols, epsilon);
    for (int64_t c = 0; c < x.cols(); ++c)
      ASSERT_TRUE(same(out.row(r)[c], want[c]))
          << "row " << r << " column " << c << ": " << value(out.row(r)[c]) << ", want "
          << value(want[c]);
  }
  ASSERT_TRUE(out.outside_untouched());
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
struct RmsNorm : testing::Test {};
using Types = testing::Types<float, Half, BFloat>;
TYPED_TEST_SUITE(RmsNorm, Types);

TYPED_TEST(RmsNorm, EveryWidthOffsetAndGapIsTheModelBitForBit) {
  using T = TypeParam;
  std::vector<int64_t> widths = {768, 769, 3420, 3584, 4096, 4160, 16384};
  for (int64_t w = 1; w <= 200; ++w) widths.push_back(w);
  at_each_level([&] {
    for (const int64_t cols : widths)
      with_weights<T>(cols, [&](auto* weight) {
        const int64_t gap = cols % 3, offset = cols % 5;
        const Matrix<T> x = Matrix<T>(2, cols, gap, offset).randomise(static_cast<uint32_t>(cols));
        Matrix<T> out(2, cols, (cols + 1) % 3, cols % 4);
        run(out, x, weight, cols);
        SCOPED_TRACE(cols);
        expect_model(out, x, weight, cols);
      });
  });
}

TYPED_TEST(RmsNorm, VarianceOverFewerColumnsIsTheModelBitForBit) {
  using T = TypeParam;
  at_each_level([&] {
    for (const int64_t cols : {1, 63, 64, 65, 200, 769})
      for (const int64_t var_cols : {int64_t{1}, cols / 2, cols - 1, cols})
        if (var_cols > 0)
          with_weights<T>(cols, [&](auto* weight) {
            const Matrix<T> x = Matrix<T>(3, cols).randomise(5);
            Matrix<T> out(3, cols);
            run(out, x, weight, var_cols);
            expect_model(out, x, weight, var_cols);
          });
  });
}

TYPED_TEST(RmsNorm, IsCloseToTheExactValue) {
  using T = TypeParam;
  at_each_level([&] {
    for (const int64_t cols : {1, 100, 4096, 1 << 20})
      with_weights<T>(cols, [&](auto* weight) {
        const Matrix<T> x = Matrix<T>(1, cols).randomise(3, 4);
        Matrix<T> out(1, cols);
        run(out, x, weight, cols);
        const std::vector<float> row = values(x.row(0), cols);
        const double mean = exact_mean_square(row, cols);
        for (int64_t c = 0; c < cols; ++c) {
          const double want = exact_element(row, mean, weight, c, kEpsilon);
          // The second term: float16 has few bits below 2^-14.
          ASSERT_NEAR(value(out.row(0)[c]), want, kTolerance<T> * std::fabs(want) + 1e-7)
              << cols << " columns, " << c;
        }
      });
  });
}

// Against a sum without error only those results differ that lie next to a rounding boundary.
TYPED_TEST(RmsNorm, FewResultsDifferFromNativesRoundingWithAnExactSum) {
  using T = TypeParam;
  if (sizeof(T) == 4) GTEST_SKIP() << "in float32 the error of the sum shows in the last place";
  const int64_t rows = 16, cols = 4096;
  const Matrix<T> x = Matrix<T>(rows, cols).randomise(1);
  with_weights<T>(cols, [&](auto* weight) {
    Matrix<T> out(rows, cols), want(rows, cols);
    run(out, x, weight, cols);
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = model_norm<T, std::remove_const_t<std::remove_pointer_t<decltype(weight)>>>(
          values(x.row(r), cols), weight, cols, kEpsilon, Sum::kExact);
      std::copy(row.begin(), row.end(), want.row(r));
    }
    EXPECT_LT(count_different(out, want), rows * cols / 1000);
  });
}

TYPED_TEST(RmsNorm, SpecialValuesPropagateAsInTheModel) {
  using T = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const float largest = sizeof(T) == 4 ? 3e38f : 65504.f;
  at_each_level([&] {
    for (const int64_t cols : {3, 64, 130})
      for (const double epsilon : {kEpsilon, 0.0, -1.0, nan_of_ones(), 1e300})
        with_weights<T>(cols, [&](auto* weight) {
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
          Matrix<T> out(9, cols);
          run(out, x, weight, cols, epsilon);
          expect_model(out, x, weight, cols, epsilon);
        });
  });
}

TEST(RmsNorm16, AnOverflowOfFloat16IsInfinite) {
  Matrix<Half> x(1, 64), out(1, 64);
  for (int i = 0; i < 64; ++i) x.row(0)[i] = Half::of(i % 2 ? -1.f : 1.f);
  const std::vector<Half> weight(64, Half::of(65504.f));
  const std::vector<float> wide(64, 65520.f);
  at_each_level([&] {
    run(out, x, weight.data(), 64, 0);
    EXPECT_EQ(value(out.row(0)[0]), 65504.f);
    run(out, x, wide.data(), 64, 0);
    EXPECT_EQ(value(out.row(0)[0]), std::numeric_limits<float>::infinity());
    EXPECT_EQ(value(out.row(0)[1]), -std::numeric_limits<float>::infinity());
  });
}

TYPED_TEST(RmsNorm, NothingIsWrittenForNoRowsOrNoColumns) {
  using T = TypeParam;
  at_each_level([&] {
    Matrix<T> x(2, 8), out(2, 8);
    RmsNormArgs a = args_of<T, T>(out, x, nullptr, 8);
    rms_norm_cpu(a, 1, 1);
    a.rows = 0;
    rms_norm_cpu(a, 0, 0);
    a.rows = 2;
    a.cols = a.var_cols = 0;
    rms_norm_cpu(a, 0, 2);
    EXPECT_EQ(count_different(out, Matrix<T>(2, 8)), 0);
    EXPECT_TRUE(out.outside_untouched());
  });
}

TYPED_TEST(RmsNorm, ARowDoesNotDependOnItsPlaceOrItsNeighbours) {
  using T = TypeParam;
  const int64_t cols = 333;
  const Matrix<T> row = Matrix<T>(1, cols).randomise(1);
  at_each_level([&] {
    with_weights<T>(cols, [&](auto* weight) {
      Matrix<T> alone(1, cols);
      run(alone, row, weight, cols);
      for (const int64_t rows : {2, 5, 64}) {
        Matrix<T> x = Matrix<T>(rows, cols, 1, 3).randomise(9);
        std::copy_n(row.row(0), cols, x.row(rows - 2));
        Matrix<T> out(rows, cols, 2);
        const RmsNormArgs a = args_of(out, x, weight, cols);
        for (int64_t r = rows - 1; r >= 0; --r) rms_norm_cpu(a, r, r + 1);  // as threads might
        for (int64_t c = 0; c < cols; ++c) ASSERT_TRUE(same(out.row(rows - 2)[c], alone.row(0)[c]));
        Matrix<T> at_once(rows, cols);
        run(at_once, x, weight, cols);
        ASSERT_EQ(count_different(out, at_once), 0);
      }
    });
  });
}

TYPED_TEST(RmsNorm, InPlaceIsTheSame) {
  using T = TypeParam;
  for (const int64_t cols : {5, 64, 200})
    at_each_level([&] {
      with_weights<T>(cols, [&](auto* weight) {
        const Matrix<T> x = Matrix<T>(3, cols, 1).randomise(1);
        Matrix<T> out(3, cols), overwritten(x);
        run(out, x, weight, cols);
        run(overwritten, overwritten, weight, cols);
        EXPECT_EQ(count_different(out, overwritten), 0);
        EXPECT_TRUE(overwritten.outside_untouched());
      });
    });
}

TYPED_TEST(RmsNorm, ARowMayBeRepeatedByAStrideOfZero) {
  using T = TypeParam;
  const Matrix<T> x = Matrix<T>(1, 100).randomise(1);
  Matrix<T> out(3, 100);
  RmsNormArgs a = args_of<T, T>(out, x, nullptr, 100);
  a.rows = 3;
  a.x_stride = 0;
  rms_norm_cpu(a, 0, 3);
  for (int64_t r = 1; r < 3; ++r)
    for (int64_t c = 0; c < 100; ++c) EXPECT_TRUE(same(out.row(r)[c], out.row(0)[c]));
}

// Large outputs are stored past the caches where they are aligned: the same bits, and nothing
// beside them.
TYPED_TEST(RmsNorm, LargeOutputsAreTheSame) {
  using T = TypeParam;
  const int64_t cols = 4096 + 64,
                rows = (int64_t{16} << 20) / (cols * static_cast<int64_t>(sizeof(T))) + 1;
  const Matrix<T> row = Matrix<T>(1, cols).randomise(1);
  const int64_t aligned = 64 / static_cast<int64_t>(sizeof(T));
  Matrix<T> want(1, cols), out(rows, cols, aligned, aligned);
  at_each_level([&] {
    with_weights<T>(cols, [&](auto* weight) {
      run(want, row, weight, cols);
      // From an aligned address and from another, with aligned rows and with others.
      for (const auto& [shift, less] : {std::pair{0, 0}, std::pair{1, 0}, std::pair{0, 1}}) {
        const auto misaligned =
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(out.data()) % 64 / sizeof(T));
        RmsNormArgs a = args_of(out, row, weight, cols);
        a.out = out.data() - misaligned - shift;
        a.out_stride -= less;
        a.rows = rows;
        a.x_stride = 0;
        rms_norm_cpu(a, 0, rows);
        for (const int64_t r : {int64_t{0}, int64_t{1}, rows - 1})
          for (int64_t c = 0; c < cols; ++c)
            ASSERT_TRUE(same(static_cast<T*>(a.out)[r * a.out_stride + c], want.row(0)[c]))
                << r << " " << c;
      }
    });
  });
}

}  // namespace
}  // namespace vllm_ir::kernels
