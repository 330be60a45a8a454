// SPDX-License-Identifier: Apache-2.0
// What each kind of clause accepts, what it rejects, and the reason that it gives.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cpp/dispatch/rule_eval.h"
#include "tests/cpp/dispatch/asked.h"
#include "tests/cpp/dispatch/plain_args.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

TEST(RuleEval, DtypeIsOneOfASet) {
  const Asked clause("dtype", {"x"}, {"float16", "bfloat16"});
  EXPECT_TRUE(clause.accepts(tensor({2, 8}).of(DType::kFloat16, 2)));
  EXPECT_TRUE(clause.accepts(tensor({}).of(DType::kBFloat16, 2)));
  EXPECT_EQ(clause.reason(tensor({2, 8}).of(DType::kFloat64, 8)),
            "x.dtype is float64; needs dtype(\"x\") in {float16, bfloat16}");
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool listed = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
    EXPECT_EQ(clause.accepts(tensor({8}).of(dtype)), listed) << name_of(dtype);
  }
}

TEST(RuleEval, SameDtypeComparesTwoTensors) {
  const Asked clause("same_dtype", {"weight", "x"});
  const PlainArg half = tensor({8}).of(DType::kFloat16, 2), single = tensor({8});
  EXPECT_TRUE(clause.accepts(half, none(), half));
  EXPECT_EQ(clause.reason(half, none(), single),
            "weight.dtype is float32, x.dtype is float16; needs same_dtype(\"weight\", \"x\")");
  const Asked wider("same_dtype", {"weight", "x"}, {"float32"});
  EXPECT_TRUE(wider.accepts(half, none(), single));
  EXPECT_EQ(wider.reason(half, none(), tensor({8}).of(DType::kFloat64, 8)),
            "weight.dtype is float64, x.dtype is float16; needs same_dtype(\"weight\", \"x\") or "
            "in {float32}");
}

TEST(RuleEval, DeviceIsOneOfASet) {
  const Asked clause("device", {"x"}, {"cuda", "xpu"});
  EXPECT_TRUE(clause.accepts(tensor({8}).on(DeviceType::kCuda, 3)));
  EXPECT_TRUE(clause.accepts(tensor({8}).on(DeviceType::kXpu, 0)));
  EXPECT_EQ(clause.reason(tensor({8})), "x is on cpu; needs device(\"x\") in {cuda, xpu}");
  EXPECT_EQ(clause.reason(tensor({8}).on(DeviceType::kMps, 0)),
            "x is on mps:0; needs device(\"x\") in {cuda, xpu}");
}

TEST(RuleEval, ARejectionTellsWhyTheClauseIsThere) {
  const Asked clause("device", {"x"}, {"cpu"}, 0, "no GPU was found");
  EXPECT_TRUE(clause.accepts(tensor({8})));
  EXPECT_EQ(clause.reason(tensor({8}).on(DeviceType::kCuda, 0)),
            "x is on cuda:0; needs device(\"x\") in {cpu}: no GPU was found");
}

TEST(RuleEval, SameDeviceComparesTypeAndIndex) {
  const Asked clause("same_device", {"weight", "x"});
  const PlainArg first = tensor({8}).on(DeviceType::kCuda, 0);
  EXPECT_TRUE(clause.accepts(first, none(), first));
  EXPECT_EQ(clause.reason(first, none(), tensor({8}).on(DeviceType::kCuda, 1)),
            "weight is on cuda:1, x on cuda:0; needs same_device(\"weight\", \"x\")");
  EXPECT_EQ(clause.reason(first, none(), tensor({8})),
            "weight is on cpu, x on cuda:0; needs same_device(\"weight\", \"x\")");
}

TEST(RuleEval, SameShapeComparesEverySize) {
  const Asked clause("same_shape", {"x", "x_residual"});
  EXPECT_TRUE(clause.accepts(tensor({2, 8}), tensor({2, 8}).strided({16, 1})));
  EXPECT_TRUE(clause.accepts(tensor({}), tensor({})));
  EXPECT_TRUE(clause.accepts(tensor({0, 8}), tensor({0, 8})));
  EXPECT_EQ(
      clause.reason(tensor({2, 8}), tensor({16})),
      "x.shape is (2, 8), x_residual.shape is (16,); needs same_shape(\"x\", \"x_residual\")");
  EXPECT_EQ(clause.reason(tensor({}), tensor({1})),
            "x.shape is (), x_residual.shape is (1,); needs same_shape(\"x\", \"x_residual\")");
}

