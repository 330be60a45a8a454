// SPDX-License-Identifier: Apache-2.0
// The kernels as functions over tensors, and as the torch ops vllm_ir_C::*. ATen, no Python.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace vllm_ir::kernel_ops {

// Plain functions, for callers that have checked that nothing (autograd, a mode, a subclass) wants
// to see the call. They check shapes, dtypes, devices and memory, and raise c10::ValueError or
// c10::TypeError with a text of messages.h before anything is written. `weight` may be null. Rows
// are spread over torch's threads.
//
// x: (..., hidden_size), float32, float16 or bfloat16, last dimension contiguous, one distance
// between all rows. weight: (hidden_size,) of x's dtype or float32. variance_size: 1 to
// hidden_size; none means hidden_size.

// Returns a new tensor with x's shape and dtype, and the strides that native gives.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor* weight, double epsilon,
                    std::optional<int64_t> variance_size);

// Overwrites x with the norm and x_residual with the sum, and returns these two tensors. Neither
// may share memory with the other or with itself. Does not bump the version counters: the torch op
// does.
std::tuple<at::Tensor, at::Tensor> fused_add_rms_norm_(const at::Tensor& x,
                                                       const at::Tensor& x_residual,
                                                       const at::Tensor* weight, double epsilon,
                                                       std::optional<int64_t> variance_size);

// The same for callers that have made sure of everything above: an impl whose rule says it. The
// checks cost as much as a small row. `rms_norm` and `fused_add_rms_norm_` of other arguments than
// those are undefined here.
namespace unchecked {
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor* weight, double epsilon,
                    std::optional<int64_t> variance_size);
std::tuple<at::Tensor, at::Tensor> fused_add_rms_norm_(const at::Tensor& x,
                                                       const at::Tensor& x_residual,
                                                       const at::Tensor* weight, double epsilon,
                                                       std::optional<int64_t> variance_size);
}  // namespace unchecked

// Defines the library vllm_ir_C with its CPU, CUDA (where built) and Meta kernels, for the life of
// the process. Call it once, when the module is loaded. Throws c10::Error when the library exists
// already (another copy of vllm_ir).
void register_kernel_ops();

}  // namespace vllm_ir::kernel_ops
