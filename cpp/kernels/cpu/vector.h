// SPDX-License-Identifier: Apache-2.0
// The vectors of one CPU level: load and store of pairs of them for each element type, and the
// rounding. Included only by *_level.cpp files, which are compiled once a level: everything here is
// in the level's own unnamed namespace, and nothing comes from std. A shared inline function would
// be merged by the linker, and then the oldest processor might get the AVX-512 copy.
//
// The vectors are the compiler's own (GCC and Clang), so one source serves all levels and
// architectures. Only the float16 conversions and the streaming stores name instructions.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL {
namespace {

#if defined(__AVX512BW__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;

using Floats = float __attribute__((vector_size(kVectorBytes)));
using Words = uint32_t __attribute__((vector_size(kVectorBytes)));
using Ints = int32_t __attribute__((vector_size(kVectorBytes)));

// 2 * kLanes neighbouring elements of a row. In which half each one is depends on the element type
// of the row (its layout). Where kEvenOdd<T>, `a` has the even elements and `b` the odd ones, so
// that 16-bit elements are taken apart with a shift and a mask; else `a` has the first half.
struct Pair {
  Floats a, b;
};
constexpr int kPairSize = 2 * kLanes;
template <typename T>
constexpr bool kEvenOdd = false;

inline Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
inline Pair operator*(Pair x, Pair y) { return {x.a * y.a, x.b * y.b}; }
inline Pair operator*(Pair x, float y) { return {x.a * y, x.b * y}; }

template <typename Vector>
inline Vector load_vector(const void* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

// kStream: past the caches. The address must then be a multiple of kVectorBytes.
template <bool kStream, typename Vector>
inline void store_vector(void* to, Vector v) {
#if defined(__AVX512BW__)
  if constexpr (kStream) return _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)v);
#elif defined(__AVX2__)
  if constexpr (kStream) return _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)v);
#elif defined(__SSE2__)
  if constexpr (kStream) return _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)v);
#endif
  __builtin_memcpy(to, &v, sizeof v);
}

// Makes streamed stores visible to other threads before anything stored later.
inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

#if defined(__AVX512BW__)
inline __mmask64 mask_of(int64_t bytes) {
  return bytes <= 0 ? 0 : bytes < 64 ? (uint64_t{1} << bytes) - 1 : ~uint64_t{0};
}
#endif

// Copies `bytes` <= kSize bytes, and zeros up to kSize.
template <int kSize>
inline void load_part(void* to, const void* from, int64_t bytes) {
#if defined(__AVX512BW__)
  // With masks, and not a byte more is touched. Narrower stores would make the loads that follow
  // wait.
  for (int i = 0; i < kSize; i += 64, bytes -= 64) {
    const __m512i v = _mm512_maskz_loadu_epi8(mask_of(bytes), static_cast<const char*>(from) + i);
    _mm512_storeu_si512(static_cast<char*>(to) + i, v);
  }
#else
  __builtin_memset(to, 0, kSize);
  __builtin_memcpy(to, from, bytes);
#endif
}

// Copies `bytes` <= kSize bytes.
template <int kSize>
inline void store_part(void* to, const void* from, int64_t bytes) {
#if defined(__AVX512BW__)
  for (int i = 0; i < kSize; i += 64, bytes -= 64) {
    const __m512i v = _mm512_loadu_si512(static_cast<const char*>(from) + i);
    _mm512_mask_storeu_epi8(static_cast<char*>(to) + i, mask_of(bytes), v);
  }
#else
  __builtin_memcpy(to, from, bytes);
#endif
}

// ---- float32

struct Float32 {
  float value;
};

inline Pair load_pair(const Float32* from) {
  return {load_vector<Floats>(from), load_vector<Floats>(from + kLanes)};
}

template <bool kStream>
inline void store_pair(Float32* to, Pair p) {
  store_vector<kStream>(to, p.a);
  store_vector<kStream>(to + kLanes, p.b);
}

inline Pair round_to(Pair p, Float32) { return p; }

// ---- bfloat16

struct BFloat16 {
  uint16_t bits;
};
template <>
constexpr bool kEvenOdd<BFloat16> = true;

inline Pair load_pair(const BFloat16* from) {
  const Words w = load_vector<Words>(from);
  return {(Floats)(w << 16), (Floats)(w & 0xffff0000)};
}

// Rounds to nearest even; the result is in the upper 16 bits, the lower ones are left over.
// For infinities this is right as well, and for a NaN whose lower 16 bits are zero: nothing is
// carried out of them.
inline Words round_upper(Floats f) {
  const Words u = (Words)f;
#if defined(__AVX512BW__)
  // One instruction less than below: a tenth of the whole kernel.
  const __mmask16 odd = _mm512_test_epi32_mask((__m512i)u, _mm512_set1_epi32(1 << 16));
  const __m512i below = _mm512_add_epi32((__m512i)u, _mm512_set1_epi32(0x7fff));
  return (Words)_mm512_mask_sub_epi32(below, odd, below, _mm512_set1_epi32(-1));
#else
  return u + 0x7fff + (u >> 16 & 1);
#endif
}

// Gives NaNs the lower bits that round_upper needs. Only a product with a float32 weight may be one
// without: every other NaN here comes from a bfloat16 or from an invalid operation.
inline Floats clean_nan(Floats f) { return f != f ? Floats{} + __builtin_nanf("") : f; }
inline Pair clean_nan(Pair p) { return {clean_nan(p.a), clean_nan(p.b)}; }

