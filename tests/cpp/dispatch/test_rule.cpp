// SPDX-License-Identifier: Apache-2.0
// Rules as declarations: their texts and what they refuse. test_rule_eval.cpp asks them.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cpp/dispatch/rule.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

std::string text_of(const std::string& kind, Names args, const Names& values = {}, int64_t n = 0) {
  return make_clause(kind, std::move(args), values, n).to_string();
}

TEST(Clause, PrintsAsItIsWritten) {
  EXPECT_EQ(text_of("dtype", {"x"}, {"bfloat16", "float16"}),
            "dtype(\"x\") in {float16, bfloat16}");
  EXPECT_EQ(text_of("same_dtype", {"weight", "x"}), "same_dtype(\"weight\", \"x\")");
  EXPECT_EQ(text_of("same_dtype", {"weight", "x"}, {"float32"}),
            "same_dtype(\"weight\", \"x\") or in {float32}");
  EXPECT_EQ(text_of("device", {"x"}, {"cuda", "cpu"}), "device(\"x\") in {cpu, cuda}");
  EXPECT_EQ(text_of("same_device", {"x", "weight"}), "same_device(\"x\", \"weight\")");
  EXPECT_EQ(text_of("same_shape", {"x", "x_residual"}), "same_shape(\"x\", \"x_residual\")");
  EXPECT_EQ(text_of("is_none", {"weight"}), "is_none(\"weight\")");
  EXPECT_EQ(text_of("is_given", {"weight"}), "is_given(\"weight\")");
  EXPECT_EQ(text_of("min_dims", {"x"}, {}, 2), "min_dims(\"x\", 2)");
  EXPECT_EQ(text_of("matches_last_dim", {"weight", "x"}), "matches_last_dim(\"weight\", \"x\")");
  EXPECT_EQ(text_of("within_last_dim", {"variance_size", "x"}),
            "within_last_dim(\"variance_size\", \"x\")");
  EXPECT_EQ(text_of("last_dim_contiguous", {"x"}), "last_dim_contiguous(\"x\")");
  EXPECT_EQ(text_of("last_dim_multiple_of", {"x"}, {}, 8), "last_dim_multiple_of(\"x\", 8)");
  EXPECT_EQ(text_of("last_dim_at_most", {"x"}, {}, 8192), "last_dim_at_most(\"x\", 8192)");
  EXPECT_EQ(text_of("flattens_for_free", {"x"}), "flattens_for_free(\"x\")");
  EXPECT_EQ(text_of("aligned", {"x"}, {}, 16), "aligned(\"x\", 16)");
  EXPECT_EQ(text_of("no_overlap", {"x"}), "no_overlap(\"x\")");
  EXPECT_EQ(text_of("no_overlap", {"x", "x_residual", "weight"}),
            "no_overlap(\"x\", \"x_residual\", \"weight\")");
}

TEST(Clause, AnUnknownKindListsTheKnownOnes) {
  try {
    make_clause("dtpye", {"x"}, {}, 0);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UnknownName& error) {
    EXPECT_STREQ(error.what(), "vllm_ir.rules: unknown clause 'dtpye'.");
    EXPECT_EQ(error.known(),
              (Names{"dtype", "same_dtype", "device", "same_device", "same_shape", "is_none",
                     "is_given", "min_dims", "matches_last_dim", "within_last_dim",
                     "last_dim_contiguous", "last_dim_multiple_of", "last_dim_at_most",
                     "flattens_for_free", "aligned", "no_overlap"}));
  }
}

TEST(Clause, TheNumberOfParametersIsChecked) {
  const auto refused = [](const std::string& kind, const Names& args, const std::string& text) {
    expect_error(ErrorKind::kValue, text, [&] { make_clause(kind, args, {"float16"}, 1); });
  };
  refused("dtype", {}, "vllm_ir.rules.dtype: takes 1 parameter name(s), got 0.");
  refused("same_shape", {"x"}, "vllm_ir.rules.same_shape: takes 2 parameter name(s), got 1.");
  refused("aligned", {"x", "y"}, "vllm_ir.rules.aligned: takes 1 parameter name(s), got 2.");
  refused("no_overlap", {}, "vllm_ir.rules.no_overlap: takes 1 to 4 parameter name(s), got 0.");
  refused("no_overlap", {"a", "b", "c", "d", "e"},
          "vllm_ir.rules.no_overlap: takes 1 to 4 parameter name(s), got 5.");
}

TEST(Clause, ANumberMustBePositive) {
  for (const char* kind : {"aligned", "min_dims", "last_dim_multiple_of", "last_dim_at_most"}) {
    const std::string where = std::string("vllm_ir.rules.") + kind;
    expect_error(ErrorKind::kValue, where + ": needs a positive number, got 0.",
                 [&] { make_clause(kind, {"x"}, {}, 0); });
    expect_error(ErrorKind::kValue, where + ": needs a positive number, got -8.",
                 [&] { make_clause(kind, {"x"}, {}, -8); });
  }
}

TEST(Clause, AnEmptySetAllowsNothingAndIsRefused) {
  expect_error(ErrorKind::kValue,
               "vllm_ir.rules.dtype: needs at least one allowed value, got none.",
               [] { make_clause("dtype", {"x"}, {}, 0); });
  expect_error(ErrorKind::kValue,
               "vllm_ir.rules.device: needs at least one allowed value, got none.",
               [] { make_clause("device", {"x"}, {}, 0); });
}

