// SPDX-License-Identifier: Apache-2.0
// What the tests of silu_and_mul and gelu_and_mul share, on the CPU and on CUDA: the exact
// activations, native's roundings, and the numbers to try.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cpp/kernels/act_and_mul.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/kernels/matrix.h"

namespace vllm_ir::kernels {

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
ActAndMulArgs args_of(Matrix<T>& out, const Matrix<T>& x, Activation activation) {
  ActAndMulArgs a{};
  a.out = out.data();
  a.x = x.data();
  a.dtype = kDType<T>;
  a.activation = activation;
  a.rows = out.rows();
  a.cols = out.cols();
  a.out_stride = out.stride();
  a.x_stride = x.stride();
  return a;
}

// In double, from the float32 argument of exp and erfc that the definition has. An exponential
// above float32's range is infinite there, so that the quotient is a zero.
inline double exact_activation(float g, Activation activation) {
  const auto gated = [&](float argument) {
    const double e = std::exp(-static_cast<double>(argument));
    return e > std::numeric_limits<float>::max() ? g / static_cast<double>(kInfinity) : g / (1 + e);
  };
  switch (activation) {
    case Activation::kSilu:
      return gated(g);
    case Activation::kGelu:
      return 0.5 * g * std::erfc(static_cast<double>(g * -static_cast<float>(std::sqrt(0.5))));
    case Activation::kGeluTanh:
      break;
  }
  const float cube = g * g * g;
  return gated((g + cube * 0.044715f) * static_cast<float>(std::sqrt(8 / 3.14159265358979323846)));
}

// The distance in units of the last place of float32, those of the smallest numbers included.
inline double ulps(float got, double want) {
  const int exponent = want == 0 ? -126 : std::max(std::ilogb(want), -126);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

inline std::vector<float> special_gates() {
  const float nan = std::nanf("");
  return {0.f, -0.f, kInfinity, -kInfinity, nan, -nan, -1000.f, -3e38f, 3e38f};
}

// Of special_gates(), with any activation.
inline void expect_torchs_values(const float* activated) {
  EXPECT_TRUE(same(activated[0], 0.f));
  EXPECT_TRUE(same(activated[1], -0.f));
  EXPECT_EQ(activated[2], kInfinity);
  EXPECT_TRUE(std::isnan(activated[3]));  // -inf * 0
  EXPECT_TRUE(std::isnan(activated[4]) && std::isnan(activated[5]));
  EXPECT_TRUE(same(activated[6], -0.f));
  EXPECT_TRUE(same(activated[7], -0.f));
  EXPECT_EQ(activated[8], 3e38f);
}

// What act_and_mul.h says of CUDA.
constexpr std::pair<Activation, double> kCudaUlps[] = {
    {Activation::kSilu, 7}, {Activation::kGelu, 10}, {Activation::kGeluTanh, 7}};

// 0 where nothing is said and the result is tiny, as it should be.
inline double cuda_ulps(float got, float g, Activation activation) {
  const double want = exact_activation(g, activation);
  if (activation == Activation::kGelu && g < -13 && std::fabs(got) < 1e-36f) return 0;
  return ulps(got, want);
}

// Numbers of every magnitude, both signs, and many where the functions bend.
inline std::vector<float> all_kinds_of_numbers() {
  std::vector<float> out;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 16411) {
    const float f = float_of_bits(static_cast<uint32_t>(bits));
    if (std::isfinite(f)) out.push_back(f);
  }
  for (int i = -400000; i <= 400000; ++i) out.push_back(static_cast<float>(i) * 0.00025f);
  return out;
}

// One row: these gates, and ones to multiply with.
inline Matrix<float> with_ones(const std::vector<float>& gates) {
  const auto cols = static_cast<int64_t>(gates.size());
  Matrix<float> x(1, 2 * cols);
  std::copy(gates.begin(), gates.end(), x.row(0));
  std::fill_n(x.row(0) + cols, cols, 1.f);
  return x;
}

// The activation rounded, times up, rounded: from the activation in float32.
template <typename T>
T rounded_product(float activated, T up) {
  return rounded<T>(value(rounded<T>(activated)) * value(up));
}

}  // namespace vllm_ir::kernels
