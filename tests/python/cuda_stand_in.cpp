// SPDX-License-Identifier: Apache-2.0
// Two CUDA devices for a torch without CUDA, whose memory is the CPU's: enough to see what an
// operator asks of torch before it launches a kernel. No kernel runs on them. The product's
// cuda_launch.cpp is linked in once more, over launchers that tell how they were called.
#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <string>

#include "cpp/kernels/cuda/launchers.h"
#include "cpp/torch/cuda_launch.h"

namespace kernels = vllm_ir::kernels;

namespace {

std::string g_log;
c10::DeviceIndex g_current = 0;
bool g_works = true;

void note(const std::string& what) { g_log += (g_log.empty() ? "" : " ") + what; }

kernels::LaunchStatus launched(const char* name, const void* stream) {
  note(std::string(name) + (stream == &g_log ? "" : "_elsewhere") + "=" +
       std::to_string(g_current));
  return {g_works ? kernels::LaunchStatus::Kind::kOk : kernels::LaunchStatus::Kind::kTooLarge};
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return {type(), g_current}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() != g_current) note("device=" + std::to_string(device.index()));
    g_current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    note("stream_of=" + std::to_string(device.index()));
    return c10::Stream(c10::Stream::UNSAFE, device, 7);
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    note("handle_of=" + std::to_string(stream.id()));
    return &g_log;  // some address
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

at::Tensor on(at::Tensor tensor, c10::Device device) {
  // The memory keeps its own device: it is freed as the CPU's.
  at::DataPtr data(
      tensor.mutable_data_ptr(), new at::Tensor(tensor),
      [](void* kept) { delete static_cast<at::Tensor*>(kept); }, device);
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data),
                       nullptr, false);
  const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(key), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return result;
}

c10::Device given(std::optional<at::Device> device) {
  return device && device->has_index() ? *device : c10::Device(c10::DeviceType::CUDA, g_current);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat>) {
  return on(at::Tensor(at::detail::empty_cpu(size, dtype.value_or(at::kFloat))), given(device));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  return on(at::Tensor(at::detail::empty_strided_cpu(size, stride, dtype.value_or(at::kFloat))),
            given(device));
}

// `works`: what the launcher says.
void launch(const at::Tensor& x, c10::string_view op, bool works) {
  g_works = works;
  if (op == "rms_norm") vllm_ir::kernel_ops::launch_cuda("rms_norm", x, kernels::RmsNormArgs{});
  if (op == "fused_add_rms_norm")
    vllm_ir::kernel_ops::launch_cuda("fused_add_rms_norm", x, kernels::FusedAddRmsNormArgs{});
  if (op == "act_and_mul")
    vllm_ir::kernel_ops::launch_cuda("silu_and_mul", x, kernels::ActAndMulArgs{});
}

std::string taken_log() {
  std::string log;
  log.swap(g_log);
  return log;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
}

TORCH_LIBRARY(cuda_stand_in, m) {
  m.def("on(Tensor x, Device device) -> Tensor", &on);
  m.def("launch(Tensor x, str op, bool works) -> ()", &launch);
  m.def("taken_log() -> str", &taken_log);
}

namespace vllm_ir::kernels {

const char* text_of(const LaunchStatus&) { return "it was too large"; }
LaunchStatus rms_norm_cuda(const RmsNormArgs&, void* stream) {
  return launched("rms_norm", stream);
}
LaunchStatus fused_add_rms_norm_cuda(const FusedAddRmsNormArgs&, void* stream) {
  return launched("fused_add_rms_norm", stream);
}
LaunchStatus act_and_mul_cuda(const ActAndMulArgs&, void* stream) {
  return launched("act_and_mul", stream);
}

}  // namespace vllm_ir::kernels
