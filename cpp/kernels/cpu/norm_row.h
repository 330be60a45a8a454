// SPDX-License-Identifier: Apache-2.0
// What the norms share: a row in chunks of 64 elements, the sum of its squares, and the scaled and
// weighted chunk. Included only by *_level.cpp files (see vector.h).
//
// The order of the sum is part of the source, so that every level gives the same bits: element i
// goes to partial sum i % 64, the partial sums start anew every 4096 elements, and the 64 are added
// as a tree.
#pragma once

#include "cpp/kernels/cpu/vector.h"
#include "cpp/kernels/dtype.h"

namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL {
namespace {

constexpr int kChunk = 64;
constexpr int kPairs = kChunk / kPairSize;
constexpr int64_t kBlock = 4096;

struct Chunk {
  Pair pair[kPairs];
};

template <typename T>
inline Chunk load_chunk(const T* from) {
  Chunk c;
  for (int q = 0; q < kPairs; ++q) c.pair[q] = load_pair(from + q * kPairSize);
  return c;
}

// The chunk that a row ends with when its width is no multiple of 64: `n` < 64 elements, then
// zeros. Whole chunks and this one are separate calls everywhere: a test inside the loop would keep
// the chunk out of registers.
template <typename T>
struct Tail {
  T elements[kChunk];
  Tail() {}
  Tail(const T* from, int64_t n) { load_part<sizeof elements>(elements, from, n * sizeof(T)); }
  void store(T* to, int64_t n) const { store_part<sizeof elements>(to, elements, n * sizeof(T)); }
};

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

// Into the second-level cache. Four rows and the weights would not fit into the first.
template <typename T>
inline void prefetch_chunk(const T* from) {
  for (int line = 0; line < static_cast<int>(kChunk * sizeof(T)); line += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(from) + line, /*rw=*/0, /*locality=*/2);
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

// Streaming stores save the read of the line that they overwrite. They pay when the caches can't
// hold the output anyway.
constexpr int64_t kStreamBytes = 16 << 20;

inline bool can_stream(const void* out, const void* in, int64_t rows, int64_t cols, int64_t stride,
                       int64_t element_size) {
#if defined(__SSE2__)
  const bool aligned = reinterpret_cast<uintptr_t>(out) % kVectorBytes == 0 &&
                       stride * element_size % kVectorBytes == 0;
  return aligned && out != in && rows * cols * element_size >= kStreamBytes;
#else
  return false;
#endif
}

// Calls f(T{}, W{}) with the element types.
template <typename F>
inline void with_types(DType dtype, bool has_weight, DType weight_dtype, const F& f) {
  const auto with_weight = [&](auto t) {
    if (!has_weight) return f(t, NoWeight{});
    if (weight_dtype == dtype) return f(t, t);
    f(t, Float32{});
  };
  switch (dtype) {
    case DType::kFloat32:
      return with_weight(Float32{});
    case DType::kFloat16:
      return with_weight(Float16{});
    case DType::kBFloat16:
      return with_weight(BFloat16{});
  }
}

}  // namespace
}  // namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL
