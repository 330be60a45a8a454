// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "cpp/dispatch/roll_up.h"
#include "cpp/dispatch/select.h"
#include "tests/cpp/dispatch/plain_args.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

// "provider 3 (reason: 2, reason: 1)"
Names lines(const Op& op) {
  Names out;
  for (const ImplCounts& counts : roll_up(op)) {
    std::string line = counts.provider + " " + std::to_string(counts.selected);
    for (size_t i = 0; i < counts.rejections.size(); ++i) {
      line += (i ? ", " : " (") + counts.rejections[i].first + ": " +
              std::to_string(counts.rejections[i].second);
    }
    out.push_back(line + (counts.rejections.empty() ? "" : ")"));
  }
  return out;
}

class RollUp : public testing::Test {
 protected:
  RollUp() { op_->set_default({"strict_c", "maybe"}); }

  void call(const PlainArg& x, int times = 1, bool willing = false) {
    PlainArgs args({x, none(), none(), PlainArg{}, none()});
    if (willing) args.agreeable = {"maybe"};
    for (int i = 0; i < times; ++i) select(*op_->table(), args);
  }

  SampleOp op_{
      {asking("maybe"), ruled("strict_c", {make_clause("dtype", {"x"}, {"float16"}, 0),
                                           make_clause("device", {"x"}, {"cpu"}, 0),
                                           make_clause("last_dim_multiple_of", {"x"}, {}, 8)})}};
};

TEST_F(RollUp, StartsAtZeroInOrderOfRegistration) {
  EXPECT_EQ(lines(*op_), (Names{"native 0", "maybe 0", "strict_c 0"}));
}

TEST_F(RollUp, CountsByWhatWasSeen) {
  call(tensor({8}).of(DType::kFloat16, 2), 4);
  call(tensor({8}).of(DType::kFloat64, 8), 3);
  call(tensor({8}), 2, true);
  call(tensor({8}).of(DType::kFloat16, 2).on(DeviceType::kCuda, 0), 5);
  call(tensor({7}).of(DType::kFloat16, 2));
  EXPECT_EQ(lines(*op_),
            (Names{"native 9", "maybe 2 (supports_args said no: 9)",
                   "strict_c 4 (x.dtype is float64: 3, x.dtype is float32: 2, x is on cuda: 5, not "
                   "last_dim_multiple_of(\"x\", 8): 1)"}));
}

TEST_F(RollUp, ACallIsCountedOnceForEachClauseThatRejectedFirst) {
  call(tensor({7}).of(DType::kFloat64, 8).on(DeviceType::kCuda, 0));
  EXPECT_EQ(lines(*op_), (Names{"native 1", "maybe 0 (supports_args said no: 1)",
                                "strict_c 0 (x.dtype is float64: 1)"}));
}

TEST_F(RollUp, ResetStartsAgain) {
  call(tensor({8}), 3);
  reset_counts(*op_);
  EXPECT_EQ(lines(*op_), (Names{"native 0", "maybe 0", "strict_c 0"}));
  call(tensor({8}));
  EXPECT_EQ(lines(*op_), (Names{"native 1", "maybe 0 (supports_args said no: 1)",
                                "strict_c 0 (x.dtype is float32: 1)"}));
}

TEST_F(RollUp, CountsOutliveAChangeOfPriority) {
  call(tensor({8}), 3);
  op_->set_default({"native"});
  call(tensor({8}), 2);
  op_->set_default({"strict_c", "maybe"});
  EXPECT_EQ(lines(*op_), (Names{"native 5", "maybe 0 (supports_args said no: 3)",
                                "strict_c 0 (x.dtype is float32: 3)"}));
}

}  // namespace
}  // namespace vllm_ir
