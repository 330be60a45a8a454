// SPDX-License-Identifier: Apache-2.0
// What every kernel over rows shares: a row in chunks of 64 elements with a tail, and the choice of
// the stores. Included only by *_level.cpp files (see vector.h).
#pragma once

#include "cpp/kernels/cpu/vector.h"
#include "cpp/kernels/dtype.h"

namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL {
namespace {

constexpr int kChunk = 64;
constexpr int kPairs = kChunk / kPairSize;

struct Chunk {
  Pair pair[kPairs];
};

template <typename T>
inline Chunk load_chunk(const T* from) {
  Chunk c;
  for (int q = 0; q < kPairs; ++q) c.pair[q] = load_pair(from + q * kPairSize);
  return c;
}

template <bool kStream, typename T>
inline void store_chunk(T* to, const Chunk& c) {
  for (int q = 0; q < kPairs; ++q) store_pair<kStream>(to + q * kPairSize, c.pair[q]);
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

// Into the second-level cache. Four rows and the weights would not fit into the first.
template <typename T>
inline void prefetch_chunk(const T* from) {
  for (int line = 0; line < static_cast<int>(kChunk * sizeof(T)); line += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(from) + line, /*rw=*/0, /*locality=*/2);
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

// Calls f(T{}) with the element type.
template <typename F>
inline void with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(Float32{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kBFloat16:
      return f(BFloat16{});
  }
}

}  // namespace
}  // namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL
