// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cpp/dispatch/tensor_facts.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

TEST(TensorFacts, EveryDtypeIsFoundByItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
    names.emplace(name_of(dtype));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kDTypeCount));
}

TEST(TensorFacts, EveryDeviceIsFoundByItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i < kDeviceTypeCount; ++i) {
    const auto device = static_cast<DeviceType>(i);
    EXPECT_EQ(device_named(name_of(device)), device);
    names.emplace(name_of(device));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kDeviceTypeCount));
}

TEST(TensorFacts, NamesAreThoseOfTorch) {
  EXPECT_EQ(name_of(DType::kFloat16), "float16");
  EXPECT_EQ(name_of(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(name_of(DType::kFloat8E4M3FN), "float8_e4m3fn");
  EXPECT_EQ(name_of(DType::kFloat8E5M2FNUZ), "float8_e5m2fnuz");
  EXPECT_EQ(name_of(DType::kComplex128), "complex128");
  EXPECT_EQ(name_of(DeviceType::kCuda), "cuda");
  EXPECT_EQ(name_of(DeviceType::kPrivateUse1), "privateuseone");
}

TEST(TensorFacts, AnUnknownDtypeListsTheKnownOnes) {
  expect_error(ErrorKind::kValue,
               "vllm_ir.rules: unknown dtype 'half'. Known: float64, float32, float16, bfloat16, "
               "float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu, "
               "int64, int32, int16, int8, uint8, uint16, uint32, uint64, bool, complex32, "
               "complex64, complex128, other.",
               [] { dtype_named("half"); });
}

TEST(TensorFacts, AnUnknownDeviceListsTheKnownOnes) {
  expect_error(ErrorKind::kValue,
               "vllm_ir.rules: unknown device 'gpu'. Known: cpu, cuda, xpu, mps, meta, "
               "privateuseone, other.",
               [] { device_named("gpu"); });
}

}  // namespace
}  // namespace vllm_ir
