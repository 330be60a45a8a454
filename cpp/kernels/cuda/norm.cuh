// SPDX-License-Identifier: Apache-2.0
// What the norms share: one pass over a row that sums the squares and keeps the row in registers,
// one that scales, weighs and stores it. What a row is and where it goes, each kernel tells.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cpp/kernels/cuda/row_sum.cuh"
#include "cpp/kernels/cuda/vector.cuh"

namespace vllm_ir::kernels {

struct NormColumns {
  int cols;
  int var_cols;
  float per_column;  // 1 / var_cols
  float epsilon;
};

__device__ inline int64_t row_of_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

// Threads beyond the last row get one without columns. They can't leave: the shuffles name every
// lane of a warp.
__device__ inline NormColumns columns_of(const NormColumns& n, bool has_row) {
  return has_row ? n : NormColumns{0, 0, 0.f, 0.f};
}

// Columns from `var_cols` on do not count.
template <int N>
__device__ inline float sum_of_squares(const Floats<N>& v, int c, int var_cols) {
  const int left = var_cols - c;
  float sum = 0.f;
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (j < left) sum += v.f[j] * v.f[j];
  return sum;
}

// native's rounding points. The product's rounding to W, which is T or Float32, is the last one or
// none.
template <typename T, typename W, int N>
__device__ inline Vector<T, N> normed(const Floats<N>& v, const Vector<W, N>& w, float scale) {
  Floats<N> y;
#pragma unroll
  for (int j = 0; j < N; ++j) y.f[j] = v.f[j] * scale;
  if constexpr (!std::is_same_v<W, NoWeight>)
    y = product(to_floats(rounded_to<W>(y)), to_floats(w));
  return rounded_to<T>(y);
}

// `Row` has Element, Kept (a vector of what the norm is of), load(c) -> Kept, and
// store(c, kept, normed). The wide loads come before the sum, the weights among them, so that
// memory is waited for once; the others need too many registers for that. What is read again comes
// from memory that no other thread writes, and this one only after its last read: outputs may be
// the inputs.
template <bool kWide, typename W, typename Row>
__device__ inline void normalise(const Row& row, const W* weight, const NormColumns& n) {
  using T = typename Row::Element;
  constexpr int N = kPerVector<T>;
  const int begin = static_cast<int>(threadIdx.x) * N, step = static_cast<int>(blockDim.x) * N;
  typename Row::Kept kept[kKeptVectors];
#pragma unroll
  for (int k = 0; k < kKeptVectors; ++k) kept[k] = row.load(begin + k * step);
  Vector<W, N> weights[kKeptVectors];
  const auto load_weight = [&](int k) {
    weights[k] = load<kWide, N>(weight, begin + k * step, n.cols);
  };
  if constexpr (kWide) {
#pragma unroll
    for (int k = 0; k < kKeptVectors; ++k) load_weight(k);
  }

  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < kKeptVectors; ++k)
    sum += sum_of_squares(to_floats(kept[k]), begin + k * step, n.var_cols);
#pragma unroll 1
  for (int c = begin + kKeptVectors * step; c < n.var_cols; c += step)
    sum += sum_of_squares(to_floats(row.load(c)), c, n.var_cols);
  const float scale = rsqrtf(row_sum(sum) * n.per_column + n.epsilon);

#pragma unroll
  for (int k = 0; k < kKeptVectors; ++k) {
    if constexpr (!kWide) load_weight(k);
    row.store(begin + k * step, kept[k], normed<T>(to_floats(kept[k]), weights[k], scale));
  }
#pragma unroll 1
  for (int c = begin + kKeptVectors * step; c < n.cols; c += step) {
    const typename Row::Kept again = row.load(c);
    row.store(c, again, normed<T>(to_floats(again), load<kWide, N>(weight, c, n.cols), scale));
  }
}

}  // namespace vllm_ir::kernels
