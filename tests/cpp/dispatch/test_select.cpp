// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "cpp/dispatch/scope.h"
#include "cpp/dispatch/select.h"
#include "tests/cpp/dispatch/plain_args.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

PlainArgs half() { return {{tensor({2, 8}).of(DType::kFloat16, 2)}}; }
PlainArgs single() { return {{tensor({2, 8})}}; }

std::string selected(const Op& op, PlainArgs args) { return select(*op.table(), args)->provider; }

Names decisions(const Explanation& explanation) {
  Names out;
  for (const Decision& d : explanation.decisions) {
    out.push_back(d.impl->provider + ": " + d.to_string());
  }
  return out;
}

TEST(Select, TheFirstImplThatAcceptsRuns) {
  SampleOp op({half_only("half"), asking("maybe"), always("fast")});
  op->set_default({"half", "maybe", "fast"});
  PlainArgs willing = single();
  willing.agreeable = {"maybe"};
  EXPECT_EQ(selected(*op, half()), "half");
  EXPECT_EQ(selected(*op, willing), "maybe");
  EXPECT_EQ(selected(*op, single()), "fast");
}

TEST(Select, NativeRunsWhenNobodyElseAccepts) {
  SampleOp op({half_only("half"), asking("maybe")});
  op->set_default({"half", "maybe"});
  EXPECT_EQ(selected(*op, single()), "native");
}

TEST(Select, NativeRunsWhileThePriorityIsNotSet) {
  SampleOp op({always("fast")});
  EXPECT_EQ(selected(*op, single()), "native");
}

TEST(Select, AScopeDecidesInsideIt) {
  SampleOp op({always("fast"), half_only("half")});
  op->set_default({"fast"});
  PlainArgs args = half();
  const auto here = [&] {
    return select(*effective_table(*op, g_switches.load()), args)->provider;
  };
  EXPECT_EQ(here(), "fast");
  {
    const ThreadScope scope(*op, {"half"});
    EXPECT_EQ(here(), "half");
  }
  EXPECT_EQ(here(), "fast");
}

TEST(Select, ACallableBehindTheChosenImplIsNotAsked) {
  SampleOp op({asking("a"), half_only("half"), asking("b"), asking("c")});
  op->set_default({"a", "half", "b", "c"});
  PlainArgs args = half();
  EXPECT_EQ(select(*op->table(), args)->provider, "half");
  EXPECT_EQ(args.asked, Names{"a"});
  PlainArgs willing = single();
  willing.agreeable = {"b", "c"};
  EXPECT_EQ(select(*op->table(), willing)->provider, "b");
  EXPECT_EQ(willing.asked, (Names{"a", "b"}));
  EXPECT_EQ(explain(*op, *op->table(), willing).selected->provider, "b");
  EXPECT_EQ(willing.asked, (Names{"a", "b", "a", "b"})) << "explain asks whom select asks";
}

TEST(Select, ADroppedCallableIsNotAsked) {
  SampleOp op({unsupported(asking("gone")), always("fast"), asking("behind")});
  op->set_default({"gone", "fast", "behind"});
  PlainArgs args = single();
  select(*op->table(), args);
  explain(*op, *op->table(), args);
  EXPECT_EQ(args.asked, Names{});
}

TEST(Select, ATableWithoutAnEndIsAnInternalError) {
  PlainArgs args = single();
  expect_error(ErrorKind::kRuntime, "vllm_ir: internal error, please report: a table has no end",
               [&] { select(Table{}, args); });
}

TEST(Select, CountsWhatRanAndWhoRejected) {
  SampleOp op({half_only("half"), asking("maybe")});
  op->set_default({"half", "maybe"});
  for (int i = 0; i < 3; ++i) selected(*op, single());
  selected(*op, half());
  EXPECT_EQ(op->find_impl("native")->selected, 3u);
  EXPECT_EQ(op->find_impl("half")->selected, 1u);
  EXPECT_EQ(op->find_impl("maybe")->selected, 0u);
  EXPECT_EQ(op->find_impl("maybe")->callable_rejections, 3u);
}

TEST(Explain, CountsNothing) {
  SampleOp op({half_only("half"), asking("maybe")});
  op->set_default({"half", "maybe"});
  PlainArgs args = single();
  explain(*op, *op->table(), args);
  EXPECT_EQ(op->find_impl("native")->selected, 0u);
  EXPECT_EQ(op->find_impl("maybe")->callable_rejections, 0u);
  std::vector<std::pair<std::string, uint64_t>> counts;
  op->find_impl("half")->rule.clauses()[0].roll_up(counts);
  EXPECT_TRUE(counts.empty());
}

