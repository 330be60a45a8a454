// SPDX-License-Identifier: Apache-2.0
// Rules while compiling: a clause that needs a symbolic value rejects and says so, the others go
// on, and none accepts what it would reject once the values are known.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/cpp/dispatch/asked.h"
#include "tests/cpp/dispatch/random_case.h"

namespace vllm_ir {
namespace {

constexpr int64_t kS = kSymbolic;

TEST(Symbolic, AClauseThatNeedsASymbolicSizeRejectsWithThatReason) {
  const PlainArg x = tensor({4, kS});
  EXPECT_EQ(Asked("last_dim_multiple_of", {"x"}, {}, 8).reason(x),
            "x.shape[-1] is symbolic; needs last_dim_multiple_of(\"x\", 8)");
  EXPECT_EQ(Asked("last_dim_at_most", {"x"}, {}, 8).reason(x),
            "x.shape[-1] is symbolic; needs last_dim_at_most(\"x\", 8)");
  EXPECT_EQ(Asked("same_shape", {"x", "x_residual"}).reason(x, tensor({4, kS})),
            "x.shape is (4, symbolic), x_residual.shape is (4, symbolic); needs same_shape(\"x\", "
            "\"x_residual\")");
  EXPECT_EQ(Asked("matches_last_dim", {"weight", "x"}).reason(x, none(), tensor({8})),
            "weight.shape is (8,), x.shape is (4, symbolic); needs matches_last_dim(\"weight\", "
            "\"x\")");
  EXPECT_EQ(Asked("matches_last_dim", {"weight", "x"}).reason(x, none(), tensor({kS})),
            "weight.shape is (symbolic,), x.shape is (4, symbolic); needs "
            "matches_last_dim(\"weight\", \"x\")");
  const Asked within("within_last_dim", {"variance_size", "x"});
  EXPECT_EQ(within.reason(x, none(), none(), number(1)),
            "variance_size is 1, x.shape[-1] is symbolic; needs within_last_dim(\"variance_size\", "
            "\"x\")");
  EXPECT_EQ(within.reason(tensor({4, 8}), none(), none(), number(kS)),
            "variance_size is symbolic, x.shape[-1] is 8; needs within_last_dim(\"variance_size\", "
            "\"x\")");
  EXPECT_EQ(Asked("last_dim_contiguous", {"x"}).reason(tensor({4, 8}).strided({1, kS})),
            "x.stride(-1) is symbolic; needs last_dim_contiguous(\"x\")");
  EXPECT_EQ(Asked("flattens_for_free", {"x"}).reason(tensor({4, kS, 8})),
            "x does not flatten to rows without a copy; needs flattens_for_free(\"x\")");
  EXPECT_EQ(Asked("no_overlap", {"x"}).reason(x),
            "elements share memory, or may; needs no_overlap(\"x\")");
}

TEST(Symbolic, ASymbolicBatchDoesNotMatterToARule) {
  const PlainArg x = tensor({kS, 8}).without_address();
  EXPECT_TRUE(Asked("dtype", {"x"}, {"float32"}).accepts(x));
  EXPECT_TRUE(Asked("device", {"x"}, {"cpu"}).accepts(x));
  EXPECT_TRUE(Asked("min_dims", {"x"}, {}, 2).accepts(x));
  EXPECT_TRUE(Asked("matches_last_dim", {"weight", "x"}).accepts(x, none(), tensor({8})));
  EXPECT_TRUE(
      Asked("within_last_dim", {"variance_size", "x"}).accepts(x, none(), none(), number(8)));
  EXPECT_TRUE(Asked("last_dim_contiguous", {"x"}).accepts(x));
  EXPECT_TRUE(Asked("last_dim_multiple_of", {"x"}, {}, 8).accepts(x));
  EXPECT_TRUE(Asked("last_dim_at_most", {"x"}, {}, 8).accepts(x));
  EXPECT_TRUE(Asked("flattens_for_free", {"x"}).accepts(x));
  EXPECT_TRUE(Asked("no_overlap", {"x"}).accepts(x));
}

TEST(Symbolic, ASymbolicLastSizeIsContiguousWithStrideOne) {
  EXPECT_TRUE(Asked("last_dim_contiguous", {"x"}).accepts(tensor({4, kS})));
}

TEST(Symbolic, WhatAClauseAcceptsWithSymbolsItAcceptsWithTheirValues) {
  RandomCase random(1);
  std::map<ClauseKind, int> accepted;
  for (int i = 0; i < 100'000; ++i) {
    const Clause clause(random.clause(), sample_params(), "here");
    const std::vector<PlainArg> args = random.arguments();
    if (!holds(clause, PlainArgs(random.masked(args)))) continue;
    ASSERT_TRUE(holds(clause, PlainArgs(args)))
        << "case " << i << ": " << why_not(clause, PlainArgs(args));
    ++accepted[clause.kind()];
  }
  for (const auto& [kind, times] : accepted) EXPECT_GT(times, 50) << static_cast<int>(kind);
  EXPECT_EQ(accepted.size(), 16u) << "every kind accepted something";
}

TEST(Symbolic, EveryRejectionHasAReason) {
  RandomCase random(2);
  for (int i = 0; i < 50'000; ++i) {
    const Clause clause(random.clause(), sample_params(), "here");
    std::vector<PlainArg> args = random.arguments();
    if (random.chance(2)) args = random.masked(args);
    const PlainArgs plain(args);
    if (holds(clause, plain)) continue;
    const std::string reason = why_not(clause, plain);
    ASSERT_EQ(reason.find(std::to_string(kS)), std::string::npos) << reason;
    if (clause.kind() != ClauseKind::kFlattensForFree) {
      ASSERT_TRUE(reason.ends_with("; needs " + clause.to_string())) << reason;
    }
  }
}

}  // namespace
}  // namespace vllm_ir
