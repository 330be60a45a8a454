// SPDX-License-Identifier: Apache-2.0
// silu_and_mul and gelu_and_mul over raw pointers: out = act(gate) * up, where each row of x holds
// `cols` values of gate and then `cols` values of up. Knows nothing of torch, Python or dispatch.
//
// The activation is computed in float32 and rounded to the dtype, as the native ops do; the product
// is rounded to the dtype once more. All elements are independent: a result depends on its gate and
// its up alone, not on the place in the row, the threads or the CPU level. NaN stays NaN.
//
// Before it is rounded the activation is off by at most so many units of the last place of float32,
// against exact arithmetic from the float32 argument of exp or erfc on, which is rounded as the
// native ops round it:
//         silu   gelu   gelu with tanh
//   CPU      3      6                4
//   CUDA     7     10                7   (gelu: for gates above -13, where erfc is a normal number)
#pragma once

#include <cstdint>

#include "cpp/kernels/dtype.h"

namespace vllm_ir::kernels {

enum class Activation : int8_t {
  kSilu,      // g / (1 + exp(-g))
  kGelu,      // 0.5 g erfc(-g / sqrt(2))
  kGeluTanh,  // g / (1 + exp(-2 u)) with u = sqrt(2 / pi) (g + 0.044715 g^3)
};

// `rows` rows. Pointers need no more alignment than their elements have. Strides count elements.
struct ActAndMulArgs {
  void* out;      // `cols` elements of `dtype` a row; must not overlap x
  const void* x;  // 2 * `cols` elements of `dtype` a row
  DType dtype;
  Activation activation;
  int64_t rows;
  int64_t cols;        // of out
  int64_t out_stride;  // from one row to the next
  int64_t x_stride;
};

// Computes the rows [row_begin, row_end) on the calling thread. Writes nothing outside of them,
// allocates nothing.
void act_and_mul_cpu(const ActAndMulArgs& args, int64_t row_begin, int64_t row_end);

}  // namespace vllm_ir::kernels
