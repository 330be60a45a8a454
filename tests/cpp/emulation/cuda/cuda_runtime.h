// SPDX-License-Identifier: Apache-2.0
// Stands in for CUDA's header of this name when the kernels are compiled for the CPU. It has what
// they use and no more: a launcher that allocated or waited would not compile.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/cpp/emulation/block.h"
#include "tests/cpp/emulation/emulation.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static  // one block runs at a time
#define __launch_bounds__(...)

#define VLLM_IR_ON_LOAD(pointer, bytes) vllm_ir::emulation::on_load(pointer, bytes)
#define VLLM_IR_ON_STORE(pointer, bytes) vllm_ir::emulation::on_store(pointer, bytes)

struct dim3 : vllm_ir::emulation::Size {
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : Size{x_, y_, z_} {}
};
struct float2 {
  float x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

inline float __uint_as_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline uint32_t __float_as_uint(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float rsqrtf(float f) { return 1.f / std::sqrt(f); }

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  vllm_ir::emulation::block_barrier({file, line});
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  vllm_ir::emulation::warp_barrier(mask, {file, line});
}
inline float __shfl_xor_sync(unsigned mask, float value, int distance,
                             const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const int source = vllm_ir::emulation::lane() ^ distance;
  const uint64_t got =
      vllm_ir::emulation::warp_exchange(mask, __float_as_uint(value), source, {file, line});
  return __uint_as_float(static_cast<uint32_t>(got));
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
};
using cudaStream_t = struct CUstream_st*;

namespace vllm_ir::emulation {
inline cudaError_t last_error = cudaSuccess;
}

// Works off the whole grid, unlike CUDA's.
template <typename Params>
cudaError_t cudaLaunchKernel(void (*kernel)(Params), dim3 grid, dim3 block, void** arguments,
                             size_t /*shared_bytes*/, cudaStream_t) {
  struct Call {
    void (*kernel)(Params);
    const Params* params;
  } const call{kernel, static_cast<const Params*>(arguments[0])};
  const auto run = [](const void* c) {
    const Call& call = *static_cast<const Call*>(c);
    call.kernel(*call.params);
  };
  if (vllm_ir::emulation::run_grid(run, &call, grid, block)) return cudaSuccess;
  const bool ran = !vllm_ir::emulation::fault().empty();
  return vllm_ir::emulation::last_error =
             ran ? cudaErrorLaunchFailure : cudaErrorInvalidConfiguration;
}

inline cudaError_t cudaGetLastError() {
  const cudaError_t error = vllm_ir::emulation::last_error;
  vllm_ir::emulation::last_error = cudaSuccess;
  return error;
}
inline const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorInvalidConfiguration) return "invalid configuration argument";
  if (error == cudaErrorLaunchFailure) return vllm_ir::emulation::fault().c_str();
  return "no error";
}
