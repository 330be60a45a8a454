// SPDX-License-Identifier: Apache-2.0
// A tensor as the kernels see it: rows of the last dimension, one distance between all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace vllm_ir {

struct Rows {
  int64_t count;
  // Elements from one row to the next; the width when there are fewer than two rows.
  int64_t stride;
};

// None when the last dimension is not contiguous or the rows are not evenly spaced. `t` has a
// dimension.
inline std::optional<Rows> rows_of(const at::Tensor& t) {
  const at::IntArrayRef sizes = t.sizes();
  const int64_t cols = sizes.back();
  if (t.is_contiguous()) {
    int64_t count = cols ? 1 : 0;
    for (size_t d = 0; d + 1 < sizes.size(); ++d) count *= sizes[d];  // cheaper than a division
    return Rows{count, cols};
  }
  const at::IntArrayRef strides = t.strides();
  if (cols > 1 && strides.back() != 1) return std::nullopt;
  Rows rows{1, cols};
  for (size_t d = sizes.size() - 1; d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (rows.count == 1) {
      rows.stride = strides[d];
    } else if (strides[d] != rows.stride * rows.count) {
      return std::nullopt;
    }
    rows.count *= sizes[d];
  }
  return rows;
}

// Whether a row may share memory with another one of its own tensor.
inline bool rows_overlap(const Rows& rows, int64_t cols) {
  return rows.count > 1 && rows.stride < cols;
}

// Whether rows of `a` and `b`, tensors of one dtype and width, may share memory. Says no for the
// columns of one matrix split in two, although the rows of these interleave.
inline bool rows_overlap(const at::Tensor& a, const Rows& a_rows, const at::Tensor& b,
                         const Rows& b_rows, int64_t cols) {
  if (a_rows.count == 0 || b_rows.count == 0 || cols == 0) return false;
  const auto size = static_cast<int64_t>(a.element_size());
  const auto begin = [](const at::Tensor& t) {
    return reinterpret_cast<intptr_t>(t.const_data_ptr());
  };
  const auto end = [&](const at::Tensor& t, const Rows& rows) {
    return begin(t) + ((rows.count - 1) * rows.stride + cols) * size;
  };
  if (end(a, a_rows) <= begin(b) || end(b, b_rows) <= begin(a)) return false;
  const int64_t period = a_rows.stride * size;
  if (a_rows.stride != b_rows.stride || period == 0) return true;
  // Both repeat with the same period: compare where in it each one lies.
  const int64_t offset = ((begin(b) - begin(a)) % period + period) % period;
  return offset < cols * size || offset + cols * size > period;
}

}  // namespace vllm_ir
