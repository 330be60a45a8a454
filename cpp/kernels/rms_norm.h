// SPDX-License-Identifier: Apache-2.0
// rms_norm over raw pointers: y = x * rsqrt(mean(x^2) + epsilon), times weight if there is one.
// Knows nothing of torch, Python or dispatch.
//
// Computes in float32 and rounds where the native op rounds: with a weight, y is rounded to the
// weight's dtype, multiplied by it, rounded to the weight's dtype again, then cast to x's dtype;
// without one, y is cast once. A row's result depends on that row, `cols` and `var_cols` alone: not
// on the other rows, the threads or the CPU level.
#pragma once

#include <cstdint>

#include "cpp/kernels/dtype.h"

namespace vllm_ir::kernels {

// A matrix of `rows` x `cols`. Pointers need no more alignment than their elements have. Strides
// count elements.
struct RmsNormArgs {
  void* out;  // of `dtype`; may be `x` itself (same pointer and stride), else must not overlap it
  const void* x;       // of `dtype`
  const void* weight;  // `cols` elements of `weight_dtype`, or null
  DType dtype;
  DType weight_dtype;  // `dtype` or kFloat32; not read when `weight` is null
  int64_t rows;
  int64_t cols;
  int64_t var_cols;    // the mean is over the first `var_cols` columns, 1 <= var_cols <= cols
  int64_t out_stride;  // from one row to the next
  int64_t x_stride;
  double epsilon;  // rounded to float32, as native does
};

// Computes the rows [row_begin, row_end) on the calling thread. Writes nothing outside of them,
// allocates nothing.
void rms_norm_cpu(const RmsNormArgs& args, int64_t row_begin, int64_t row_end);

}  // namespace vllm_ir::kernels
