// SPDX-License-Identifier: Apache-2.0
// The sum over the threads of a row, in an order that blockDim.x alone decides.
#pragma once

#include <cuda_runtime.h>

#include "cpp/kernels/cuda/launch_shape.h"

namespace vllm_ir::kernels {

// Over groups of `lanes` neighbours, a power of two up to 32. Every thread of the warp must call
// it; each gets the same bits as its neighbours, since a + b == b + a.
__device__ inline float warp_sum(float f, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    f += __shfl_xor_sync(0xffffffffu, f, distance);
  return f;
}

// Every thread of the block must call it, and only once in a kernel: a second call would write
// `partial` while slower warps still read it.
__device__ inline float row_sum(float f) {
  const int lanes = static_cast<int>(blockDim.x);
  if (lanes <= kWarp) return warp_sum(f, lanes);
  __shared__ float partial[kMaxRowThreads / kWarp];
  f = warp_sum(f, kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) partial[threadIdx.x / kWarp] = f;
  __syncthreads();
  return warp_sum(lane < lanes / kWarp ? partial[lane] : 0.f, kWarp);
}

}  // namespace vllm_ir::kernels
