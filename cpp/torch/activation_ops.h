// SPDX-License-Identifier: Apache-2.0
// silu_and_mul and gelu_and_mul as functions over tensors, and as the torch ops vllm_ir_C::*. ATen,
// no Python.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace torch {
class Library;
}

namespace vllm_ir::kernel_ops {

// Plain functions, as those of kernel_ops.h: for callers that have checked that nothing wants to
// see the call. They check everything and raise c10::ValueError or c10::TypeError with a text of
// messages.h.
//
// x: (..., 2 d), float32, float16 or bfloat16, last dimension contiguous, one distance between all
// rows. They return a new tensor (..., d) with x's dtype and the strides that native gives.
// approximate: "none" or "tanh".
at::Tensor silu_and_mul(const at::Tensor& x);
at::Tensor gelu_and_mul(const at::Tensor& x, std::string_view approximate);

// The same for an impl whose rule says all of it about x; another x is undefined here. No rule
// reads texts, so another `approximate` raises Error(kValue).
namespace unchecked {
at::Tensor silu_and_mul(const at::Tensor& x);
at::Tensor gelu_and_mul(const at::Tensor& x, std::string_view approximate);
}  // namespace unchecked

// Adds the two ops to the library vllm_ir_C: their schemas and Meta kernels, and the kernels of one
// device.
void define_activation_ops(torch::Library& schemas, torch::Library& meta);
void register_activation_ops(torch::Library& device);

}  // namespace vllm_ir::kernel_ops
