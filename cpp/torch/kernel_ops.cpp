// SPDX-License-Identifier: Apache-2.0
#include "cpp/torch/kernel_ops.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <memory>
#include <vector>

#include "cpp/kernels/fused_add_rms_norm.h"
#include "cpp/kernels/rms_norm.h"
#include "cpp/torch/activation_ops.h"
#include "cpp/torch/kernel_call.h"
#include "cpp/torch/messages.h"
#include "cpp/torch/rows.h"

namespace vllm_ir::kernel_ops {
namespace {

constexpr char kRmsNorm[] = "rms_norm";
constexpr char kFusedAddRmsNorm[] = "fused_add_rms_norm";
constexpr char kLibrary[] = "vllm_ir_C";

// What can be checked without looking at a size, for the Meta kernels too.
void check_types(const char* op, const at::Tensor& x, const at::Tensor* weight) {
  check_x_type(op, x);
  if (weight == nullptr) return;
  const at::ScalarType type = weight->scalar_type();
  TORCH_CHECK_TYPE(type == x.scalar_type() || type == at::kFloat,
                   messages::weight_dtype(op, x.scalar_type(), type));
  TORCH_CHECK_VALUE(weight->device() == x.device(),
                    messages::other_device(op, "weight", x, *weight));
}

// Returns the number of columns that the variance is over.
int64_t check_norm(const char* op, const at::Tensor& x, const at::Tensor* weight,
                   std::optional<int64_t> variance_size) {
  check_types(op, x, weight);
  check_device(op, x);
  const int64_t cols = x.sizes().back();
  TORCH_CHECK_VALUE(weight == nullptr || (weight->dim() == 1 && weight->sizes()[0] == cols),
                    messages::weight_shape(op, cols, weight->sizes()));
  if (!variance_size) return cols;
  TORCH_CHECK_VALUE(*variance_size >= 1 && *variance_size <= cols,
                    messages::variance_size(op, cols, *variance_size));
  return *variance_size;
}

void check_residual_types(const at::Tensor& x, const at::Tensor& x_residual) {
  TORCH_CHECK_TYPE(
      x_residual.scalar_type() == x.scalar_type(),
      messages::residual_dtype(kFusedAddRmsNorm, x.scalar_type(), x_residual.scalar_type()));
  TORCH_CHECK_VALUE(x_residual.device() == x.device(),
                    messages::other_device(kFusedAddRmsNorm, "x_residual", x, x_residual));
}

Rows check_overwritten_rows(const char* argument, const at::Tensor& t, int64_t cols) {
  const Rows rows = check_rows(kFusedAddRmsNorm, argument, t);
  TORCH_CHECK_VALUE(!rows_overlap(rows, cols),
                    messages::overlaps_itself(kFusedAddRmsNorm, argument, t));
  return rows;
}

// A weight with gaps is copied: it is one row, and no kernel takes a stride for it.
struct Weight {
  at::Tensor copy;
  const void* data = nullptr;
  kernels::DType dtype = kernels::DType::kFloat32;

