// SPDX-License-Identifier: Apache-2.0
// The norms as the CUDA kernels compute them, in scalar code: the order of the sum follows from the
// width and the size of an element alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cpp/kernels/cuda/launch_shape.h"
#include "tests/cpp/kernels/model.h"

namespace vllm_ir::kernels {

// As a butterfly: afterwards each of a group of `lanes` has the same sum.
inline void add_butterfly(std::vector<float>& sums, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const std::vector<float> before = sums;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = before[i] + before[i ^ distance];
  }
}

// Vector v of 16 bytes goes to thread v % lanes, which adds its vectors one after another.
inline float cuda_sum_of_squares(const std::vector<float>& row, int64_t var_cols, int per_vector) {
  const auto cols = static_cast<int64_t>(row.size());
  const int64_t vectors = (cols + per_vector - 1) / per_vector;
  const int lanes = norm_shape(vectors).lanes;
  std::vector<float> sums(lanes, 0.f);
  for (int64_t v = 0; v < vectors; ++v) {
    float sum = 0.f;
    for (int64_t c = v * per_vector; c < std::min((v + 1) * per_vector, var_cols); ++c)
      sum += row[c] * row[c];
    sums[v % lanes] += sum;
  }
  add_butterfly(sums, std::min(lanes, kWarp));
  if (lanes <= kWarp) return sums[0];
  std::vector<float> warps(kWarp, 0.f);
  for (int w = 0; w < lanes / kWarp; ++w) warps[w] = sums[w * kWarp];
  add_butterfly(warps, kWarp);
  return warps[0];
}

// A weight of any dtype; no data: none. Erased, since each type would be compiled with each of x.
struct WeightView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::vector<float> values;

  int64_t bytes() const {
    return static_cast<int64_t>(values.size()) * (dtype == DType::kFloat32 ? 4 : 2);
  }
};

inline float rounded_to(DType dtype, float f) {
  switch (dtype) {
    case DType::kFloat16:
      return Half::of(f).value();
    case DType::kBFloat16:
      return BFloat::of(f).value();
    case DType::kFloat32:
      break;
  }
  return f;
}

// native's rounding points.
template <typename T>
std::vector<T> rounded_norm(const std::vector<float>& row, const WeightView& weight, float mean,
                            double epsilon) {
  const float scale = 1.f / std::sqrt(mean + static_cast<float>(epsilon));
  std::vector<T> out(row.size());
  for (size_t i = 0; i < row.size(); ++i) {
    float y = row[i] * scale;
    if (weight.data != nullptr)
      y = rounded_to(weight.dtype, rounded_to(weight.dtype, y) * weight.values[i]);
    out[i] = rounded<T>(y);
  }
  return out;
}

// As the kernels compute it.
template <typename T>
std::vector<T> cuda_model_norm(const std::vector<float>& row, const WeightView& weight,
                               int64_t var_cols, double epsilon) {
  const float sum = cuda_sum_of_squares(row, var_cols, kVectorBytes / sizeof(T));
  return rounded_norm<T>(row, weight, sum * (1.f / static_cast<float>(var_cols)), epsilon);
}

// With a sum that has no error.
template <typename T>
std::vector<T> exact_sum_norm(const std::vector<float>& row, const WeightView& weight) {
  const auto cols = static_cast<int64_t>(row.size());
  return rounded_norm<T>(row, weight, static_cast<float>(exact_mean_square(row, cols)), 1e-5);
}

}  // namespace vllm_ir::kernels
