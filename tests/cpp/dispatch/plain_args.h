// SPDX-License-Identifier: Apache-2.0
// The argument adaptor of the tests: plain structs in the place of tensors. It answers as the one
// for torch does: what is symbolic has no value, and what can't be proven is not so.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cpp/dispatch/impl.h"
#include "cpp/dispatch/tensor_facts.h"

namespace vllm_ir {

struct PlainArg {
  bool none = false;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};
  DType type = DType::kFloat32;
  int64_t item_bytes = 4;
  DeviceType device = DeviceType::kCpu;
  int device_index = -1;
  uintptr_t buffer = 0;  // the storage, and the address of its first byte
  int64_t offset = 0;    // elements from the start of the storage, or kSymbolic
  bool has_address = true;
  bool is_strided = true;
  bool rows_proven = false;  // of one stride, whatever the symbolic sizes are
  int64_t integer = kSymbolic;

  PlainArg of(DType dtype, int64_t bytes = 4) const {
    PlainArg out = *this;
    out.type = dtype;
    out.item_bytes = bytes;
    return out;
  }
  PlainArg on(DeviceType where, int index = -1) const {
    PlainArg out = *this;
    out.device = where;
    out.device_index = index;
    return out;
  }
  PlainArg strided(std::vector<int64_t> steps) const {
    PlainArg out = *this;
    out.strides = std::move(steps);
    return out;
  }
  // A view of the buffer of another argument.
  PlainArg within(const PlainArg& other, int64_t at) const {
    PlainArg out = *this;
    out.buffer = other.buffer;
    out.offset = at;
    return out;
  }
  PlainArg with_rows_proven() const {
    PlainArg out = *this;
    out.rows_proven = true;
    return out;
  }
  PlainArg without_address() const {
    PlainArg out = *this;
    out.has_address = false;
    return out;
  }
};

inline PlainArg none() { return {.none = true}; }
inline PlainArg number(int64_t value) { return {.integer = value}; }

// Contiguous, in a buffer of its own. A stride over a symbolic size is symbolic.
inline PlainArg tensor(std::vector<int64_t> sizes) {
  static std::atomic<uintptr_t> buffers{0};  // tests call from many threads
  PlainArg out;
  out.buffer = (uintptr_t{1} << 40) + (++buffers << 16);
  out.strides.resize(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    out.strides[d] = step;
    if (sizes[d] == kSymbolic || step == kSymbolic) {
      step = kSymbolic;
    } else {
      step *= sizes[d] ? sizes[d] : 1;
    }
  }
  out.sizes = std::move(sizes);
  return out;
}

class PlainArgs {
 public:
  PlainArgs(std::vector<PlainArg> args) : args_(std::move(args)) {}  // NOLINT: from a braced list

  bool is_none(int i) const { return at(i).none; }
  DType dtype(int i) const { return at(i).type; }
  DeviceType device(int i) const { return at(i).device; }
  int device_index(int i) const { return at(i).device_index; }
  bool strided(int i) const { return at(i).is_strided; }
  int dims(int i) const { return static_cast<int>(at(i).sizes.size()); }
  int64_t size(int i, int d) const { return at(i).sizes.at(static_cast<size_t>(d)); }
  int64_t stride(int i, int d) const { return at(i).strides.at(static_cast<size_t>(d)); }
  int64_t item_bytes(int i) const { return at(i).item_bytes; }
  int64_t integer(int i) const { return at(i).integer; }
  bool address(int i, uintptr_t& out) const {
    if (!at(i).has_address || at(i).offset == kSymbolic) return false;
    out = at(i).buffer + static_cast<uintptr_t>(at(i).offset * item_bytes(i));
    return true;
  }

  bool same_shape(int i, int j) const {
    for (const int64_t size : at(i).sizes) {
      if (size == kSymbolic) return false;
    }
    return at(i).sizes == at(j).sizes;
  }

  bool row_stride_uniform(int i) const {
    if (dims(i) <= 2 || at(i).rows_proven) return true;
    int inner = -1;  // the last dimension that was collapsed
    for (int d = dims(i) - 2; d >= 0; --d) {
      if (size(i, d) == 1) continue;
      if (size(i, d) == 0) return true;
      if (inner >= 0) {
        const int64_t n = size(i, inner), step = stride(i, inner);
        if (n == kSymbolic || step == kSymbolic || stride(i, d) != n * step) return false;
      }
      inner = d;
    }
    return true;
  }

  Region region(int i) const {
    Region out{reinterpret_cast<const void*>(at(i).buffer), kSymbolic, kSymbolic};
    if (at(i).offset == kSymbolic) return out;
    out.begin = at(i).offset * item_bytes(i);
    int64_t last = at(i).offset;
    for (int d = 0; d < dims(i); ++d) {
      if (size(i, d) == kSymbolic || stride(i, d) == kSymbolic) return out;
      if (size(i, d) == 0) return {out.storage, out.begin, out.begin};
      last += (size(i, d) - 1) * stride(i, d);
    }
    out.end = (last + 1) * item_bytes(i);
    return out;
  }

  // Callables: the providers in `agreeable` accept; `asked` records who was asked.
  bool ask(const Impl& impl) {
    asked.push_back(impl.provider);
    return agreeable.count(impl.provider) != 0;
  }
  std::string refusal(const Impl& impl) const {
    return "supports_args of " + impl.provider + " returned False";
  }

  std::set<std::string> agreeable;
  std::vector<std::string> asked;

 private:
  const PlainArg& at(int i) const { return args_.at(static_cast<size_t>(i)); }

  std::vector<PlainArg> args_;
};

}  // namespace vllm_ir
