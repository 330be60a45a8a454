// SPDX-License-Identifier: Apache-2.0
// What the norms share: the sum of a row's squares, and the scaled and weighted chunk. Included
// only by *_level.cpp files (see vector.h).
//
// The order of the sum is part of the source, so that every level gives the same bits: element i
// goes to partial sum i % 64, the partial sums start anew every 4096 elements, and the 64 are added
// as a tree.
#pragma once

#include "cpp/kernels/cpu/row.h"

namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL {
namespace {

constexpr int64_t kBlock = 4096;

inline void add_squares(Chunk& sums, const Chunk& c) {
  for (int q = 0; q < kPairs; ++q) sums.pair[q] = sums.pair[q] + c.pair[q] * c.pair[q];
}

// The 64 sums added as a tree: 32 and 32, 16 and 16, ... by distance in the row.
template <typename T>
inline float total(Chunk sums) {
  for (int half = kPairs / 2; half > 0; half /= 2)
    for (int q = 0; q < half; ++q) sums.pair[q] = sums.pair[q] + sums.pair[q + half];
  const Pair in_order = kEvenOdd<T> ? merge_even_odd(sums.pair[0]) : sums.pair[0];
  float f[kPairSize];
  __builtin_memcpy(f, &in_order, sizeof f);
  for (int half = kPairSize / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) f[i] += f[i + half];
  return f[0];
}

// `row` gives the float32 values of a row: chunk(i) the 64 from column i on, tail(i, n) the `n` <
// 64 from column i on.
template <typename Row>
inline float sum_of_squares(const Row& row, int64_t cols) {
  Chunk sums = {};
  int64_t i = 0;
  while (i + kChunk <= cols) {
    const int64_t block_end = cols - i > kBlock ? i + kBlock : cols;
    Chunk block = {};
    for (; i + kChunk <= block_end; i += kChunk) add_squares(block, row.chunk(i));
    for (int q = 0; q < kPairs; ++q) sums.pair[q] = sums.pair[q] + block.pair[q];
  }
  if (i < cols) add_squares(sums, row.tail(i, cols - i));
  return total<typename Row::Element>(sums);
}

inline float norm_scale(float sum, int64_t var_cols, float epsilon) {
  return 1.f / __builtin_sqrtf(sum / static_cast<float>(var_cols) + epsilon);
}

// A NaN's lower bits must be zero here, see round_upper.
inline float float_epsilon(double epsilon) {
  return epsilon == epsilon ? static_cast<float>(epsilon) : __builtin_nanf("");
}

struct NoWeight {};

// Scales a chunk, multiplies it by the weights, stores it. `round_to(pair, W)` and the store are
// native's rounding points.
template <bool kStream, typename T, typename W>
inline void store_normed(T* out, const Chunk& c, const W* weight, float scale) {
  for (int q = 0; q < kPairs; ++q) {
    Pair p = c.pair[q] * scale;
    if constexpr (!__is_same(W, NoWeight))
      p = round_to(p, W{}) * load_pair_as<T>(weight + q * kPairSize);
    if constexpr (__is_same(T, BFloat16) && __is_same(W, Float32)) p = clean_nan(p);
    store_pair<kStream>(out + q * kPairSize, p);
  }
}

template <typename T, typename W>
inline void store_normed_tail(T* out, const Chunk& c, const W* weight, float scale, int64_t n) {
  Tail<T> tail;
  if constexpr (__is_same(W, NoWeight)) {
    store_normed<false>(tail.elements, c, weight, scale);
  } else {
    store_normed<false>(tail.elements, c, Tail<W>(weight, n).elements, scale);
  }
  tail.store(out, n);
}

template <typename W>
inline const W* weight_at(const W* weight, int64_t column) {
  if constexpr (__is_same(W, NoWeight)) return nullptr;
  return weight + column;
}

// Calls f(T{}, W{}) with the element types.
template <typename F>
inline void with_types(DType dtype, bool has_weight, DType weight_dtype, const F& f) {
  const auto with_weight = [&](auto t) {
    if (!has_weight) return f(t, NoWeight{});
    if (weight_dtype == dtype) return f(t, t);
    f(t, Float32{});
  };
  with_type(dtype, with_weight);
}

}  // namespace
}  // namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL
