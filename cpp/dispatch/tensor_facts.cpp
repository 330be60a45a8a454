// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/tensor_facts.h"

#include <array>
#include <string>

#include "cpp/dispatch/error.h"

namespace vllm_ir {
namespace {

constexpr std::array<std::string_view, kDTypeCount> kDTypeNames = {
    "float64",        "float32",     "float16",         "bfloat16",
    "float8_e4m3fn",  "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "int64",       "int32",           "int16",
    "int8",           "uint8",       "uint16",          "uint32",
    "uint64",         "bool",        "complex32",       "complex64",
    "complex128",     "other"};
constexpr std::array<std::string_view, kDeviceTypeCount> kDeviceNames = {
    "cpu", "cuda", "xpu", "mps", "meta", "privateuseone", "other"};

template <class Enum, size_t N>
Enum named(const std::array<std::string_view, N>& names, std::string_view name, const char* noun) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
    known += (i ? ", " : "") + std::string(names[i]);
  }
  throw Error(ErrorKind::kValue, "vllm_ir.rules: unknown " + std::string(noun) + " '" +
                                     std::string(name) + "'. Known: " + known + ".");
}

}  // namespace

std::string_view name_of(DType dtype) noexcept { return kDTypeNames[static_cast<size_t>(dtype)]; }
std::string_view name_of(DeviceType device) noexcept {
  return kDeviceNames[static_cast<size_t>(device)];
}
DType dtype_named(std::string_view name) { return named<DType>(kDTypeNames, name, "dtype"); }
DeviceType device_named(std::string_view name) {
  return named<DeviceType>(kDeviceNames, name, "device");
}

}  // namespace vllm_ir
