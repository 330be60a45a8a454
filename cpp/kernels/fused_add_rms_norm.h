// SPDX-License-Identifier: Apache-2.0
// fused_add_rms_norm over raw pointers: s = x + x_residual, then residual_out = s and out =
// rms_norm(s). Knows nothing of torch, Python or dispatch.
//
// s is computed in float32 and is NOT rounded before the variance and the norm; residual_out is s
// rounded to the dtype. The weight rule and the independence of rows are rms_norm's (see
// rms_norm.h).
#pragma once

#include <cstdint>

#include "cpp/kernels/dtype.h"

namespace vllm_ir::kernels {

// Matrices of `rows` x `cols`. Pointers need no more alignment than their elements have. Strides
// count elements.
struct FusedAddRmsNormArgs {
  // Each output may be one of the inputs (same pointer and stride): that is the in-place form. Else
  // no output overlaps anything.
  void* out;
  void* residual_out;
  const void* x;
  const void* x_residual;
  const void* weight;  // `cols` elements of `weight_dtype`, or null
  DType dtype;         // of x, x_residual and both outputs
  DType weight_dtype;  // `dtype` or kFloat32; not read when `weight` is null
  int64_t rows;
  int64_t cols;
  int64_t var_cols;    // the mean is over the first `var_cols` columns, 1 <= var_cols <= cols
  int64_t out_stride;  // from one row to the next
  int64_t residual_out_stride;
  int64_t x_stride;
  int64_t x_residual_stride;
  double epsilon;  // rounded to float32, as native does
};

// Computes the rows [row_begin, row_end) on the calling thread. Writes nothing outside of them,
// allocates nothing.
void fused_add_rms_norm_cpu(const FusedAddRmsNormArgs& args, int64_t row_begin, int64_t row_end);

}  // namespace vllm_ir::kernels
