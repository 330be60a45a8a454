// SPDX-License-Identifier: Apache-2.0
// silu_and_mul and gelu_and_mul over raw pointers: out = activation(gate) * up, where a row of x is
// `cols` gates and then `cols` ups. Knows nothing of torch, Python or dispatch.
//
// Rounds where the native ops round: the activation is computed in float32 and rounded to the
// dtype; the product of the two is rounded once more. In float32:
//   silu(g) = g / (1 + exp(-g))
//   gelu(g) = g * 0.5 * (1 + erf(g / sqrt(2)))
//   gelu_tanh(g) = 0.5 * g * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g^3)))
#pragma once

#include <cstdint>

#include "cpp/kernels/dtype.h"

namespace vllm_ir::kernels {

enum class GeluForm : int8_t { kErf, kTanh };

// x is `rows` x `2 * cols`, out is `rows` x `cols`. Pointers need no more alignment than their
// elements have. Strides count elements.
struct GatedActivationArgs {
  void* out;  // of `dtype`; overlaps nothing
  const void* x;
  DType dtype;
  int64_t rows;
  int64_t cols;
  int64_t out_stride;  // from one row to the next
  int64_t x_stride;
};

}  // namespace vllm_ir::kernels
