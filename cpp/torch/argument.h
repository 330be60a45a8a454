// SPDX-License-Identifier: Apache-2.0
// Lets rules look at torch arguments: real tensors in a call, fake ones while compiling. Nothing
// here adds a guard: a symbolic value is kSymbolic, and what can't be proven is not so.
#pragma once

#include <ATen/core/Tensor.h>

#include "cpp/dispatch/rule_eval.h"
#include "cpp/dispatch/tensor_facts.h"
#include "cpp/torch/entry.h"

namespace vllm_ir {

DType dtype_of(at::ScalarType type) noexcept;
DeviceType device_type_of(c10::DeviceType type) noexcept;

// The facts of an argument list; select.h's adaptors derive from it and add `ask`.
class TensorArgs {
 public:
  TensorArgs(const Arg* args, int count) noexcept : args_(args), count_(count) {}

  int count() const noexcept { return count_; }
  const Arg& operator[](int i) const noexcept { return args_[i]; }

  bool is_none(int i) const noexcept { return args_[i].tag == Tag::kNone; }
  DType dtype(int i) const { return dtype_of(tensor(i).scalar_type()); }
  DeviceType device(int i) const { return device_type_of(tensor(i).device().type()); }
  int device_index(int i) const { return tensor(i).device().index(); }
  int dims(int i) const { return static_cast<int>(tensor(i).dim()); }
  int64_t size(int i, int d) const {
    return symbolic(i) ? symbolic_size(i, d) : impl(i)->sizes()[static_cast<size_t>(d)];
  }
  int64_t stride(int i, int d) const {
    return symbolic(i) ? symbolic_stride(i, d) : impl(i)->strides()[static_cast<size_t>(d)];
  }
  int64_t item_bytes(int i) const { return static_cast<int64_t>(tensor(i).itemsize()); }
  int64_t integer(int i) const noexcept {
    return args_[i].tag == Tag::kInt ? args_[i].integer : kSymbolic;
  }
  bool row_stride_uniform(int i) const {
    return tensor(i).dim() <= 2 || row_stride_uniform_slow(i);
  }
  bool same_shape(int i, int j) const {
    if (symbolic(i) || symbolic(j)) return same_symbolic_shape(i, j);
    return impl(i)->sizes() == impl(j)->sizes();
  }
  Region region(int i) const;
  bool address(int i, uintptr_t& out) const;

 private:
  const at::Tensor& tensor(int i) const noexcept { return *args_[i].tensor; }
  const at::TensorImpl* impl(int i) const noexcept { return tensor(i).unsafeGetTensorImpl(); }
  bool symbolic(int i) const noexcept { return impl(i)->has_symbolic_sizes_strides(); }
  int64_t symbolic_size(int i, int d) const;
  int64_t symbolic_stride(int i, int d) const;
  bool row_stride_uniform_slow(int i) const;
  bool same_symbolic_shape(int i, int j) const;

  const Arg* args_;
  int count_;
};

}  // namespace vllm_ir
