// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "cpp/kernels/cpu_level.h"

namespace vllm_ir::kernels {
namespace {

TEST(CpuLevel, IsTheBestOneUntilAnotherIsSet) {
  EXPECT_EQ(cpu_level(), best_cpu_level());
  ASSERT_TRUE(set_cpu_level(CpuLevel::kBase));
  EXPECT_EQ(cpu_level(), CpuLevel::kBase);
  ASSERT_TRUE(set_cpu_level(best_cpu_level()));
  EXPECT_EQ(cpu_level(), best_cpu_level());
}

TEST(CpuLevel, AboveTheBestIsRefused) {
  const auto above = static_cast<CpuLevel>(static_cast<int>(best_cpu_level()) + 1);
  EXPECT_FALSE(set_cpu_level(above));
  EXPECT_FALSE(set_cpu_level(static_cast<CpuLevel>(-1)));
  EXPECT_EQ(cpu_level(), best_cpu_level());
}

TEST(CpuLevel, HasAName) {
  EXPECT_STREQ(cpu_level_name(CpuLevel::kBase), "base");
  EXPECT_STREQ(cpu_level_name(CpuLevel::kV3), "x86-64-v3");
  EXPECT_STREQ(cpu_level_name(CpuLevel::kV4), "x86-64-v4");
  EXPECT_STREQ(cpu_level_name(), cpu_level_name(best_cpu_level()));
}

}  // namespace
}  // namespace vllm_ir::kernels
