// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "cpp/dispatch/schema.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

TEST(Schema, NamesOfLowerCaseLettersDigitsAndUnderscoresAreValid) {
  for (const char* name : {"a", "_", "rms_norm", "vllm_c", "_private", "triton_2", "a0"}) {
    EXPECT_TRUE(is_valid_name(name)) << name;
  }
}

TEST(Schema, EveryOtherNameIsInvalid) {
  for (const char* name : {"", "0a", "RmsNorm", "rms-norm", "rms norm", "a.b", "a,b", "a\n", " a",
                           "\xc3\xa9", "native!"}) {
    EXPECT_FALSE(is_valid_name(name)) << "'" << name << "'";
  }
  EXPECT_FALSE(is_valid_name(std::string("a\0b", 3)));
}

TEST(Schema, EachByteIsValidOnlyWhereThePatternAllowsIt) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto c = static_cast<char>(byte);
    const bool first = (c >= 'a' && c <= 'z') || c == '_';
    const bool later = first || (c >= '0' && c <= '9');
    EXPECT_EQ(is_valid_name(std::string(1, c)), first) << byte;
    EXPECT_EQ(is_valid_name(std::string("a") + c), later) << byte;
  }
}

TEST(Schema, AParameterIsFoundByItsName) {
  const std::vector<Param> params = sample_params();
  EXPECT_EQ(find_param(params, "x"), 0);
  EXPECT_EQ(find_param(params, "variance_size"), 4);
  EXPECT_EQ(find_param(params, "residual"), -1);
  EXPECT_EQ(find_param(params, ""), -1);
  EXPECT_EQ(find_param({}, "x"), -1);
}

}  // namespace
}  // namespace vllm_ir
