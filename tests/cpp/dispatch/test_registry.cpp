// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "cpp/dispatch/registry.h"
#include "cpp/dispatch/scope.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

TEST(Registry, AnOpIsFoundByItsName) {
  RegisteredOp op("norm");
  EXPECT_EQ(Registry::instance().find_op("norm"), &*op);
  EXPECT_EQ(Registry::instance().find_op("nrom"), nullptr);
}

TEST(Registry, OpsAreListedByName) {
  RegisteredOp zebra("zebra"), ape("ape"), lion("lion");
  const std::vector<Op*> ops = Registry::instance().ops();
  EXPECT_EQ(ops, (std::vector<Op*>{&*ape, &*lion, &*zebra}));
}

TEST(Registry, ASecondOpOfThatNameNamesBothPlaces) {
  RegisteredOp op("norm");
  OpSpec second = sample_spec("norm");
  second.source = "mine/norm.py:20";
  expect_error(
      ErrorKind::kDuplicate,
      "vllm_ir.norm: the op is already registered at ops/norm.py:10; the second "
      "registration is at mine/norm.py:20. Import the module once, or choose another name.",
      [&] { Registry::instance().add_op(second); });
  EXPECT_EQ(Registry::instance().find_op("norm"), &*op);
}

TEST(Registry, ARefusedOpIsNotRegistered) {
  expect_error(ErrorKind::kValue,
               "vllm_ir: op name 'Norm' is invalid. It must match ^[a-z_][a-z0-9_]*$.",
               [] { Registry::instance().add_op(sample_spec("Norm")); });
  EXPECT_EQ(Registry::instance().find_op("Norm"), nullptr);
}

TEST(Registry, ADiscardedOpLeavesItsNameFree) {
  {
    RegisteredOp op("norm");
  }
  EXPECT_EQ(Registry::instance().find_op("norm"), nullptr);
  RegisteredOp again("norm");
  EXPECT_EQ(Registry::instance().find_op("norm"), &*again);
}

TEST(Registry, BatchInvariantModeRebuildsEveryOp) {
  RegisteredOp a("a", {always("fast")}), b("b", {batch_invariant(always("steady"))});
  a->set_default({"fast"});
  b->set_default({"steady"});
  const Table* const before = a->table();
  {
    const BatchInvariantMode on;
    EXPECT_TRUE(Registry::instance().batch_invariant());
    EXPECT_EQ(a->table()->providers(), Names{"native"});
    EXPECT_EQ(b->table()->providers(), Names{"steady"});
  }
  EXPECT_FALSE(Registry::instance().batch_invariant());
  EXPECT_EQ(a->table(), before);
}

TEST(Registry, BatchInvariantModeReachesScopesThatAreOpen) {
  RegisteredOp op("norm", {always("fast"), batch_invariant(half_only("steady"))});
  const ThreadScope outer(*op, {"steady"});
  const ThreadScope inner(*op, {"fast", "steady"});
  const auto order = [&] { return effective_table(*op, g_switches.load())->providers(); };
  EXPECT_EQ(order(), Names{"fast"});
  {
    const BatchInvariantMode on;
    EXPECT_EQ(order(), (Names{"steady", "native"}));
  }
  EXPECT_EQ(order(), Names{"fast"});
}

TEST(Registry, BatchInvariantModeHoldsForWhatIsRegisteredLater) {
  RegisteredOp op("norm");
  const BatchInvariantMode on;
  op->add_impl(always("fast"));
  op->set_default({"fast"});
  EXPECT_EQ(op->table()->providers(), Names{"native"});
  RegisteredOp later("later", {always("fast")});
  EXPECT_EQ(later->intern({"fast"})->table.load()->providers(), Names{"native"});
}

TEST(Registry, TogglingBatchInvariantModeStopsMakingTables) {
  RegisteredOp op("norm", {always("fast"), batch_invariant(half_only("steady"))});
  op->set_default({"steady", "fast"});
  op->intern({"fast"});
  const auto toggle = [](int times) {
    for (int i = 0; i < times; ++i) Registry::instance().set_batch_invariant(i % 2 == 0);
  };
  toggle(2);
  const size_t tables = op->interned_tables();
  toggle(1000);
  EXPECT_EQ(op->interned_tables(), tables);
}

}  // namespace
}  // namespace vllm_ir
