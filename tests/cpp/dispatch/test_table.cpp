// SPDX-License-Identifier: Apache-2.0
// The policy of priorities, as tables.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpp/dispatch/table.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

class TableTest : public testing::Test {
 protected:
  TableTest() { add(always(kNative)); }

  void add(ImplSpec spec) {
    owned_.push_back(std::make_unique<Impl>(std::move(spec), sample_params(), "norm"));
  }

  std::unique_ptr<Table> build(Names user, Names defaults = {}, bool batch_invariant = false) {
    std::vector<const Impl*> impls;
    for (const auto& impl : owned_) impls.push_back(impl.get());
    auto table = build_table(impls, {std::move(user), std::move(defaults)}, batch_invariant);
    check_invariants(*table);
    return table;
  }

  // "provider: reason", with a mark for who could never run here.
  static Names dropped(const Table& table) {
    Names out;
    for (const Dropped& d : table.dropped) {
      out.push_back(d.impl->provider + ": " + d.reason + (d.unsupported ? " [unsupported]" : ""));
    }
    return out;
  }

 private:
  std::vector<std::unique_ptr<Impl>> owned_;
};

TEST_F(TableTest, AnUnsetPriorityIsNativeAloneAndSaysSoOnce) {
  add(always("fast"));
  const auto table = build({});
  EXPECT_EQ(table->providers(), Names{"native"});
  EXPECT_TRUE(table->priority_not_set);
  EXPECT_FALSE(table->native_appended);
  EXPECT_TRUE(table->notice_due);
  EXPECT_EQ(table->demanded, "");
  EXPECT_TRUE(table->dropped.empty());
}

TEST_F(TableTest, TheUsersOrderIsKept) {
  add(half_only("b"));
  add(half_only("a"));
  add(asking("c"));
  EXPECT_EQ(build({"c", "a", "b"})->providers(), (Names{"c", "a", "b", "native"}));
  EXPECT_EQ(build({"b", "c", "a"})->providers(), (Names{"b", "c", "a", "native"}));
}

TEST_F(TableTest, NativeIsAppendedOnceWhenNobodyAcceptsEverything) {
  add(half_only("half"));
  const auto table = build({"half"});
  EXPECT_EQ(table->providers(), (Names{"half", "native"}));
  EXPECT_TRUE(table->native_appended);
  EXPECT_TRUE(table->notice_due);
  EXPECT_FALSE(table->priority_not_set);
}

TEST_F(TableTest, NativeIsNotAppendedWhenItIsListed) {
  add(half_only("half"));
  const auto table = build({"half", "native"});
  EXPECT_EQ(table->providers(), (Names{"half", "native"}));
  EXPECT_FALSE(table->native_appended);
  EXPECT_FALSE(table->notice_due);
}

TEST_F(TableTest, NativeIsNotAppendedBehindAnImplThatAcceptsEverything) {
  add(half_only("half"));
  add(always("fast"));
  const auto table = build({"half", "fast"});
  EXPECT_EQ(table->providers(), (Names{"half", "fast"}));
  EXPECT_FALSE(table->native_appended);
  EXPECT_FALSE(table->notice_due);
}

TEST_F(TableTest, NativeFirstIsNativeAlone) {
  add(always("fast"));
  const auto table = build({"native", "fast"});
  EXPECT_EQ(table->providers(), Names{"native"});
  EXPECT_EQ(table->demanded, "native");
  EXPECT_FALSE(table->priority_not_set);
  EXPECT_EQ(dropped(*table), Names{"fast: unreachable behind native"});
}

TEST_F(TableTest, EveryoneBehindAnImplThatAcceptsEverythingIsUnreachable) {
  add(always("fast"));
  add(half_only("half"));
  add(always("slow"));
  const auto table = build({"fast", "half", "slow", "native"});
  EXPECT_EQ(table->providers(), Names{"fast"});
  EXPECT_EQ(dropped(*table),
            (Names{"half: unreachable behind fast", "slow: unreachable behind fast",
                   "native: unreachable behind fast"}));
}

TEST_F(TableTest, AnUnreachableProviderThatTheUserNamedIsWorthANotice) {
  add(always("fast"));
  add(half_only("half"));
  add(always("slow"));
  const auto named = [](const Table& table) {
    Names out;
    for (const Impl* impl : table.unreachable) out.push_back(impl->provider);
    return out;
  };
  const auto table = build({"fast", "half", "slow", "native"}, {"slow"});
  EXPECT_EQ(named(*table), (Names{"half", "slow"})) << "closing with native is a habit";
  EXPECT_TRUE(table->notice_due);
  const auto by_default = build({"fast"}, {"half", "slow"});
  EXPECT_EQ(named(*by_default), Names{});
  EXPECT_FALSE(by_default->notice_due);
}

TEST_F(TableTest, ACallableOrARuleCutsNothingOff) {
  add(asking("maybe"));
  add(half_only("half"));
  add(always("fast"));
  EXPECT_EQ(build({"maybe", "half", "fast"})->providers(), (Names{"maybe", "half", "fast"}));
}

TEST_F(TableTest, ANameThatIsListedTwiceCountsOnce) {
  add(half_only("half"));
  add(asking("maybe"));
  const auto table = build({"half", "maybe", "half", "maybe", "half"});
  EXPECT_EQ(table->providers(), (Names{"half", "maybe", "native"}));
  EXPECT_TRUE(table->dropped.empty());
}

