// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels for a tensor: on its device, and on torch's current stream there.
//
// No CUDA header and no CUDA library of torch's is needed: device and stream come from the guard
// that torch registers for CUDA. One build serves a torch with CUDA and one without.
#pragma once

#include <ATen/core/Tensor.h>

#include "cpp/kernels/act_and_mul.h"
#include "cpp/kernels/fused_add_rms_norm.h"
#include "cpp/kernels/rms_norm.h"

namespace vllm_ir::kernel_ops {

#ifdef VLLM_IR_HAVE_CUDA
inline constexpr bool kHasCudaKernels = true;
#else
inline constexpr bool kHasCudaKernels = false;
#endif

// Enqueue the kernel and return at once. Nothing is allocated and nothing waits, so a graph may be
// captured, once an earlier call has loaded the kernel. Raise a RuntimeError that names op and
// tensor where the launch fails.
//
// `x` is the argument of the op that is on a CUDA device.
void launch_cuda(const char* op, const at::Tensor& x, const kernels::RmsNormArgs& args);
void launch_cuda(const char* op, const at::Tensor& x, const kernels::FusedAddRmsNormArgs& args);
void launch_cuda(const char* op, const at::Tensor& x, const kernels::ActAndMulArgs& args);

}  // namespace vllm_ir::kernel_ops