  explicit Weight(const at::Tensor* weight) {
    if (weight == nullptr) return;
    if (!weight->is_contiguous()) copy = weight->contiguous();
    data = (copy.defined() ? copy : *weight).const_data_ptr();
    dtype = kernel_dtype(weight->scalar_type());
  }
};

at::Tensor empty_output(const at::Tensor& x) {
  // 150 to 200 ns less than empty_like, and the same strides.
  if (x.is_cpu() && x.is_contiguous())
    return at::Tensor(at::detail::empty_cpu(x.sizes(), x.scalar_type()));
  return at::empty_like(x);
}

void run_rms_norm_into(const at::Tensor& out, const Rows& out_rows, const at::Tensor& x,
                       const Weight& w, double epsilon, int64_t var_cols, const Rows& rows) {
  kernels::RmsNormArgs args{};
  args.out = out.mutable_data_ptr();
  args.x = x.const_data_ptr();
  args.weight = w.data;
  args.dtype = kernel_dtype(x.scalar_type());
  args.weight_dtype = w.dtype;
  args.rows = rows.count;
  args.cols = x.sizes().back();
  args.var_cols = var_cols;
  args.out_stride = out_rows.stride;
  args.x_stride = rows.stride;
  args.epsilon = epsilon;
  run(kRmsNorm, x, kernels::rms_norm_cpu, args);
}

at::Tensor run_rms_norm(const at::Tensor& x, const at::Tensor* weight, double epsilon,
                        int64_t var_cols, const Rows& rows) {
  const Weight w(weight);
  const at::Tensor out = empty_output(x);
  const std::optional<Rows> out_rows = x.is_contiguous() ? rows : rows_of(out);
  return fill(out, out_rows, [&](const at::Tensor& to, const Rows& to_rows) {
    run_rms_norm_into(to, to_rows, x, w, epsilon, var_cols, rows);
  });
}

void run_fused_add_rms_norm(const at::Tensor& x, const at::Tensor& x_residual,
                            const at::Tensor* weight, double epsilon, int64_t var_cols,
                            const Rows& rows, const Rows& residual_rows) {
  const Weight w(weight);
  kernels::FusedAddRmsNormArgs args{};
  args.out = x.mutable_data_ptr();
  args.residual_out = x_residual.mutable_data_ptr();
  args.x = args.out;
  args.x_residual = args.residual_out;
  args.weight = w.data;
  args.dtype = kernel_dtype(x.scalar_type());
  args.weight_dtype = w.dtype;
  args.rows = rows.count;
  args.cols = x.sizes().back();
  args.var_cols = var_cols;
  args.out_stride = args.x_stride = rows.stride;
  args.residual_out_stride = args.x_residual_stride = residual_rows.stride;
  args.epsilon = epsilon;
  run(kFusedAddRmsNorm, x, kernels::fused_add_rms_norm_cpu, args);
}

// `before_writing` sees both tensors once everything is checked.
void fused_add_rms_norm_and(void (*before_writing)(const at::Tensor&), const at::Tensor& x,
                            const at::Tensor& x_residual, const at::Tensor* weight, double epsilon,
                            std::optional<int64_t> variance_size) {
  const int64_t var_cols = check_norm(kFusedAddRmsNorm, x, weight, variance_size);
  check_residual_types(x, x_residual);
  TORCH_CHECK_VALUE(x_residual.sizes() == x.sizes(),
                    messages::residual_shape(kFusedAddRmsNorm, x.sizes(), x_residual.sizes()));
  const int64_t cols = x.sizes().back();
  const Rows rows = check_overwritten_rows("x", x, cols);
  const Rows residual_rows = check_overwritten_rows("x_residual", x_residual, cols);
  TORCH_CHECK_VALUE(!rows_overlap(x, rows, x_residual, residual_rows, cols),
                    messages::overlap(kFusedAddRmsNorm));
  before_writing(x);
  before_writing(x_residual);
  run_fused_add_rms_norm(x, x_residual, weight, epsilon, var_cols, rows, residual_rows);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor* weight, double epsilon,
                    std::optional<int64_t> variance_size) {
  const int64_t var_cols = check_norm(kRmsNorm, x, weight, variance_size);
  return run_rms_norm(x, weight, epsilon, var_cols, check_rows(kRmsNorm, "x", x));
}

std::tuple<at::Tensor, at::Tensor> fused_add_rms_norm_(const at::Tensor& x,
                                                       const at::Tensor& x_residual,
                                                       const at::Tensor* weight, double epsilon,
                                                       std::optional<int64_t> variance_size) {
  fused_add_rms_norm_and([](const at::Tensor&) {}, x, x_residual, weight, epsilon, variance_size);
  return {x, x_residual};
}

namespace unchecked {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor* weight, double epsilon,
                    std::optional<int64_t> variance_size) {
  return run_rms_norm(x, weight, epsilon, variance_size.value_or(x.sizes().back()), *rows_of(x));
}

std::tuple<at::Tensor, at::Tensor> fused_add_rms_norm_(const at::Tensor& x,
                                                       const at::Tensor& x_residual,
                                                       const at::Tensor* weight, double epsilon,
                                                       std::optional<int64_t> variance_size) {
  run_fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size.value_or(x.sizes().back()),
                         *rows_of(x), *rows_of(x_residual));
  return {x, x_residual};
}

}  // namespace unchecked