TEST_F(TableTest, ADroppedNameThatIsListedTwiceIsDroppedOnce) {
  add(unsupported(always("gone")));
  add(always("fast"));
  const auto table = build({"gone", "fast", "gone", "native", "native"});
  EXPECT_EQ(dropped(*table),
            (Names{"gone: supported=False [unsupported]", "native: unreachable behind fast"}));
}

TEST_F(TableTest, AnUnsupportedProviderIsDroppedWithItsReason) {
  add(unsupported(always("cuda_c"), "built without CUDA"));
  add(unsupported(half_only("other")));
  const auto table = build({"cuda_c", "other"});
  EXPECT_EQ(table->providers(), Names{"native"});
  EXPECT_TRUE(table->native_appended);
  EXPECT_EQ(dropped(*table), (Names{"cuda_c: built without CUDA [unsupported]",
                                    "other: supported=False [unsupported]"}));
}

TEST_F(TableTest, AnUnsupportedImplThatAcceptsEverythingCutsNothingOff) {
  add(unsupported(always("gone")));
  add(half_only("half"));
  EXPECT_EQ(build({"gone", "half"})->providers(), (Names{"half", "native"}));
}

TEST_F(TableTest, AnUnsupportedProviderBehindACatchAllIsStillUnsupported) {
  add(always("fast"));
  add(unsupported(always("gone"), "no device"));
  EXPECT_EQ(dropped(*build({"fast", "gone"})), Names{"gone: no device [unsupported]"});
}

TEST_F(TableTest, DefaultsComeBehindTheUsersNames) {
  add(half_only("mine"));
  add(half_only("platform"));
  const auto table = build({"mine"}, {"platform"});
  EXPECT_EQ(table->providers(), (Names{"mine", "platform", "native"}));
  EXPECT_EQ(table->demanded, "mine");
}

TEST_F(TableTest, ADefaultThatTheUserNamedKeepsTheUsersPlace) {
  add(half_only("a"));
  add(half_only("b"));
  EXPECT_EQ(build({"b"}, {"a", "b"})->providers(), (Names{"b", "a", "native"}));
}

TEST_F(TableTest, DefaultsAloneAreAPriorityAndDemandNothing) {
  add(always("platform"));
  const auto table = build({}, {"platform"});
  EXPECT_EQ(table->providers(), Names{"platform"});
  EXPECT_EQ(table->demanded, "");
  EXPECT_FALSE(table->priority_not_set);
  EXPECT_FALSE(table->notice_due);
}

TEST_F(TableTest, NamesWithoutAnImplAreSkipped) {
  add(half_only("half"));
  const auto table = build({}, {"later", "half", "never"});
  EXPECT_EQ(table->providers(), (Names{"half", "native"}));
  EXPECT_TRUE(table->dropped.empty());
}

TEST_F(TableTest, DefaultsThatNobodyHasLeaveNative) {
  const auto table = build({}, {"later"});
  EXPECT_EQ(table->providers(), Names{"native"});
  EXPECT_FALSE(table->priority_not_set);
  EXPECT_TRUE(table->native_appended);
}

TEST_F(TableTest, BatchInvariantModeDropsWhoDidNotDeclareIt) {
  add(always("fast"));
  add(batch_invariant(half_only("steady")));
  EXPECT_EQ(build({"fast", "steady"})->providers(), Names{"fast"});
  const auto table = build({"fast", "steady"}, {}, true);
  EXPECT_EQ(table->providers(), (Names{"steady", "native"}));
  EXPECT_TRUE(table->native_appended);
  EXPECT_EQ(table->demanded, "fast");
  EXPECT_EQ(dropped(*table),
            Names{"fast: not batch-invariant (VLLM_BATCH_INVARIANT is on) [unsupported]"});
}

TEST_F(TableTest, BatchInvariantModeKeepsNativeAlthoughItDeclaresNothing) {
  const auto table = build({"native"}, {}, true);
  EXPECT_EQ(table->providers(), Names{"native"});
  EXPECT_TRUE(table->dropped.empty());
}

TEST_F(TableTest, AnUnsupportedProviderKeepsItsOwnReasonInBatchInvariantMode) {
  add(unsupported(always("gone"), "no device"));
  EXPECT_EQ(dropped(*build({"gone"}, {}, true)), Names{"gone: no device [unsupported]"});
}

TEST(TableInvariants, ABrokenTableIsAnInternalError) {
  const Impl native(always(kNative), sample_params(), "norm");
  const Impl fast(always("fast"), sample_params(), "norm");
  const Impl half(half_only("half"), sample_params(), "norm");
  const Impl gone(unsupported(always("gone")), sample_params(), "norm");
  const auto broken = [](std::vector<const Impl*> order, const std::string& what) {
    Table table;
    table.order = std::move(order);
    expect_error(ErrorKind::kRuntime, "vllm_ir: internal error, please report: table: " + what,
                 [&] { check_invariants(table); });
  };
  broken({}, "it is empty");
  broken({&gone}, "it lists an unsupported impl");
  broken({&half}, "only the last impl may accept everything, and it must");
  broken({&fast, &native}, "only the last impl may accept everything, and it must");
  broken({&half, &half, &native}, "it lists an impl twice");
}

}  // namespace
}  // namespace vllm_ir
