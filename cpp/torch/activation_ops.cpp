// SPDX-License-Identifier: Apache-2.0
#include "cpp/torch/activation_ops.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "cpp/dispatch/error.h"
#include "cpp/kernels/act_and_mul.h"
#include "cpp/torch/kernel_call.h"
#include "cpp/torch/messages.h"

namespace vllm_ir::kernel_ops {
namespace {

constexpr char kSiluAndMul[] = "silu_and_mul";
constexpr char kGeluAndMul[] = "gelu_and_mul";

using kernels::Activation;

std::optional<Activation> gelu_of(std::string_view approximate) {
  if (approximate == "none") return Activation::kGelu;
  if (approximate == "tanh") return Activation::kGeluTanh;
  return std::nullopt;
}

Activation check_gelu(std::string_view approximate) {
  const auto activation = gelu_of(approximate);
  TORCH_CHECK_VALUE(activation, messages::approximate(kGeluAndMul, approximate));
  return *activation;
}

void check_even(const char* op, int64_t last_dimension) {
  TORCH_CHECK_VALUE(last_dimension % 2 == 0, messages::odd_last_dimension(op, last_dimension));
}

Rows check(const char* op, const at::Tensor& x) {
  check_x_type(op, x);
  check_device(op, x);
  check_even(op, x.sizes().back());
  return check_rows(op, "x", x);
}

at::Tensor empty_half(const at::Tensor& x) {
  c10::DimVector sizes(x.sizes());
  sizes.back() /= 2;
  if (!x.is_contiguous()) return at::empty_like(x.narrow(-1, 0, sizes.back()));
  if (x.is_cpu()) return at::Tensor(at::detail::empty_cpu(sizes, x.scalar_type()));
  return at::empty(sizes, x.options());
}

at::Tensor run_gated(const char* op, const at::Tensor& x, Activation activation, const Rows& rows) {
  kernels::ActAndMulArgs args{};
  args.x = x.const_data_ptr();
  args.dtype = kernel_dtype(x.scalar_type());
  args.activation = activation;
  args.rows = rows.count;
  args.cols = x.sizes().back() / 2;
  args.x_stride = rows.stride;
  const at::Tensor out = empty_half(x);
  return fill(out, rows_of(out), [&](const at::Tensor& to, const Rows& to_rows) {
    args.out = to.mutable_data_ptr();
    args.out_stride = to_rows.stride;
    run(op, x, kernels::act_and_mul_cpu, args);
  });
}

}  // namespace

at::Tensor silu_and_mul(const at::Tensor& x) {
  return run_gated(kSiluAndMul, x, Activation::kSilu, check(kSiluAndMul, x));
}

at::Tensor gelu_and_mul(const at::Tensor& x, std::string_view approximate) {
  const Rows rows = check(kGeluAndMul, x);
  return run_gated(kGeluAndMul, x, check_gelu(approximate), rows);
}

namespace unchecked {

at::Tensor silu_and_mul(const at::Tensor& x) {
  return run_gated(kSiluAndMul, x, Activation::kSilu, *rows_of(x));
}

at::Tensor gelu_and_mul(const at::Tensor& x, std::string_view approximate) {
  const auto activation = gelu_of(approximate);
  if (!activation) throw Error(ErrorKind::kValue, messages::approximate(kGeluAndMul, approximate));
  return run_gated(kGeluAndMul, x, *activation, *rows_of(x));
}

}  // namespace unchecked

namespace {

// Symbolic sizes get no guard: only a size that is a plain number is checked.
at::Tensor half_meta(const char* op, const at::Tensor& x) {
  check_x_type(op, x);
  const c10::SymInt cols = x.sym_sizes().back();
  if (const auto known = cols.maybe_as_int()) check_even(op, *known);
  c10::SymDimVector sizes(x.sym_sizes());
  sizes.back() = cols / 2;
  // Not a slice: torch has none here for symbolic sizes.
  return at::empty_like(x.as_strided_symint(sizes, x.sym_strides()));
}

at::Tensor silu_and_mul_meta(const at::Tensor& x) { return half_meta(kSiluAndMul, x); }

at::Tensor gelu_and_mul_meta(const at::Tensor& x, std::string_view approximate) {
  check_gelu(approximate);
  return half_meta(kGeluAndMul, x);
}

}  // namespace

void define_activation_ops(torch::Library& schemas, torch::Library& meta) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  schemas.def("silu_and_mul(Tensor x) -> Tensor", tags);
  schemas.def("gelu_and_mul(Tensor x, str approximate='none') -> Tensor", tags);
  meta.impl("silu_and_mul", &silu_and_mul_meta);
  meta.impl("gelu_and_mul", &gelu_and_mul_meta);
}

void register_activation_ops(torch::Library& device) {
  device.impl("silu_and_mul", &silu_and_mul);
  device.impl("gelu_and_mul", &gelu_and_mul);
}

}  // namespace vllm_ir::kernel_ops