inline Pair round_to(Pair p, BFloat16) {
  return {(Floats)(round_upper(p.a) & 0xffff0000), (Floats)(round_upper(p.b) & 0xffff0000)};
}

template <bool kStream>
inline void store_pair(BFloat16* to, Pair p) {
  store_vector<kStream>(to, round_upper(p.a) >> 16 | (round_upper(p.b) & 0xffff0000));
}

// ---- float16

struct Float16 {
  uint16_t bits;
};

#if defined(__AVX2__)

#if defined(__AVX512BW__)
// The zeroing forms with a full mask: GCC warns of an uninitialised value inside of the plain ones.
using Halves = __m256i;
inline Floats widen(Halves h) { return (Floats)_mm512_maskz_cvtph_ps(0xffff, h); }
inline Halves narrow(Floats f) {
  return _mm512_maskz_cvtps_ph(0xffff, (__m512)f, _MM_FROUND_TO_NEAREST_INT);
}
inline void stream(Float16* to, Halves h) { _mm256_stream_si256((__m256i*)to, h); }
#else
using Halves = __m128i;
inline Floats widen(Halves h) { return (Floats)_mm256_cvtph_ps(h); }
inline Halves narrow(Floats f) { return _mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT); }
inline void stream(Float16* to, Halves h) { _mm_stream_si128((__m128i*)to, h); }
#endif

template <bool kStream>
inline void store_halves(Float16* to, Halves h) {
  if constexpr (kStream) return stream(to, h);
  __builtin_memcpy(to, &h, sizeof h);
}

inline Pair load_pair(const Float16* from) {
  return {widen(load_vector<Halves>(from)), widen(load_vector<Halves>(from + kLanes))};
}

template <bool kStream>
inline void store_pair(Float16* to, Pair p) {
  store_halves<kStream>(to, narrow(p.a));
  store_halves<kStream>(to + kLanes, narrow(p.b));
}

#else  // the same in integer arithmetic, and in the even-odd layout

// Signed comparisons: the values are not negative, and old processors have no unsigned ones.
inline Words select(Ints condition, Words yes, Words no) {
  return ((Words)condition & yes) | (~(Words)condition & no);
}

// From the lower 16 bits.
inline Floats widen(Words u) {
  // Exponent and mantissa at float32's places; the bias is still float16's.
  const Words magnitude = (u & 0x7fff) << 13;
  const Words normal = magnitude + (112u << 23);
  const Words infinite = magnitude + (224u << 23);
  // A subnormal: with the exponent of 2^-14 it is 2^-14 too large. Exact.
  const Floats above = (Floats)(magnitude + (113u << 23)) - 0x1p-14f;
  const Words finite = select((Ints)magnitude < 1 << 23, (Words)above, normal);
  return (Floats)((u & 0x8000) << 16 | select((Ints)magnitude < 31 << 23, finite, infinite));
}

// Into the lower 16 bits, to nearest even.
inline Words narrow(Floats f) {
  const Words u = (Words)f;
  const Words magnitude = u & 0x7fffffff;
  const Words rounded = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const Words infinity = Words{} + 0x7c00;
  const Words normal = select((Ints)rounded < 0x7c00, rounded, infinity);
  // Below 2^-14 the results are the multiples of 2^-24, and this addition rounds to those.
  const Words subnormal = (Words)((Floats)magnitude + 0.5f) - 0x3f000000;
  const Words finite = select((Ints)magnitude < 0x38800000, subnormal, normal);
  const Words nan = Words{} + 0x7e00;
  return (u >> 16 & 0x8000) | select((Ints)magnitude > 0x7f800000, nan, finite);
}

inline Pair load_pair(const Float16* from) {
  const Words w = load_vector<Words>(from);
  return {widen(w & 0xffff), widen(w >> 16)};
}

template <bool kStream>
inline void store_pair(Float16* to, Pair p) {
  store_vector<kStream>(to, narrow(p.a) | narrow(p.b) << 16);
}

template <>
constexpr bool kEvenOdd<Float16> = true;

#endif

inline Pair round_to(Pair p, Float16) { return {widen(narrow(p.a)), widen(narrow(p.b))}; }

// ---- layouts

// Puts the elements of two vectors, in order, into the even-odd layout.
inline Pair split_even_odd(Pair p) {
  float f[kPairSize];
  Pair out;
  __builtin_memcpy(f, &p, sizeof f);
  for (int i = 0; i < kLanes; ++i) {
    out.a[i] = f[2 * i];
    out.b[i] = f[2 * i + 1];
  }
  return out;
}

// And back.
inline Pair merge_even_odd(Pair p) {
  float f[kPairSize];
  Pair out;
  for (int i = 0; i < kLanes; ++i) {
    f[2 * i] = p.a[i];
    f[2 * i + 1] = p.b[i];
  }
  __builtin_memcpy(&out, f, sizeof f);
  return out;
}

// Loads elements of type W in the layout of a row of type T.
template <typename T, typename W>
inline Pair load_pair_as(const W* from) {
  const Pair p = load_pair(from);
  if constexpr (kEvenOdd<T> && !kEvenOdd<W>) return split_even_odd(p);
  return p;
}

}  // namespace
}  // namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL
