// SPDX-License-Identifier: Apache-2.0
// What the launchers share: checks, the choice of element types, and the launch itself.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "cpp/kernels/cuda/launch_shape.h"
#include "cpp/kernels/cuda/launchers.h"
#include "cpp/kernels/cuda/vector.cuh"

namespace vllm_ir::kernels {

inline bool wide_pointers(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % kVectorBytes != 0) return false;
  return true;
}

// Whether every row of matrices with these strides begins where the first one does, modulo a
// vector.
inline bool wide_strides(std::initializer_list<int64_t> strides, int64_t rows, int per_vector) {
  if (rows < 2) return true;
  for (const int64_t stride : strides)
    if (stride % per_vector != 0) return false;
  return true;
}

// A kernel takes one argument, a struct. cudaLaunchKernel and not <<<>>>: it says whether this very
// launch failed.
template <typename Params>
LaunchStatus launch(void (*kernel)(Params), Params params, const LaunchShape& shape, int64_t rows,
                    void* stream) {
  const int64_t blocks = shape.blocks(rows);
  if (blocks > kMaxGridX) return {LaunchStatus::Kind::kTooLarge};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(shape.pieces));
  const dim3 block(static_cast<unsigned>(shape.lanes), static_cast<unsigned>(shape.rows));
  void* arguments[] = {&params};
  const cudaError_t error =
      cudaLaunchKernel(kernel, grid, block, arguments, 0, static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return {LaunchStatus::Kind::kCudaError, static_cast<int>(error)};
}

// Calls f(T{}) with the element type.
template <typename F>
LaunchStatus with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(Float32{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kBFloat16:
      return f(BFloat16{});
  }
  return {LaunchStatus::Kind::kInvalidArgument};
}

}  // namespace vllm_ir::kernels