TEST(RuleEval, NoneAndGivenAreOpposites) {
  const Asked absent("is_none", {"weight"}), given("is_given", {"weight"});
  const PlainArg x = tensor({2, 8});
  EXPECT_TRUE(absent.accepts(x, none(), none()));
  EXPECT_EQ(absent.reason(x, none(), tensor({8})), "weight is given; needs is_none(\"weight\")");
  EXPECT_TRUE(given.accepts(x, none(), tensor({8})));
  EXPECT_EQ(given.reason(x, none(), none()), "weight is None; needs is_given(\"weight\")");
}

TEST(RuleEval, MinDimsCountsDimensions) {
  const Asked clause("min_dims", {"x"}, {}, 2);
  EXPECT_TRUE(clause.accepts(tensor({2, 8})));
  EXPECT_TRUE(clause.accepts(tensor({1, 1, 1})));
  EXPECT_EQ(clause.reason(tensor({8})), "x has 1 dimension(s); needs min_dims(\"x\", 2)");
  EXPECT_EQ(clause.reason(tensor({})), "x has 0 dimension(s); needs min_dims(\"x\", 2)");
}

TEST(RuleEval, MatchesLastDimIsAVectorOfThatLength) {
  const Asked clause("matches_last_dim", {"weight", "x"});
  const PlainArg x = tensor({2, 8});
  EXPECT_TRUE(clause.accepts(x, none(), tensor({8})));
  EXPECT_EQ(clause.reason(x, none(), tensor({2})),
            "weight.shape is (2,), x.shape is (2, 8); needs matches_last_dim(\"weight\", \"x\")");
  EXPECT_EQ(clause.reason(x, none(), tensor({1, 8})),
            "weight.shape is (1, 8), x.shape is (2, 8); needs matches_last_dim(\"weight\", \"x\")");
  EXPECT_EQ(clause.reason(x, none(), tensor({})),
            "weight.shape is (), x.shape is (2, 8); needs matches_last_dim(\"weight\", \"x\")");
}

TEST(RuleEval, WithinLastDimIsAnIntegerFromOneToThatLength) {
  const Asked clause("within_last_dim", {"variance_size", "x"});
  const PlainArg x = tensor({2, 8});
  EXPECT_TRUE(clause.accepts(x, none(), none(), number(1)));
  EXPECT_TRUE(clause.accepts(x, none(), none(), number(8)));
  const std::string needs = "; needs within_last_dim(\"variance_size\", \"x\")";
  EXPECT_EQ(clause.reason(x, none(), none(), number(9)),
            "variance_size is 9, x.shape[-1] is 8" + needs);
  EXPECT_EQ(clause.reason(x, none(), none(), number(0)),
            "variance_size is 0, x.shape[-1] is 8" + needs);
  EXPECT_EQ(clause.reason(x, none(), none(), number(-1)),
            "variance_size is -1, x.shape[-1] is 8" + needs);
}

TEST(RuleEval, LastDimContiguousAsksForStrideOne) {
  const Asked clause("last_dim_contiguous", {"x"});
  EXPECT_TRUE(clause.accepts(tensor({2, 8}).strided({100, 1})));
  EXPECT_TRUE(clause.accepts(tensor({})));
  EXPECT_TRUE(clause.accepts(tensor({2, 1}).strided({1, 7}))) << "one element has no stride";
  EXPECT_TRUE(clause.accepts(tensor({2, 0}).strided({1, 7}))) << "no element has no stride";
  EXPECT_EQ(clause.reason(tensor({2, 8}).strided({1, 2})),
            "x.stride(-1) is 2; needs last_dim_contiguous(\"x\")");
  EXPECT_EQ(clause.reason(tensor({2, 8}).strided({1, 0})),
            "x.stride(-1) is 0; needs last_dim_contiguous(\"x\")");
}

