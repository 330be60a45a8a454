// SPDX-License-Identifier: Apache-2.0
// Stands in for CUDA's header of this name, see cuda_runtime.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "tests/cpp/emulation/cuda/cuda_runtime.h"

struct __half2 {
  uint16_t x, y;
};

namespace vllm_ir::emulation {

// Below 2^-14 the last place is 2^-24: adding 0.5, whose last place that is, rounds to it.
inline uint16_t half_of(float f) {
  const uint32_t bits = __float_as_uint(f), magnitude = bits & 0x7fffffff;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // from 65520 on
  if (magnitude < 0x38800000)
    return sign | static_cast<uint16_t>(__float_as_uint(__uint_as_float(magnitude) + 0.5f));
  const uint32_t rebased = magnitude - (112u << 23);
  return sign | static_cast<uint16_t>((rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
}

inline float float_of_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, rest = half & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | rest << 13);
  if (exponent == 0)
    return std::copysign(std::ldexp(static_cast<float>(rest), -24), __uint_as_float(sign));
  return __uint_as_float(sign | (exponent + 112) << 23 | rest << 13);
}

}  // namespace vllm_ir::emulation

inline __half2 __floats2half2_rn(float a, float b) {
  return {vllm_ir::emulation::half_of(a), vllm_ir::emulation::half_of(b)};
}
inline float2 __half22float2(__half2 pair) {
  return {vllm_ir::emulation::float_of_half(pair.x), vllm_ir::emulation::float_of_half(pair.y)};
}
