// SPDX-License-Identifier: Apache-2.0
// The norms in scalar code: native's rounding points, with the kernels' order of the sum or with a
// sum in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/cpp/kernels/elements.h"

namespace vllm_ir::kernels {

// Element i goes to partial sum i % 64, they start anew every 4096 elements, and the 64 are added
// as a tree.
inline float kernel_sum_of_squares(const std::vector<float>& row, int64_t n) {
  std::vector<float> sums(64, 0.f);
  const int64_t whole = n / 64 * 64;
  for (int64_t begin = 0; begin < whole; begin += 4096) {
    std::vector<float> block(64, 0.f);
    for (int64_t i = begin; i < std::min(begin + 4096, whole); ++i)
      block[i % 64] += row[i] * row[i];
    for (int j = 0; j < 64; ++j) sums[j] += block[j];
  }
  for (int64_t i = whole; i < n; ++i) sums[i % 64] += row[i] * row[i];
  for (int half = 32; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  return sums[0];
}

inline double exact_mean_square(const std::vector<float>& row, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(row[i]) * row[i];
  return sum / static_cast<double>(n);
}

enum class Sum { kLikeKernel, kExact };

inline float model_scale(const std::vector<float>& row, int64_t var_cols, double epsilon, Sum sum) {
  const float mean = sum == Sum::kExact
                         ? static_cast<float>(exact_mean_square(row, var_cols))
                         : kernel_sum_of_squares(row, var_cols) / static_cast<float>(var_cols);
  return 1.f / std::sqrt(mean + static_cast<float>(epsilon));
}

// One element. W is the weight's type; `weight` null: none.
template <typename T, typename W>
T model_element(float x, float scale, const W* weight) {
  const float y = x * scale;
  if (weight == nullptr) return rounded<T>(y);
  return rounded<T>(value(rounded<W>(value(rounded<W>(y)) * value(*weight))));
}

template <typename T, typename W>
std::vector<T> model_norm(const std::vector<float>& row, const W* weight, int64_t var_cols,
                          double epsilon, Sum sum = Sum::kLikeKernel) {
  const float scale = model_scale(row, var_cols, epsilon, sum);
  std::vector<T> out(row.size());
  for (size_t i = 0; i < row.size(); ++i)
    out[i] = model_element<T, W>(row[i], scale, weight == nullptr ? nullptr : weight + i);
  return out;
}

// Without any rounding.
template <typename W>
double exact_element(const std::vector<float>& row, double mean_square, const W* weight, int64_t i,
                     double epsilon) {
  return row[i] / std::sqrt(mean_square + epsilon) * (weight == nullptr ? 1.0 : value(weight[i]));
}

// A result is within this of the exact one, as a part of it: the last place of each rounding, twice
// for the two of a 16-bit weight, and in float32 the error of the sum, the root and the products.
template <typename T>
constexpr double kTolerance = 2e-6;
template <>
inline constexpr double kTolerance<Half> = 1.0 / 1024;
template <>
inline constexpr double kTolerance<BFloat> = 1.0 / 128;

template <typename T>
std::vector<float> values(const T* row, int64_t cols) {
  std::vector<float> out(cols);
  for (int64_t i = 0; i < cols; ++i) out[i] = value(row[i]);
  return out;
}

}  // namespace vllm_ir::kernels
