// SPDX-License-Identifier: Apache-2.0
#include "cpp/torch/cuda_launch.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "cpp/kernels/cuda/launchers.h"
#include "cpp/torch/messages.h"

namespace vllm_ir::kernel_ops {
namespace {

template <typename Args>
void launch(kernels::LaunchStatus (*launcher)(const Args&, void*), const char* op,
            const at::Tensor& x, const Args& args) {
  const at::Device device = x.device();
  const c10::DeviceGuard guard(device);  // torch sets no device for the operators of a library
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  const kernels::LaunchStatus status = launcher(args, stream.native_handle());
  TORCH_CHECK(status.ok(), messages::launch_failed(op, x, kernels::text_of(status)));
}

}  // namespace

void launch_cuda(const char* op, const at::Tensor& x, const kernels::RmsNormArgs& args) {
  launch(&kernels::rms_norm_cuda, op, x, args);
}
void launch_cuda(const char* op, const at::Tensor& x, const kernels::FusedAddRmsNormArgs& args) {
  launch(&kernels::fused_add_rms_norm_cuda, op, x, args);
}
void launch_cuda(const char* op, const at::Tensor& x, const kernels::ActAndMulArgs& args) {
  launch(&kernels::act_and_mul_cuda, op, x, args);
}

}  // namespace vllm_ir::kernel_ops
