// SPDX-License-Identifier: Apache-2.0
// The CUDA launchers. No CUDA header is needed to call them: a stream is a cudaStream_t as void*.
//
// Each one enqueues at most one kernel on `stream` of the current device and returns. It allocates
// nothing and waits for nothing, so it may be called while a graph is captured, once a call before
// the capture has had CUDA load the kernel. Without rows or columns it enqueues nothing. What a
// failed launch leaves for cudaGetLastError is taken away, so that it isn't blamed on a later op.
//
// A row's result depends on that row, `cols` and `var_cols` alone: not on the other rows, nor on
// strides and alignment. (The order of a sum also depends on the size of x's elements.)
#pragma once

#include <cstdint>

#include "cpp/kernels/act_and_mul.h"
#include "cpp/kernels/fused_add_rms_norm.h"
#include "cpp/kernels/rms_norm.h"

namespace vllm_ir::kernels {

struct LaunchStatus {
  enum class Kind : int8_t {
    kOk,
    kTooLarge,         // more than kMaxCols columns, or more rows than a grid has blocks for
    kInvalidArgument,  // no such dtype or activation, or var_cols out of its range
    kCudaError,
    kNotBuilt,
  };
  Kind kind = Kind::kOk;
  int cuda_error = 0;  // a cudaError_t when `kind` is kCudaError

  bool ok() const { return kind == Kind::kOk; }
};

// One sentence for an error message, without a full stop.
const char* text_of(const LaunchStatus& status);

LaunchStatus rms_norm_cuda(const RmsNormArgs& args, void* stream);
LaunchStatus fused_add_rms_norm_cuda(const FusedAddRmsNormArgs& args, void* stream);
LaunchStatus act_and_mul_cuda(const ActAndMulArgs& args, void* stream);

}  // namespace vllm_ir::kernels
