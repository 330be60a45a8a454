// SPDX-License-Identifier: Apache-2.0
// The CUDA launchers of a build without CUDA: they say that they aren't there.
#include "cpp/kernels/cuda/launchers.h"

namespace vllm_ir::kernels {
namespace {

constexpr LaunchStatus kNotBuilt{LaunchStatus::Kind::kNotBuilt};

}  // namespace

const char* text_of(const LaunchStatus& status) {
  return status.ok() ? "no error" : "vllm_ir was built without CUDA kernels";
}

LaunchStatus rms_norm_cuda(const RmsNormArgs&, void*) { return kNotBuilt; }
LaunchStatus fused_add_rms_norm_cuda(const FusedAddRmsNormArgs&, void*) { return kNotBuilt; }
LaunchStatus act_and_mul_cuda(const ActAndMulArgs&, void*) { return kNotBuilt; }

}  // namespace vllm_ir::kernels
