// SPDX-License-Identifier: Apache-2.0
// What the norms' launchers share. Args is RmsNormArgs or FusedAddRmsNormArgs.
#pragma once

#include "cpp/kernels/cuda/launch.cuh"
#include "cpp/kernels/cuda/norm.cuh"

namespace vllm_ir::kernels {

template <typename Args>
NormColumns norm_columns(const Args& a) {
  return {static_cast<int>(a.cols), static_cast<int>(a.var_cols),
          1.f / static_cast<float>(a.var_cols), static_cast<float>(a.epsilon)};
}

// Calls f(T{}, W{}) for the norms, W being T, Float32 or NoWeight.
template <typename Args, typename F>
LaunchStatus with_norm_types(const Args& a, const F& f) {
  if (a.rows == 0 || a.cols == 0) return {};
  if (a.cols > kMaxCols) return {LaunchStatus::Kind::kTooLarge};
  if (a.var_cols < 1 || a.var_cols > a.cols) return {LaunchStatus::Kind::kInvalidArgument};
  return with_type(a.dtype, [&](auto t) -> LaunchStatus {
    if (a.weight == nullptr) return f(t, NoWeight{});
    if (a.weight_dtype == a.dtype) return f(t, t);
    if (a.weight_dtype == DType::kFloat32) return f(t, Float32{});
    return {LaunchStatus::Kind::kInvalidArgument};
  });
}

}  // namespace vllm_ir::kernels
