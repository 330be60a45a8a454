// SPDX-License-Identifier: Apache-2.0
// The element types for the tests, with conversions that share no idea with the kernels': they go
// through double arithmetic and the definition of the formats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpp/kernels/dtype.h"

namespace vllm_ir::kernels {

// A binary format: bits of precision with the hidden one, and the exponents of its normal numbers.
template <int kPrecisionBits, int kMinExponent, int kMaxExponent>
struct SmallFloat {
  static constexpr uint16_t kInfinity = (kMaxExponent - kMinExponent + 2) << (kPrecisionBits - 1);
  uint16_t bits;

  static SmallFloat of(float f) {
    const uint16_t sign = std::signbit(f) ? 0x8000 : 0;
    if (std::isnan(f)) return {static_cast<uint16_t>(kInfinity + 1)};
    if (std::isinf(f)) return {static_cast<uint16_t>(sign | kInfinity)};
    const double magnitude = std::fabs(static_cast<double>(f));
    const int exponent =
        magnitude == 0 ? kMinExponent : std::max(std::ilogb(magnitude), kMinExponent);
    // nearbyint rounds to nearest even. A quotient of 2^kPrecisionBits carries into the exponent,
    // up to infinity.
    const double quotient = std::nearbyint(std::ldexp(magnitude, kPrecisionBits - 1 - exponent));
    const int code =
        ((exponent - kMinExponent) << (kPrecisionBits - 1)) + static_cast<int>(quotient);
    return {static_cast<uint16_t>(sign | std::min<int>(code, kInfinity))};
  }

  float value() const {
    const int magnitude = bits & 0x7fff;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (magnitude > kInfinity) return std::numeric_limits<float>::quiet_NaN();
    if (magnitude == kInfinity)
      return static_cast<float>(sign * std::numeric_limits<double>::infinity());
    const int hidden = 1 << (kPrecisionBits - 1);
    const int field = magnitude / hidden, rest = magnitude % hidden;
    const int mantissa = field == 0 ? rest : rest + hidden;
    return static_cast<float>(
        sign * std::ldexp(mantissa, std::max(field, 1) - 1 + kMinExponent - kPrecisionBits + 1));
  }
};

using Half = SmallFloat<11, -14, 15>;
using BFloat = SmallFloat<8, -126, 127>;

inline float value(float f) { return f; }
inline float value(Half h) { return h.value(); }
inline float value(BFloat b) { return b.value(); }

template <typename T>
T rounded(float f) {
  return T::of(f);
}
template <>
inline float rounded<float>(float f) {
  return f;
}

template <typename T>
constexpr DType kDType = DType::kFloat32;
template <>
inline constexpr DType kDType<Half> = DType::kFloat16;
template <>
inline constexpr DType kDType<BFloat> = DType::kBFloat16;

// Equal bits, or both NaN.
template <typename T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(value(a)) && std::isnan(value(b)));
}

inline float float_of_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// With all payload bits set: what rounds such a number as if it were finite gets a zero.
inline double nan_of_ones() {
  const uint64_t bits = ~uint64_t{0} >> 1;
  double d;
  std::memcpy(&d, &bits, sizeof d);
  return d;
}

}  // namespace vllm_ir::kernels
