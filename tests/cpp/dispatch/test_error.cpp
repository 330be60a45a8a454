// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cpp/dispatch/error.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

TEST(Error, KeepsItsKindAndText) {
  const Error error(ErrorKind::kType, "vllm_ir.norm: text");
  EXPECT_EQ(error.kind(), ErrorKind::kType);
  EXPECT_STREQ(error.what(), "vllm_ir.norm: text");
}

TEST(Error, AnUnknownNameKeepsItsParts) {
  const UnknownName error("vllm_ir.norm", "provider", "nativ", {"native", "vllm_c"});
  EXPECT_EQ(error.kind(), ErrorKind::kUnknownName);
  EXPECT_STREQ(error.what(), "vllm_ir.norm: unknown provider 'nativ'.");
  EXPECT_EQ(error.where(), "vllm_ir.norm");
  EXPECT_EQ(error.noun(), "provider");
  EXPECT_EQ(error.name(), "nativ");
  EXPECT_EQ(error.known(), (Names{"native", "vllm_c"}));
}

}  // namespace
}  // namespace vllm_ir
