// SPDX-License-Identifier: Apache-2.0
// Elements, their conversions, and vectors of 16 bytes of x that are read and written as one access
// or, where memory does not allow that, element by element.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "cpp/kernels/cuda/launch_shape.h"

// The host emulation counts accesses to global memory and checks their alignment here.
#ifndef VLLM_IR_ON_LOAD
#define VLLM_IR_ON_LOAD(pointer, bytes)
#define VLLM_IR_ON_STORE(pointer, bytes)
#endif

namespace vllm_ir::kernels {

// Elements in memory.
struct Float32 {
  uint32_t bits;
};
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct NoWeight {};

template <typename T>
constexpr int kPerVector = kVectorBytes / sizeof(T);

// N elements of T: 16 bytes, or 32 for float32 weights of 16-bit elements. Held as words of 32
// bits, since a 16-bit element takes as many registers as a word.
template <typename T, int N>
struct Vector {
  static constexpr int kPerWord = 4 / sizeof(T);
  static constexpr int kWords = N / kPerWord;
  uint32_t words[kWords];
};
template <int N>
struct Vector<NoWeight, N> {};

template <int N>
struct Floats {
  float f[N];
};

template <typename To, typename From>
__device__ inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

__device__ inline float2 unpacked(uint32_t word, Float16) {
  return __half22float2(bit_cast<__half2>(word));
}
__device__ inline float2 unpacked(uint32_t word, BFloat16) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}
__device__ inline uint32_t packed(float low, float high, Float16) {
  return bit_cast<uint32_t>(__floats2half2_rn(low, high));
}
__device__ inline uint32_t packed(float low, float high, BFloat16) {
  return bit_cast<uint32_t>(__floats2bfloat162_rn(low, high));
}

template <typename T, int N>
__device__ inline Floats<N> to_floats(const Vector<T, N>& v) {
  Floats<N> out;
#pragma unroll
  for (int i = 0; i < Vector<T, N>::kWords; ++i) {
    if constexpr (sizeof(T) == 4) {
      out.f[i] = __uint_as_float(v.words[i]);
    } else {
      const float2 pair = unpacked(v.words[i], T{});
      out.f[2 * i] = pair.x;
      out.f[2 * i + 1] = pair.y;
    }
  }
  return out;
}
template <int N>
__device__ inline const Floats<N>& to_floats(const Floats<N>& f) {
  return f;
}

// Rounds to nearest even.
template <typename T, int N>
__device__ inline Vector<T, N> rounded_to(const Floats<N>& f) {
  Vector<T, N> out;
#pragma unroll
  for (int i = 0; i < Vector<T, N>::kWords; ++i) {
    if constexpr (sizeof(T) == 4)
      out.words[i] = __float_as_uint(f.f[i]);
    else
      out.words[i] = packed(f.f[2 * i], f.f[2 * i + 1], T{});
  }
  return out;
}

template <int N>
__device__ inline Floats<N> product(const Floats<N>& a, const Floats<N>& b) {
  Floats<N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) out.f[j] = a.f[j] * b.f[j];
  return out;
}

// The vector of a row that begins at column `c`. Columns from `cols` on read as zero. kWide:
// `row + c` is aligned to 16 bytes, and `cols` is a multiple of N.
template <bool kWide, int N, typename T>
__device__ inline Vector<T, N> load(const T* row, int c, int cols) {
  using V = Vector<T, N>;
  V v = {};
  if constexpr (kWide) {
    if (c >= cols) return v;
#pragma unroll
    for (int i = 0; i < V::kWords; i += 4) {
      const T* from = row + c + i * V::kPerWord;
      VLLM_IR_ON_LOAD(from, kVectorBytes);
      const uint4 four = *reinterpret_cast<const uint4*>(from);
      v.words[i] = four.x, v.words[i + 1] = four.y, v.words[i + 2] = four.z,
      v.words[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (c + j >= cols) continue;
      VLLM_IR_ON_LOAD(row + c + j, sizeof(T));
      const uint32_t bits = row[c + j].bits;
      v.words[j / V::kPerWord] |= bits << (j % V::kPerWord * 16);
    }
  }
  return v;
}
template <bool kWide, int N>
__device__ inline Vector<NoWeight, N> load(const NoWeight*, int, int) {
  return {};
}

template <bool kWide, int N, typename T>
__device__ inline void store(T* row, int c, int cols, const Vector<T, N>& v) {
  using V = Vector<T, N>;
  if constexpr (kWide) {
    static_assert(V::kWords == 4);
    if (c >= cols) return;
    VLLM_IR_ON_STORE(row + c, kVectorBytes);
    *reinterpret_cast<uint4*>(row + c) = uint4{v.words[0], v.words[1], v.words[2], v.words[3]};
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (c + j >= cols) continue;
      VLLM_IR_ON_STORE(row + c + j, sizeof(T));
      row[c + j] = {
          static_cast<decltype(T::bits)>(v.words[j / V::kPerWord] >> (j % V::kPerWord * 16))};
    }
  }
}

}  // namespace vllm_ir::kernels
