// SPDX-License-Identifier: Apache-2.0
// Names for what a rule may ask of a tensor. The dispatch core knows no torch, so it has its own
// small enumerations; cpp/torch/argument.h maps torch's onto them.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace vllm_ir {

enum class DType : uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kFloat8E4M3FNUZ,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kComplex32,
  kComplex64,
  kComplex128,
  kOther,
};
inline constexpr int kDTypeCount = static_cast<int>(DType::kOther) + 1;

enum class DeviceType : uint8_t { kCpu, kCuda, kXpu, kMps, kMeta, kPrivateUse1, kOther };
inline constexpr int kDeviceTypeCount = static_cast<int>(DeviceType::kOther) + 1;

// torch's own spellings: "float16", "cuda".
std::string_view name_of(DType dtype) noexcept;
std::string_view name_of(DeviceType device) noexcept;
// Throw Error(kValue) that lists the known names.
DType dtype_named(std::string_view name);
DeviceType device_named(std::string_view name);

// A size, stride or integer argument that is symbolic while compiling. A clause that needs such a
// value rejects: it can't decide without adding a guard.
inline constexpr int64_t kSymbolic = std::numeric_limits<int64_t>::min();

// The bytes that a tensor may touch. Tensors of different storages never overlap.
struct Region {
  const void* storage = nullptr;
  int64_t begin = 0;  // bytes from the start of the storage; kSymbolic when unknown
  int64_t end = 0;    // one past the last byte
};

}  // namespace vllm_ir
