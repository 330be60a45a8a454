// SPDX-License-Identifier: Apache-2.0
// The conversions of each CPU level, through the kernels: a row of ones has the scale 1, so that
// rms_norm with epsilon 0 stores its weights, and one that starts with 1 and a variance over one
// column stores the row.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpp/kernels/fused_add_rms_norm.h"
#include "cpp/kernels/rms_norm.h"
#include "tests/cpp/kernels/matrix.h"

namespace vllm_ir::kernels {
namespace {

// `numbers` rounded to T by the store.
template <typename T>
std::vector<T> stored(const std::vector<float>& numbers) {
  const auto cols = static_cast<int64_t>(numbers.size());
  const std::vector<T> ones(numbers.size(), rounded<T>(1.f));
  std::vector<T> out(numbers.size());
  RmsNormArgs a{};
  a.out = out.data();
  a.x = ones.data();
  a.weight = numbers.data();
  a.dtype = kDType<T>;
  a.weight_dtype = DType::kFloat32;
  a.rows = 1;
  a.cols = a.var_cols = a.out_stride = a.x_stride = cols;
  rms_norm_cpu(a, 0, 1);
  return out;
}

template <typename T>
void expect_stored(const std::vector<float>& numbers) {
  at_each_level([&] {
    const std::vector<T> got = stored<T>(numbers);
    for (size_t i = 0; i < numbers.size(); ++i)
      ASSERT_TRUE(same(got[i], rounded<T>(numbers[i])))
          << std::hexfloat << numbers[i] << " became " << value(got[i]) << ", not "
          << value(rounded<T>(numbers[i]));
  });
}

// Around the boundary between each two neighbours: below it, on it, above it, and far from it.
std::vector<float> numbers_with_lower_bits(int lower_bits, const std::vector<uint32_t>& lower) {
  std::vector<float> out;
  for (uint32_t upper = 0; upper < 1u << (32 - lower_bits); ++upper)
    for (const uint32_t l : lower) out.push_back(float_of_bits(upper << lower_bits | l));
  return out;
}

TEST(Rounding, BFloat16OfEveryUpperHalfIsToNearestEven) {
  expect_stored<BFloat>(numbers_with_lower_bits(16, {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff}));
}

TEST(Rounding, Float16OfEveryUpperPartIsToNearestEven) {
  expect_stored<Half>(numbers_with_lower_bits(13, {0, 0xfff, 0x1000, 0x1001}));
}

TEST(Rounding, Float16OfEveryMidpointIsEven) {
  std::vector<float> numbers;
  for (uint16_t i = 0; i < Half::kInfinity; ++i) {
    const float low = Half{i}.value();
    const float high =
        i + 1 == Half::kInfinity ? 65536.f : Half{static_cast<uint16_t>(i + 1)}.value();
    const float middle = (low + high) / 2;
    for (const float f : {low, std::nextafter(middle, 0.f), middle, std::nextafter(middle, 1e9f)}) {
      numbers.push_back(f);
      numbers.push_back(-f);
    }
  }
  expect_stored<Half>(numbers);
}

// Every 16-bit pattern is read, and stored again unchanged.
template <typename T>
void expect_every_pattern_kept() {
  std::vector<T> x(1 << 16), out(1 << 16);
  // The row starts with the 1 that makes the scale 1.
  const uint16_t one = rounded<T>(1.f).bits;
  for (size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<uint16_t>(i ^ one);
  ASSERT_EQ(value(x[0]), 1.f);
  RmsNormArgs a{};
  a.out = out.data();
  a.x = x.data();
  a.dtype = kDType<T>;
  a.rows = a.var_cols = 1;
  a.cols = a.out_stride = a.x_stride = 1 << 16;
  at_each_level([&] {
    rms_norm_cpu(a, 0, 1);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_TRUE(same(out[i], x[i])) << std::hex << x[i].bits << " " << out[i].bits;
  });
}

TEST(Rounding, EveryBFloat16IsKept) { expect_every_pattern_kept<BFloat>(); }
TEST(Rounding, EveryFloat16IsKept) { expect_every_pattern_kept<Half>(); }

// The rounded sum of fused_add_rms_norm, between each number and fractions of its last place.
template <typename T>
void expect_sums_rounded() {
  std::vector<T> x, residual;
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const T number{static_cast<uint16_t>(bits)};
    const float f = value(number), step = std::fabs(value(T{static_cast<uint16_t>(bits ^ 1)}) - f);
    for (const float part : {0.25f, 0.5f, 0.50390625f, -0.5f}) {
      x.push_back(number);
      residual.push_back(rounded<T>(step * part));
    }
  }
  std::vector<T> out(x.size()), sums(x.size());
  FusedAddRmsNormArgs a{};
  a.out = out.data();
  a.residual_out = sums.data();
  a.x = x.data();
  a.x_residual = residual.data();
  a.dtype = kDType<T>;
  a.rows = 1;
  a.cols = a.var_cols = static_cast<int64_t>(x.size());
  at_each_level([&] {
    fused_add_rms_norm_cpu(a, 0, 1);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_TRUE(same(sums[i], rounded<T>(value(x[i]) + value(residual[i]))))
          << std::hexfloat << value(x[i]) << " + " << value(residual[i]) << " became "
          << value(sums[i]);
  });
}

TEST(Rounding, BFloat16SumsAreToNearestEven) { expect_sums_rounded<BFloat>(); }
TEST(Rounding, Float16SumsAreToNearestEven) { expect_sums_rounded<Half>(); }

}  // namespace
}  // namespace vllm_ir::kernels
