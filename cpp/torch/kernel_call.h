// SPDX-License-Identifier: Apache-2.0
// What every vllm_ir_C op does around its launcher: the checks of x, the choice of the device, the
// spread of rows over torch's threads, and results whose strides are not rows.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cpp/kernels/dtype.h"
#include "cpp/torch/cuda_launch.h"
#include "cpp/torch/messages.h"
#include "cpp/torch/rows.h"

namespace vllm_ir::kernel_ops {

inline bool is_kernel_dtype(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf || type == at::kFloat;
}

inline kernels::DType kernel_dtype(at::ScalarType type) {
  return type == at::kBFloat16 ? kernels::DType::kBFloat16
         : type == at::kHalf   ? kernels::DType::kFloat16
                               : kernels::DType::kFloat32;
}

// What can be checked without looking at a size.
inline void check_x_type(const char* op, const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() > 0, messages::no_dimension(op));
  TORCH_CHECK_TYPE(is_kernel_dtype(x.scalar_type()), messages::x_dtype(op, x.scalar_type()));
}

inline void check_device(const char* op, const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.is_cpu() || (kHasCudaKernels && x.is_cuda()),
                    messages::no_kernel_for_device(op, kHasCudaKernels ? "cpu, cuda" : "cpu", x));
}

inline Rows check_rows(const char* op, const char* argument, const at::Tensor& t) {
  const std::optional<Rows> rows = rows_of(t);
  TORCH_CHECK_VALUE(rows.has_value(), messages::rows_not_uniform(op, argument, t));
  return *rows;
}

// Elements that a thread gets at least: torch's own number for cheap loops. On two cores of a Zen 4
// it is where the second thread begins to pay (8 rows of 4096 bfloat16: 5.5 us on one, 5.1 on two).
constexpr int64_t kGrainElements = 32768;

template <typename Args>
void run_rows(void (*launch)(const Args&, int64_t, int64_t), const Args& args) {
  if (args.rows <= 1 || args.rows * args.cols <= kGrainElements) return launch(args, 0, args.rows);
  const int64_t grain = std::max<int64_t>(1, kGrainElements / args.cols);
  at::parallel_for(0, args.rows, grain,
                   [&](int64_t begin, int64_t end) { launch(args, begin, end); });
}

// Runs the kernel where x lies.
template <typename Args>
void run(const char* op, const at::Tensor& x, void (*cpu)(const Args&, int64_t, int64_t),
         const Args& args) {
  if (x.is_cpu()) return run_rows(cpu, args);
  launch_cuda(op, x, args);
}

// Calls `into(tensor, its rows)` and returns `out` filled. `out` is that tensor where its strides
// are rows. Where they are not (native's for rows of x that overlap, sliding windows), it gets a
// copy.
template <typename F>
at::Tensor fill(const at::Tensor& out, const std::optional<Rows>& out_rows, const F& into) {
  if (out_rows) {
    into(out, *out_rows);
    return out;
  }
  const at::Tensor dense = at::empty_like(out, out.options(), at::MemoryFormat::Contiguous);
  into(dense, *rows_of(dense));
  return out.copy_(dense);
}

}  // namespace vllm_ir::kernel_ops