TEST(RuleEval, LastDimMultipleOfDivides) {
  const Asked clause("last_dim_multiple_of", {"x"}, {}, 8);
  EXPECT_TRUE(clause.accepts(tensor({3, 16})));
  EXPECT_TRUE(clause.accepts(tensor({3, 0})));
  EXPECT_EQ(clause.reason(tensor({8, 12})),
            "x.shape[-1] is 12; needs last_dim_multiple_of(\"x\", 8)");
  EXPECT_EQ(clause.reason(tensor({})), "x.shape[-1] is 1; needs last_dim_multiple_of(\"x\", 8)");
}

TEST(RuleEval, LastDimAtMostIsALimit) {
  const Asked clause("last_dim_at_most", {"x"}, {}, 8);
  EXPECT_TRUE(clause.accepts(tensor({100, 8})));
  EXPECT_TRUE(clause.accepts(tensor({})));
  EXPECT_EQ(clause.reason(tensor({2, 9})), "x.shape[-1] is 9; needs last_dim_at_most(\"x\", 8)");
}

TEST(RuleEval, FlattensForFreeAsksForRowsOfOneStride) {
  const Asked clause("flattens_for_free", {"x"});
  EXPECT_TRUE(clause.accepts(tensor({})));
  EXPECT_TRUE(clause.accepts(tensor({8})));
  EXPECT_TRUE(clause.accepts(tensor({2, 8}).strided({100, 1})));
  EXPECT_TRUE(clause.accepts(tensor({2, 3, 8}).strided({300, 100, 1})));
  EXPECT_TRUE(clause.accepts(tensor({2, 1, 8}).strided({300, 7, 1})));
  EXPECT_EQ(clause.reason(tensor({2, 3, 8}).strided({8, 16, 1})),
            "x does not flatten to rows without a copy; needs flattens_for_free(\"x\")");
}

TEST(RuleEval, AlignedLooksAtTheAddress) {
  const Asked clause("aligned", {"x"}, {}, 16);
  const PlainArg x = tensor({64});
  EXPECT_TRUE(clause.accepts(x));
  EXPECT_TRUE(clause.accepts(tensor({8}).within(x, 4)));
  EXPECT_EQ(clause.reason(tensor({8}).within(x, 5)),
            "x starts 4 byte(s) past the alignment; needs aligned(\"x\", 16)");
  EXPECT_EQ(clause.reason(x.without_address()),
            "x has no address while compiling; needs aligned(\"x\", 16)");
}

TEST(RuleEval, AnAbsentArgumentSatisfiesEveryClauseButOne) {
  const PlainArg x = tensor({2, 7}).of(DType::kFloat64, 8).strided({3, 2});
  EXPECT_TRUE(Asked("dtype", {"weight"}, {"float16"}).accepts(x));
  EXPECT_TRUE(Asked("same_dtype", {"weight", "x"}).accepts(x));
  EXPECT_TRUE(Asked("same_dtype", {"x", "weight"}).accepts(x));
  EXPECT_TRUE(Asked("device", {"weight"}, {"cuda"}).accepts(x));
  EXPECT_TRUE(Asked("same_device", {"weight", "x"}).accepts(x));
  EXPECT_TRUE(Asked("same_device", {"x", "weight"}).accepts(x));
  EXPECT_TRUE(Asked("same_shape", {"weight", "x"}).accepts(x));
  EXPECT_TRUE(Asked("same_shape", {"x", "weight"}).accepts(x));
  EXPECT_TRUE(Asked("is_none", {"weight"}).accepts(x));
  EXPECT_FALSE(Asked("is_given", {"weight"}).accepts(x));
  EXPECT_TRUE(Asked("min_dims", {"weight"}, {}, 9).accepts(x));
  EXPECT_TRUE(Asked("matches_last_dim", {"weight", "x"}).accepts(x));
  EXPECT_TRUE(Asked("matches_last_dim", {"x", "weight"}).accepts(x));
  EXPECT_TRUE(Asked("within_last_dim", {"variance_size", "x"}).accepts(x));
  EXPECT_TRUE(
      Asked("within_last_dim", {"variance_size", "weight"}).accepts(x, none(), none(), number(99)));
  EXPECT_TRUE(Asked("last_dim_contiguous", {"weight"}).accepts(x));
  EXPECT_TRUE(Asked("last_dim_multiple_of", {"weight"}, {}, 8).accepts(x));
  EXPECT_TRUE(Asked("last_dim_at_most", {"weight"}, {}, 1).accepts(x));
  EXPECT_TRUE(Asked("flattens_for_free", {"weight"}).accepts(x));
  EXPECT_TRUE(Asked("aligned", {"weight"}, {}, 16).accepts(x));
  EXPECT_TRUE(Asked("no_overlap", {"weight"}).accepts(x));
}

