// SPDX-License-Identifier: Apache-2.0
// Lets rules look at torch arguments: real tensors in a call, fake ones while compiling. Nothing
// here adds a guard: a symbolic value is kSymbolic, and what can't be proven is not so.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "cpp/dispatch/rule_eval.h"
#include "cpp/dispatch/tensor_facts.h"
#include "cpp/torch/entry.h"

namespace vllm_ir {

// The facts of an argument list; select.h's adaptors derive from it and add `ask`. What a rule asks
// of a tensor is read from torch once a call, at the first question, since a rule asks many.
class TensorArgs {
 public:
  TensorArgs(const Arg* args, int count) noexcept : args_(args), count_(count) {}

  int count() const noexcept { return count_; }
  const Arg& operator[](int i) const noexcept { return args_[i]; }

  bool is_none(int i) const noexcept { return args_[i].tag == Tag::kNone; }
  DType dtype(int i) const { return facts(i).dtype; }
  DeviceType device(int i) const { return facts(i).device; }
  int device_index(int i) const { return facts(i).device_index; }
  bool strided(int i) const { return args_[i].tag == Tag::kTensor && facts(i).strided; }
  int dims(int i) const { return facts(i).dims; }
  int64_t size(int i, int d) const {
    const Facts& f = facts(i);
    return f.sizes ? f.sizes[d] : symbolic_size(i, d);
  }
  int64_t stride(int i, int d) const {
    const Facts& f = facts(i);
    return f.sizes ? f.strides[d] : symbolic_stride(i, d);
  }
  int64_t item_bytes(int i) const { return static_cast<int64_t>(tensor(i).itemsize()); }
  int64_t integer(int i) const noexcept {
    return args_[i].tag == Tag::kInt ? args_[i].integer : kSymbolic;
  }
  bool row_stride_uniform(int i) const { return dims(i) <= 2 || row_stride_uniform_slow(i); }
  bool same_shape(int i, int j) const;
  Region region(int i) const;
  bool address(int i, uintptr_t& out) const;

 private:
  struct Facts {
    const int64_t* sizes;  // null when symbolic
    const int64_t* strides;
    int dims;
    DType dtype;
    DeviceType device;
    int8_t device_index;
    bool strided;  // else there are no sizes and strides to read
  };

  const Facts& facts(int i) const {
    if (!(known_ >> i & 1)) [[unlikely]]
      read(i);
    return facts_[static_cast<size_t>(i)];
  }
  void read(int i) const;

  const at::Tensor& tensor(int i) const noexcept { return *args_[i].tensor; }
  const at::TensorImpl* impl(int i) const noexcept { return tensor(i).unsafeGetTensorImpl(); }
  int64_t symbolic_size(int i, int d) const;
  int64_t symbolic_stride(int i, int d) const;
  bool row_stride_uniform_slow(int i) const;

  const Arg* args_;
  int count_;
  mutable uint32_t known_ = 0;  // a bit for each argument whose facts were read
  mutable std::array<Facts, kMaxParams> facts_;
};

}  // namespace vllm_ir
