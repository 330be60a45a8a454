// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "cpp/kernels/cuda/launchers.h"

namespace vllm_ir::kernels {

const char* text_of(const LaunchStatus& status) {
  switch (status.kind) {
    case LaunchStatus::Kind::kOk:
      return "no error";
    case LaunchStatus::Kind::kTooLarge:
      return "the tensor has more rows or columns than a launch can have";
    case LaunchStatus::Kind::kInvalidArgument:
      return "an argument is out of range";
    case LaunchStatus::Kind::kNotBuilt:
      return "vllm_ir was built without CUDA kernels";
    case LaunchStatus::Kind::kCudaError:
      break;
  }
  return cudaGetErrorString(static_cast<cudaError_t>(status.cuda_error));
}

}  // namespace vllm_ir::kernels
