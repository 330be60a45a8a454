// SPDX-License-Identifier: Apache-2.0
// Stands in for CUDA's header of this name, see cuda_runtime.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "tests/cpp/emulation/cuda/cuda_runtime.h"

struct __nv_bfloat162 {
  uint16_t x, y;
};

namespace vllm_ir::emulation {
inline uint16_t bfloat16_of(float f) {
  if (std::isnan(f)) return 0x7fff;
  const uint32_t bits = __float_as_uint(f);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
}  // namespace vllm_ir::emulation

inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {vllm_ir::emulation::bfloat16_of(a), vllm_ir::emulation::bfloat16_of(b)};
}