TEST(RuleEval, ATensorWithoutStridesIsRejectedByWhatLooksAtItsLayout) {
  PlainArg sparse = tensor({2, 8});
  sparse.is_strided = false;
  const PlainArg x = tensor({2, 8});
  EXPECT_EQ(Asked("min_dims", {"x"}, {}, 1).reason(sparse),
            "x is not a strided tensor; needs min_dims(\"x\", 1)");
  EXPECT_EQ(Asked("no_overlap", {"x", "x_residual"}).reason(x, sparse),
            "x_residual is not a strided tensor; needs no_overlap(\"x\", \"x_residual\")");
  EXPECT_EQ(
      Asked("within_last_dim", {"variance_size", "x"}).reason(sparse, none(), none(), number(4)),
      "x is not a strided tensor; needs within_last_dim(\"variance_size\", \"x\")");
  for (const char* kind : {"same_shape", "matches_last_dim"}) {
    EXPECT_FALSE(Asked(kind, {"x", "x_residual"}).accepts(x, sparse)) << kind;
    EXPECT_FALSE(Asked(kind, {"x_residual", "x"}).accepts(x, sparse)) << kind;
  }
  for (const char* kind : {"last_dim_contiguous", "last_dim_multiple_of", "last_dim_at_most",
                           "flattens_for_free", "aligned", "no_overlap"}) {
    EXPECT_FALSE(Asked(kind, {"x"}, {}, 8).accepts(sparse)) << kind;
  }
  EXPECT_TRUE(Asked("dtype", {"x"}, {"float32"}).accepts(sparse));
  EXPECT_TRUE(Asked("device", {"x"}, {"cpu"}).accepts(sparse));
  EXPECT_TRUE(Asked("is_given", {"x"}).accepts(sparse));
}

// Rules.

TEST(RuleEval, TheFirstClauseThatRejectsIsReported) {
  const Rule rule(
      {make_clause("dtype", {"x"}, {"float32"}, 0), make_clause("min_dims", {"x"}, {}, 2),
       make_clause("is_given", {"weight"}, {}, 0)},
      sample_params(), "here");
  const auto rejecting = [&](const PlainArg& x, const PlainArg& weight) -> const Clause* {
    return first_rejection(rule, PlainArgs({x, none(), weight, PlainArg{}, none()}));
  };
  EXPECT_EQ(rejecting(tensor({2, 8}), tensor({8})), nullptr);
  EXPECT_EQ(rejecting(tensor({8}).of(DType::kInt8, 1), none()), &rule.clauses()[0]);
  EXPECT_EQ(rejecting(tensor({8}), none()), &rule.clauses()[1]);
  EXPECT_EQ(rejecting(tensor({2, 8}), none()), &rule.clauses()[2]);
}

TEST(RuleEval, ARuleWithoutClausesAcceptsEverything) {
  EXPECT_EQ(first_rejection(Rule(), PlainArgs({none()})), nullptr);
}

TEST(RuleEval, ARejectionIsCountedUnderWhatWasSeen) {
  const auto slot = [](const std::string& kind, Names args, const Names& values, int64_t n) {
    const Clause clause(make_clause(kind, std::move(args), values, n), sample_params(), "here");
    return rejection_slot(clause, PlainArgs({tensor({8}).on(DeviceType::kXpu, 1), none(),
                                             tensor({7}).of(DType::kInt16, 2)}));
  };
  EXPECT_EQ(slot("dtype", {"weight"}, {"float16"}, 0), static_cast<int>(DType::kInt16));
  EXPECT_EQ(slot("same_dtype", {"weight", "x"}, {}, 0), static_cast<int>(DType::kInt16));
  EXPECT_EQ(slot("device", {"x"}, {"cpu"}, 0), static_cast<int>(DeviceType::kXpu));
  EXPECT_EQ(slot("same_device", {"weight", "x"}, {}, 0), 0);
  EXPECT_EQ(slot("last_dim_multiple_of", {"weight"}, {}, 8), 0);
}

}  // namespace
}  // namespace vllm_ir