TEST(Explain, GivesADecisionForEveryRegisteredImpl) {
  SampleOp op({half_only("half"), unsupported(always("gone"), "built without CUDA"), always("fast"),
               asking("maybe"), always("unlisted"), asking("behind")});
  op->set_default({"gone", "half", "maybe", "fast", "behind"});
  PlainArgs args = single();
  const Explanation none_willing = explain(*op, *op->table(), args);
  EXPECT_EQ(none_willing.selected->provider, "fast");
  EXPECT_EQ(decisions(none_willing),
            (Names{"half: rejected: x.dtype is float32; needs dtype(\"x\") in {float16}",
                   "maybe: rejected: supports_args of maybe returned False", "fast: selected",
                   "gone: unsupported: built without CUDA", "behind: unreachable behind fast",
                   "native: not in the priority list", "unlisted: not in the priority list"}));
  args.agreeable = {"maybe"};
  EXPECT_EQ(decisions(explain(*op, *op->table(), args)),
            (Names{"half: rejected: x.dtype is float32; needs dtype(\"x\") in {float16}",
                   "maybe: selected", "fast: not reached", "gone: unsupported: built without CUDA",
                   "behind: unreachable behind fast", "native: not in the priority list",
                   "unlisted: not in the priority list"}));
}

TEST(Explain, SaysWhyBatchInvariantModeLeftSomeoneOut) {
  RegisteredOp op("norm", {always("fast")});
  op->set_default({"fast"});
  const BatchInvariantMode on;
  PlainArgs args = single();
  EXPECT_EQ(decisions(explain(*op, *op->table(), args)),
            (Names{"native: selected",
                   "fast: unsupported: not batch-invariant (VLLM_BATCH_INVARIANT is on)"}));
}

TEST(Explain, ListsAnImplThatIsNewerThanTheTable) {
  SampleOp op;
  const Table* const old = op->table();
  op->add_impl(always("newer"));
  PlainArgs args = single();
  EXPECT_EQ(decisions(explain(*op, *old, args)),
            (Names{"native: selected", "newer: not in the priority list"}));
}

TEST(Explain, PrintsALineForEachDecision) {
  SampleOp op({half_only("half"), always("unlisted")});
  op->set_default({"half"});
  PlainArgs args = single();
  EXPECT_EQ(to_string(*op, explain(*op, *op->table(), args)),
            "vllm_ir.norm: native runs\n"
            "  half      rejected: x.dtype is float32; needs dtype(\"x\") in {float16}\n"
            "  native    selected\n"
            "  unlisted  not in the priority list");
}

TEST(Explain, EveryStatusHasAName) {
  const auto name = [](Status status) { return std::string(name_of(status)); };
  EXPECT_EQ(name(Status::kSelected), "selected");
  EXPECT_EQ(name(Status::kRejected), "rejected");
  EXPECT_EQ(name(Status::kUnsupported), "unsupported");
  EXPECT_EQ(name(Status::kNotListed), "not in the priority list");
  EXPECT_EQ(name(Status::kUnreachable), "unreachable");
  EXPECT_EQ(name(Status::kNotReached), "not reached");
}

TEST(Insist, IsContentWhenTheDemandedProviderRuns) {
  SampleOp op({half_only("half")});
  op->set_default({"half"});
  PlainArgs args = half();
  insist(*op, *op->table(), explain(*op, *op->table(), args));
}

TEST(Insist, IsContentWhenNothingWasDemanded) {
  SampleOp op({half_only("half")});
  PlainArgs args = single();
  insist(*op, *op->table(), explain(*op, *op->table(), args));
  op->set_platform_default({"half"}, Mode::kEager);
  insist(*op, *op->table(), explain(*op, *op->table(), args));
}

TEST(Insist, PrintsTheDecisionsWhenAnotherProviderWouldRun) {
  SampleOp op({half_only("half"), always("fast")});
  op->set_default({"half", "fast"});
  PlainArgs args = single();
  expect_error(ErrorKind::kRuntime,
               "vllm_ir.norm.half: strict mode: the provider was asked for and would not run.\n"
               "vllm_ir.norm: fast runs\n"
               "  half    rejected: x.dtype is float32; needs dtype(\"x\") in {float16}\n"
               "  fast    selected\n"
               "  native  not in the priority list",
               [&] { insist(*op, *op->table(), explain(*op, *op->table(), args)); });
}

TEST(Insist, HoldsForAnUnsupportedProviderThatWasListedBeforeStrictMode) {
  SampleOp op({unsupported(always("gone"))});
  op->set_default({"gone"});
  PlainArgs args = single();
  expect_error(ErrorKind::kRuntime,
               "vllm_ir.norm.gone: strict mode: the provider was asked for and would not run.\n"
               "vllm_ir.norm: native runs\n"
               "  native  selected\n"
               "  gone    unsupported: supported=False",
               [&] { insist(*op, *op->table(), explain(*op, *op->table(), args)); });
}

}  // namespace
}  // namespace vllm_ir
