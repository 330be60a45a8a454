// SPDX-License-Identifier: Apache-2.0
// The user-facing texts about shapes, dtypes, devices and memory of kernel arguments, all in one
// place. Shape: `vllm_ir.<op>: <rule>, got <value>. <what to do>`. Only called when a check has
// failed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace vllm_ir::messages {

// As Python prints it: "(4096,)", "(1, 4096)".
inline std::string shape(at::IntArrayRef sizes) {
  std::string text = "(";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + (sizes.size() == 1 ? ",)" : ")");
}

inline std::string dtype_name(at::ScalarType type) {
  return std::string(c10::getDtypeNames(type).first);
}

inline std::string start(const char* op) { return std::string("vllm_ir.") + op + ": "; }

inline std::string no_dimension(const char* op) {
  return start(op) + "x must have at least one dimension, got a scalar tensor of shape ().";
}

inline std::string x_dtype(const char* op, at::ScalarType got) {
  return start(op) + "x.dtype must be float32, float16 or bfloat16, got " + dtype_name(got) +
         ". Use the native provider.";
}

inline std::string weight_shape(const char* op, int64_t hidden_size, at::IntArrayRef got) {
  return start(op) + "weight must have shape (hidden_size,) = " + shape({hidden_size}) + ", got " +
         shape(got) + ".";
}

inline std::string weight_dtype(const char* op, at::ScalarType x, at::ScalarType got) {
  const std::string allowed = x == at::kFloat ? "float32" : dtype_name(x) + " (x.dtype) or float32";
  return start(op) + "weight.dtype must be " + allowed + ", got " + dtype_name(got) +
         ". Cast the weight, or use the native provider.";
}

inline std::string other_device(const char* op, const char* argument, const at::Tensor& x,
                                const at::Tensor& got) {
  return start(op) + argument + " must be on x's device " + x.device().str() + ", got " +
         got.device().str() + ".";
}

inline std::string no_kernel_for_device(const char* op, const char* devices, const at::Tensor& x) {
  return start(op) + "x must be on a device that this build has a kernel for (" + devices +
         "), got " + x.device().str() + ". Use the native provider.";
}

inline std::string launch_failed(const char* op, const at::Tensor& x, const char* why) {
  return start(op) + "the kernel for x, " + dtype_name(x.scalar_type()) + " of shape " +
         shape(x.sizes()) + " on " + x.device().str() + ", was not launched: " + why +
         ". Use the native provider.";
}

inline std::string variance_size(const char* op, int64_t hidden_size, int64_t got) {
  return start(op) +
         "variance_size must be between 1 and hidden_size = " + std::to_string(hidden_size) +
         ", got " + std::to_string(got) + ".";
}

inline std::string residual_shape(const char* op, at::IntArrayRef x, at::IntArrayRef got) {
  return start(op) + "x_residual must have x's shape " + shape(x) + ", got " + shape(got) + ".";
}

inline std::string residual_dtype(const char* op, at::ScalarType x, at::ScalarType got) {
  return start(op) + "x_residual must have x's dtype " + dtype_name(x) + ", got " +
         dtype_name(got) + ".";
}

inline std::string odd_last_dimension(const char* op, int64_t got) {
  return start(op) + "the last dimension of x must be even (gate, then up), got " +
         std::to_string(got) + ".";
}

inline std::string approximate(const char* op, std::string_view got) {
  return start(op) + "approximate must be 'none' or 'tanh', got '" + std::string(got) + "'.";
}

inline std::string rows_not_uniform(const char* op, const char* argument, const at::Tensor& got) {
  return start(op) + argument +
         " must be contiguous in its last dimension and have one distance between all rows, got "
         "shape " +
         shape(got.sizes()) + " with strides " + shape(got.strides()) +
         ". Call .contiguous() on it.";
}

inline std::string overlaps_itself(const char* op, const char* argument, const at::Tensor& got) {
  return start(op) + argument + " is overwritten, so its rows must not share memory, got shape " +
         shape(got.sizes()) + " with strides " + shape(got.strides()) + ". Pass a clone.";
}

inline std::string overlap(const char* op) {
  return start(op) +
         "x and x_residual are both overwritten, so they must not share memory, got overlapping "
         "tensors. "
         "Pass a clone of one.";
}

inline std::string already_registered(const char* library) {
  return std::string("vllm_ir: the torch operator library '") + library +
         "' is already registered in this process. Another copy of vllm_ir is loaded: import only "
         "one.";
}

}  // namespace vllm_ir::messages
