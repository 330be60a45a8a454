// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "cpp/dispatch/scope.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

class ScopeTest : public testing::Test {
 protected:
  ScopeTest() { op_->set_default({"configured"}); }

  Names order(Mode mode = Mode::kEager) {
    return effective_table(*op_, g_switches.load(), mode)->providers();
  }

  SampleOp op_{{always("configured"), always("a"), always("b"), half_only("half")}};
};

TEST_F(ScopeTest, WithoutAScopeThePermanentPriorityIsInForce) {
  EXPECT_EQ(order(), Names{"configured"});
  EXPECT_EQ(scoped_list(*op_), nullptr);
  EXPECT_EQ(current_frame(), nullptr);
  EXPECT_FALSE(Switches::any_scope(g_switches.load()));
}

TEST_F(ScopeTest, AScopeOverridesAndEnds) {
  {
    const ThreadScope scope(*op_, {"a"});
    EXPECT_EQ(order(), Names{"a"});
    EXPECT_TRUE(Switches::any_scope(g_switches.load()));
  }
  EXPECT_EQ(order(), Names{"configured"});
  EXPECT_FALSE(Switches::any_scope(g_switches.load()));
}

TEST_F(ScopeTest, ScopesNestAndTheInnermostWins) {
  const ThreadScope outer(*op_, {"a"});
  {
    const ThreadScope middle(*op_, {"b"});
    {
      const ThreadScope inner(*op_, {"half"});
      EXPECT_EQ(order(), (Names{"half", "native"}));
    }
    EXPECT_EQ(order(), Names{"b"});
  }
  EXPECT_EQ(order(), Names{"a"});
}

TEST_F(ScopeTest, AScopeOverridesOnlyItsOwnOp) {
  SampleOp other({always("c")});
  other->set_default({"c"});
  const ThreadScope scope(*op_, {"a"});
  EXPECT_EQ(effective_table(*other, g_switches.load()), other->table());
  const ThreadScope inner(*other, {"native"});
  EXPECT_EQ(order(), Names{"a"});
  EXPECT_EQ(effective_table(*other, g_switches.load())->providers(), Names{"native"});
}

TEST_F(ScopeTest, AScopeHoldsForBothModes) {
  op_->set_platform_default({"b"}, Mode::kCompiling);
  const ThreadScope scope(*op_, {"a"});
  EXPECT_EQ(order(Mode::kEager), Names{"a"});
  EXPECT_EQ(order(Mode::kCompiling), Names{"a"});
}

TEST_F(ScopeTest, AChangeOfTheDefaultIsNotSeenInsideAScope) {
  const ThreadScope scope(*op_, {"a"});
  op_->set_default({"b"});
  EXPECT_EQ(order(), Names{"a"});
}

TEST_F(ScopeTest, AScopeEndsWhenAnExceptionLeavesIt) {
  const ThreadScope outer(*op_, {"a"});
  try {
    const ThreadScope inner(*op_, {"b"});
    throw std::runtime_error("from an impl");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(order(), Names{"a"});
}

TEST_F(ScopeTest, ARefusedListOpensNoScope) {
  expect_error(ErrorKind::kUnknownName, "vllm_ir.norm: unknown provider 'c'.",
               [&] { const ThreadScope scope(*op_, {"c"}); });
  EXPECT_EQ(order(), Names{"configured"});
  EXPECT_EQ(current_frame(), nullptr);
  EXPECT_FALSE(Switches::any_scope(g_switches.load()));
}

TEST_F(ScopeTest, AScopeBelongsToItsThread) {
  const ThreadScope scope(*op_, {"a"});
  Names elsewhere, inside, after;
  std::thread([&] {
    elsewhere = order();
    {
      const ThreadScope mine(*op_, {"b"});
      inside = order();
    }
    after = order();
  }).join();
  EXPECT_EQ(elsewhere, Names{"configured"});
  EXPECT_EQ(inside, Names{"b"});
  EXPECT_EQ(after, Names{"configured"});
  EXPECT_EQ(order(), Names{"a"});
}

TEST_F(ScopeTest, AMillionEntriesMakeNoTable) {
  {
    const ThreadScope scope(*op_, {"a", "half"});
  }
  const size_t tables = op_->interned_tables();
  for (int i = 0; i < 1'000'000; ++i) const ThreadScope scope(*op_, {"a", "half"});
  EXPECT_EQ(op_->interned_tables(), tables);
}

TEST_F(ScopeTest, ScopesNestAsDeepAsTheStackAllows) {
  const auto nest = [&](const auto& self, int depth) -> void {
    const Names names = depth % 2 ? Names{"a"} : Names{"b"};
    const ThreadScope scope(*op_, names);
    if (depth > 0) self(self, depth - 1);
    ASSERT_EQ(order(), names);
  };
  nest(nest, 1000);
  EXPECT_EQ(order(), Names{"configured"});
}

const Frame* g_frame = nullptr;

TEST_F(ScopeTest, AnotherSourceOfFramesMayTakeOver) {
  const Frame outer{nullptr, &*op_, op_->intern({"a"}), true};
  Frame inner{&outer, &*op_, op_->intern({"b"}), true};
  const CurrentFrame before = set_current_frame_source([] { return g_frame; });
  g_switches.open_scope();
  EXPECT_EQ(order(), Names{"configured"});
  g_frame = &outer;
  EXPECT_EQ(order(), Names{"a"});
  g_frame = &inner;
  EXPECT_EQ(order(), Names{"b"});
  inner.open = false;
  EXPECT_EQ(order(), Names{"a"}) << "a closed frame overrides nothing";
  g_frame = nullptr;
  g_switches.close_scope();
  set_current_frame_source(before);
}

}  // namespace
}  // namespace vllm_ir
