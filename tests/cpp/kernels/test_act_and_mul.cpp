// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cpp/kernels/act_and_mul.h"
#include "tests/cpp/kernels/act_and_mul_model.h"
#include "tests/cpp/kernels/matrix.h"

namespace vllm_ir::kernels {
namespace {

template <typename T>
void run(Matrix<T>& out, const Matrix<T>& x, Activation activation) {
  act_and_mul_cpu(args_of(out, x, activation), 0, out.rows());
}

// One row: act(gate) * up.
template <typename T>
std::vector<T> run(const std::vector<T>& gate, const std::vector<T>& up, Activation activation) {
  const auto cols = static_cast<int64_t>(gate.size());
  Matrix<T> x(1, 2 * cols), out(1, cols);
  std::copy(gate.begin(), gate.end(), x.row(0));
  std::copy(up.begin(), up.end(), x.row(0) + cols);
  run(out, x, activation);
  return std::vector<T>(out.row(0), out.row(0) + cols);
}

std::vector<float> activated(const std::vector<float>& gate, Activation activation) {
  return run(gate, std::vector<float>(gate.size(), 1.f), activation);
}

TEST(ActAndMul, TheActivationIsWithinItsUlps) {
  const std::vector<float> gate = all_kinds_of_numbers();
  at_each_level([&] {
    for (const auto& [activation, bound] :
         {std::pair{Activation::kSilu, 3.0}, std::pair{Activation::kGelu, 6.0},
          std::pair{Activation::kGeluTanh, 4.0}}) {
      const std::vector<float> got = activated(gate, activation);
      double largest = 0;
      for (size_t i = 0; i < gate.size(); ++i) {
        const double off = ulps(got[i], exact_activation(gate[i], activation));
        ASSERT_LE(off, bound) << std::hexfloat << gate[i] << " became " << got[i];
        largest = std::max(largest, off);
      }
      RecordProperty(std::to_string(static_cast<int>(activation)), std::to_string(largest));
    }
  });
}

TEST(ActAndMul, EveryLevelHasTheSameBits) {
  const std::vector<float> gate = all_kinds_of_numbers();
  for (const Activation activation : kActivations) {
    ASSERT_TRUE(set_cpu_level(CpuLevel::kBase));
    const std::vector<float> want = activated(gate, activation);
    at_each_level([&] {
      const std::vector<float> got = activated(gate, activation);
      for (size_t i = 0; i < gate.size(); ++i)
        ASSERT_TRUE(same(got[i], want[i])) << std::hexfloat << gate[i];
    });
  }
}

TEST(ActAndMul, SpecialValuesAreTorchs) {
  at_each_level([&] {
    for (const Activation activation : kActivations)
      expect_torchs_values(activated(special_gates(), activation).data());
    // Around the largest exponential: a value, then a zero.
    const auto edge = activated({-88.72f, -88.73f}, Activation::kSilu);
    EXPECT_LT(edge[0], -2e-37f);
    EXPECT_TRUE(same(edge[1], -0.f));
  });
}

template <typename T>
struct ActAndMulOf : testing::Test {};
using Types = testing::Types<float, Half, BFloat>;
TYPED_TEST_SUITE(ActAndMulOf, Types);

template <typename T>
std::vector<T> every_16_bit_pattern() {
  std::vector<T> out;
  for (uint32_t i = 0; i < 1 << 16; ++i) out.push_back(T{static_cast<uint16_t>(i)});
  return out;
}
template <>
std::vector<float> every_16_bit_pattern<float>() {
  return all_kinds_of_numbers();
}

TYPED_TEST(ActAndMulOf, BothRoundingsAreTheModelsBitForBit) {
  using T = TypeParam;
  const std::vector<T> gate = every_16_bit_pattern<T>();
  std::vector<float> wide;
  for (const T g : gate) wide.push_back(value(g));
  std::vector<T> up = gate;
  std::rotate(up.begin(), up.begin() + 12345, up.end());
  at_each_level([&] {
    for (const Activation activation : kActivations) {
      const std::vector<float> act = activated(wide, activation);
      const std::vector<T> got = run(gate, up, activation);
      for (size_t i = 0; i < gate.size(); ++i)
        ASSERT_TRUE(same(got[i], rounded_product(act[i], up[i]))) << wide[i] << " " << value(up[i]);
    }
  });
}

// Only an activation that lies next to a rounding boundary may come out one place off.
template <typename T>
void expect_few_differ_from_the_exact_activation() {
  std::vector<T> gate;
  for (const T g : every_16_bit_pattern<T>())
    if (std::isfinite(value(g))) gate.push_back(g);
  const std::vector<T> ones(gate.size(), rounded<T>(1.f));
  for (const Activation activation : kActivations) {
    const std::vector<T> got = run(gate, ones, activation);
    size_t different = 0;
    for (size_t i = 0; i < gate.size(); ++i) {
      const T want = rounded<T>(static_cast<float>(exact_activation(value(gate[i]), activation)));
      if (same(got[i], want)) continue;
      ++different;
      EXPECT_EQ(std::abs(got[i].bits - want.bits), 1) << value(gate[i]);
    }
    EXPECT_LT(different, gate.size() / 1000);
  }
}

TEST(ActAndMul, FewFloat16DifferFromTheExactActivationRounded) {
  expect_few_differ_from_the_exact_activation<Half>();
}
TEST(ActAndMul, FewBFloat16DifferFromTheExactActivationRounded) {
  expect_few_differ_from_the_exact_activation<BFloat>();
}

// All rows against rows that were computed alone, in one run of whole chunks.
template <typename T>
void expect_rows(const Matrix<T>& out, const Matrix<T>& x, Activation activation) {
  const int64_t cols = out.cols(), padded = (cols + 63) / 64 * 64;
  for (int64_t r = 0; r < out.rows(); ++r) {
    std::vector<T> gate(x.row(r), x.row(r) + cols), up(x.row(r) + cols, x.row(r) + 2 * cols);
    gate.resize(padded);
    up.resize(padded);
    const std::vector<T> want = run(gate, up, activation);
    for (int64_t c = 0; c < cols; ++c)
      ASSERT_TRUE(same(out.row(r)[c], want[c])) << "row " << r << " column " << c;
  }
}

TYPED_TEST(ActAndMulOf, EveryWidthOffsetAndGapIsWrittenWhole) {
  using T = TypeParam;
  at_each_level([&] {
    for (int64_t cols = 1; cols <= 2049; cols += cols < 200 ? 1 : 37)
      for (const Activation activation : kActivations) {
        SCOPED_TRACE(cols);
        const Matrix<T> x = Matrix<T>(2, 2 * cols, cols % 3, cols % 5).randomise(cols, 3);
        Matrix<T> out(2, cols, (cols + 1) % 3, cols % 4);
        run(out, x, activation);
        expect_rows(out, x, activation);
        ASSERT_TRUE(out.outside_untouched());
      }
  });
}

// The second half starts 8 bytes after a multiple of 16.
TYPED_TEST(ActAndMulOf, AnUnalignedSecondHalfIsRead) {
  using T = TypeParam;
  at_each_level([&] {
    for (const int64_t cols : {3420, 3584, 1234, 3}) {
      const Matrix<T> x = Matrix<T>(3, 2 * cols).randomise(1);
      Matrix<T> out(3, cols);
      run(out, x, Activation::kSilu);
      expect_rows(out, x, Activation::kSilu);
    }
  });
}

TYPED_TEST(ActAndMulOf, NothingIsWrittenForNoRowsOrNoColumns) {
  using T = TypeParam;
  at_each_level([&] {
    const Matrix<T> x(2, 16);
    Matrix<T> out(2, 8);
    ActAndMulArgs a = args_of(out, x, Activation::kSilu);
    act_and_mul_cpu(a, 1, 1);
    a.rows = 0;
    act_and_mul_cpu(a, 0, 0);
    a.rows = 2;
    a.cols = 0;
    act_and_mul_cpu(a, 0, 2);
    EXPECT_EQ(count_different(out, Matrix<T>(2, 8)), 0);
    EXPECT_TRUE(out.outside_untouched());
  });
}

TYPED_TEST(ActAndMulOf, RowsMayBeComputedInAnyOrderAndRepeated) {
  using T = TypeParam;
  const Matrix<T> x = Matrix<T>(33, 200, 3).randomise(1);
  Matrix<T> at_once(33, 100), one_by_one(33, 100), repeated(3, 100);
  at_each_level([&] {
    run(at_once, x, Activation::kGelu);
    const ActAndMulArgs a = args_of(one_by_one, x, Activation::kGelu);
    for (int64_t r = 32; r >= 0; --r) act_and_mul_cpu(a, r, r + 1);  // as threads might
    EXPECT_EQ(count_different(at_once, one_by_one), 0);
    ActAndMulArgs b = args_of(repeated, x, Activation::kGelu);
    b.x_stride = 0;
    act_and_mul_cpu(b, 0, 3);
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t c = 0; c < 100; ++c) EXPECT_TRUE(same(repeated.row(r)[c], at_once.row(0)[c]));
  });
}

// Large outputs are stored past the caches where they are aligned: the same bits, and nothing
// beside them.
TYPED_TEST(ActAndMulOf, LargeOutputsAreTheSame) {
  using T = TypeParam;
  const int64_t cols = 4096 + 64,
                rows = (int64_t{16} << 20) / (cols * static_cast<int64_t>(sizeof(T))) + 1;
  const int64_t aligned = 64 / static_cast<int64_t>(sizeof(T));
  const Matrix<T> x = Matrix<T>(1, 2 * cols).randomise(1);
  Matrix<T> want(1, cols), out(rows, cols, aligned, aligned);
  at_each_level([&] {
    run(want, x, Activation::kSilu);
    for (const auto& [shift, less] : {std::pair{0, 0}, std::pair{1, 0}, std::pair{0, 1}}) {
      const auto misaligned =
          static_cast<int64_t>(reinterpret_cast<uintptr_t>(out.data()) % 64 / sizeof(T));
      ActAndMulArgs a = args_of(out, x, Activation::kSilu);
      T* const to = out.data() - misaligned - shift;
      a.out = to;
      a.out_stride -= less;
      a.x_stride = 0;
      act_and_mul_cpu(a, 0, rows);
      for (const int64_t r : {int64_t{0}, int64_t{1}, rows - 1})
        for (int64_t c = 0; c < cols; ++c)
          ASSERT_TRUE(same(to[r * a.out_stride + c], want.row(0)[c])) << r << " " << c;
    }
  });
}

// The pages between the rows are never touched, so they take no memory.
TYPED_TEST(ActAndMulOf, RowsMayLieMoreThan2To31ElementsApart) {
  using T = TypeParam;
  const int64_t stride = (int64_t{1} << 31) + 640, cols = 100;
  const size_t bytes = (stride + 2 * cols) * sizeof(T);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    GTEST_SKIP() << "the system gives no " << bytes << " bytes of addresses";
  T* const far = static_cast<T*>(memory);
  const Matrix<T> x = Matrix<T>(2, 2 * cols).randomise(1);
  Matrix<T> want(2, cols), out(2, cols);
  std::copy_n(x.row(0), 2 * cols, far);
  std::copy_n(x.row(1), 2 * cols, far + stride);
  at_each_level([&] {
    run(want, x, Activation::kSilu);
    ActAndMulArgs a = args_of(out, x, Activation::kSilu);
    a.x = far;
    a.x_stride = stride;
    act_and_mul_cpu(a, 0, 2);
    EXPECT_EQ(count_different(out, want), 0);
  });
  munmap(memory, bytes);
}

}  // namespace
}  // namespace vllm_ir::kernels