TEST(Clause, AnUnknownValueIsRefused) {
  expect_error(ErrorKind::kValue,
               "vllm_ir.rules: unknown device 'float16'. Known: cpu, cuda, xpu, mps, meta, "
               "privateuseone, other.",
               [] { make_clause("device", {"x"}, {"float16"}, 0); });
}

TEST(Clause, AParameterThatTheOpLacksIsRefused) {
  try {
    const Clause clause(make_clause("min_dims", {"y"}, {}, 2), sample_params(),
                        "vllm_ir.norm.fast");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UnknownName& error) {
    EXPECT_STREQ(error.what(),
                 "vllm_ir.norm.fast: clause min_dims(\"y\", 2): unknown parameter 'y'.");
    EXPECT_EQ(error.known(), (Names{"x", "x_residual", "weight", "epsilon", "variance_size"}));
  }
}

TEST(Clause, AParameterOfTheWrongKindIsRefused) {
  const std::vector<Param> params = {{.name = "x"},
                                     {.name = "real", .kind = ParamKind::kFloat},
                                     {.name = "flag", .kind = ParamKind::kBool},
                                     {.name = "count", .kind = ParamKind::kInt},
                                     {.name = "mode", .kind = ParamKind::kOther},
                                     {.name = "parts", .kind = ParamKind::kOther}};
  const auto refused = [&](const std::string& kind, const Names& args, const std::string& text) {
    expect_error(ErrorKind::kValue, "vllm_ir.norm.fast: clause " + text, [&] {
      const Clause clause(make_clause(kind, args, {}, 1), params, "vllm_ir.norm.fast");
    });
  };
  refused("min_dims", {"real"}, "min_dims(\"real\", 1) needs 'real' to be Tensor, got float.");
  refused("min_dims", {"flag"}, "min_dims(\"flag\", 1) needs 'flag' to be Tensor, got bool.");
  refused("aligned", {"count"}, "aligned(\"count\", 1) needs 'count' to be Tensor, got int.");
  refused("aligned", {"mode"}, "aligned(\"mode\", 1) needs 'mode' to be Tensor, got other.");
  refused("aligned", {"parts"}, "aligned(\"parts\", 1) needs 'parts' to be Tensor, got other.");
  refused("within_last_dim", {"x", "x"},
          "within_last_dim(\"x\", \"x\") needs 'x' to be int, got Tensor.");
  refused("within_last_dim", {"count", "count"},
          "within_last_dim(\"count\", \"count\") needs 'count' to be Tensor, got int.");
  refused("no_overlap", {"x", "mode"},
          "no_overlap(\"x\", \"mode\") needs 'mode' to be Tensor, got other.");
}

TEST(Clause, WhetherItIsGivenMayBeAskedOfEveryKind) {
  const std::vector<Param> params = {{.name = "real", .kind = ParamKind::kFloat},
                                     {.name = "parts", .kind = ParamKind::kOther}};
  for (const Param& param : params) {
    for (const char* kind : {"is_none", "is_given"}) {
      const Clause clause(make_clause(kind, {param.name}, {}, 0), params, "vllm_ir.norm.fast");
      EXPECT_EQ(clause.arg_name(), param.name);
    }
  }
}

TEST(Clause, KnowsThePositionsOfItsParameters) {
  const Clause clause(make_clause("no_overlap", {"weight", "x"}, {}, 0), sample_params(), "here");
  EXPECT_EQ(clause.kind(), ClauseKind::kNoOverlap);
  EXPECT_EQ(clause.arg_count(), 2);
  EXPECT_EQ(clause.arg(0), 2);
  EXPECT_EQ(clause.arg(1), 0);
  EXPECT_EQ(clause.arg_name(1), "x");
}

TEST(Clause, CountsRejectionsByWhatWasSeen) {
  const Clause clause(make_clause("dtype", {"x"}, {"float16"}, 0), sample_params(), "here");
  clause.count(static_cast<int>(DType::kFloat32));
  clause.count(static_cast<int>(DType::kFloat64));
  clause.count(static_cast<int>(DType::kFloat32));
  using Counts = std::vector<std::pair<std::string, uint64_t>>;
  Counts counts;
  clause.roll_up(counts);
  EXPECT_EQ(counts, (Counts{{"x.dtype is float64", 1}, {"x.dtype is float32", 2}}));
  clause.reset_counts();
  counts.clear();
  clause.roll_up(counts);
  EXPECT_EQ(counts, Counts{});
}

TEST(Rule, PrintsItsClausesInOrder) {
  const Rule rule({make_clause("dtype", {"x"}, {"float16"}, 0),
                   make_clause("is_none", {"variance_size"}, {}, 0)},
                  sample_params(), "vllm_ir.norm.fast");
  EXPECT_EQ(rule.to_string(), "dtype(\"x\") in {float16} & is_none(\"variance_size\")");
  EXPECT_EQ(rule.clauses().size(), 2u);
  EXPECT_EQ(Rule().to_string(), "");
}

}  // namespace
}  // namespace vllm_ir