namespace {

const at::Tensor* pointer(const std::optional<at::Tensor>& t) { return t ? &*t : nullptr; }

at::Tensor rms_norm_op(const at::Tensor& x, const std::optional<at::Tensor>& weight, double epsilon,
                       std::optional<int64_t> variance_size) {
  return rms_norm(x, pointer(weight), epsilon, variance_size);
}

void fused_add_rms_norm_op(const at::Tensor& x, const at::Tensor& x_residual,
                           const std::optional<at::Tensor>& weight, double epsilon,
                           std::optional<int64_t> variance_size) {
  // Autograd bumps the versions for torch's own in-place ops, and not for those of a library.
  // Before the write, since it refuses an inference tensor outside of inference mode.
  const auto bump = [](const at::Tensor& t) { t.unsafeGetTensorImpl()->bump_version(); };
  fused_add_rms_norm_and(bump, x, x_residual, pointer(weight), epsilon, variance_size);
}

// The Meta kernels look at no size: a symbolic one would get a guard.
at::Tensor rms_norm_meta(const at::Tensor& x, const std::optional<at::Tensor>& weight, double,
                         std::optional<c10::SymInt>) {
  check_types(kRmsNorm, x, pointer(weight));
  return at::empty_like(x);
}

void fused_add_rms_norm_meta(const at::Tensor& x, const at::Tensor& x_residual,
                             const std::optional<at::Tensor>& weight, double,
                             std::optional<c10::SymInt>) {
  check_types(kFusedAddRmsNorm, x, pointer(weight));
  check_residual_types(x, x_residual);
}

std::unique_ptr<torch::Library> new_library(torch::Library::Kind kind,
                                            std::optional<c10::DispatchKey> key) {
  return std::make_unique<torch::Library>(kind, kLibrary, key, "cpp/torch/kernel_ops.cpp", 0);
}

}  // namespace

void register_kernel_ops() {
  std::unique_ptr<torch::Library> schemas;
  try {
    schemas = new_library(torch::Library::DEF, std::nullopt);
  } catch (const c10::Error&) {
    TORCH_CHECK(false, messages::already_registered(kLibrary));
  }
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  schemas->def(
      "rms_norm(Tensor x, Tensor? weight, float epsilon, SymInt? variance_size=None) -> Tensor",
      tags);
  schemas->def(
      "fused_add_rms_norm_(Tensor(a!) x, Tensor(b!) x_residual, Tensor? weight, float epsilon, "
      "SymInt? variance_size=None) -> ()",
      tags);
  std::vector<std::unique_ptr<torch::Library>> devices;
  devices.push_back(new_library(torch::Library::IMPL, c10::DispatchKey::CPU));
  if (kHasCudaKernels) devices.push_back(new_library(torch::Library::IMPL, c10::DispatchKey::CUDA));
  for (const auto& device : devices) {
    device->impl("rms_norm", &rms_norm_op);
    device->impl("fused_add_rms_norm_", &fused_add_rms_norm_op);
    register_activation_ops(*device);
  }
  auto meta = new_library(torch::Library::IMPL, c10::DispatchKey::Meta);
  meta->impl("rms_norm", &rms_norm_meta);
  meta->impl("fused_add_rms_norm_", &fused_add_rms_norm_meta);
  define_activation_ops(*schemas, *meta);
  // Leaked: the end of the process must not race with calls, and there is nothing to undo then.
  schemas.release();
  for (auto& device : devices) device.release();
  meta.release();
}

}  // namespace vllm_ir::kernel_ops
