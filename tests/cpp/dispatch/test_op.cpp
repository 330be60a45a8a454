// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cpp/dispatch/op.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

Names order(const Op& op, Mode mode = Mode::kEager) { return op.table(mode)->providers(); }

// The declaration.

TEST(Op, KeepsWhatItWasDeclaredWith) {
  const Op op(sample_spec());
  EXPECT_EQ(op.name(), "norm");
  EXPECT_EQ(op.qualified_name(), "vllm_ir.norm");
  EXPECT_EQ(op.params().size(), 5u);
  EXPECT_TRUE(op.allow_inplace());
  EXPECT_EQ(op.tensor_outputs(), 2);
  EXPECT_EQ(op.source(), "ops/norm.py:10");
}

TEST(Op, AnInvalidNameIsRefused) {
  expect_error(ErrorKind::kValue,
               "vllm_ir: op name 'RmsNorm' is invalid. It must match ^[a-z_][a-z0-9_]*$.",
               [] { Op op(sample_spec("RmsNorm")); });
  expect_error(ErrorKind::kValue,
               "vllm_ir: op name '' is invalid. It must match ^[a-z_][a-z0-9_]*$.",
               [] { Op op(sample_spec("")); });
}

TEST(Op, SixteenParametersArePossibleAndSeventeenAreNot) {
  OpSpec spec = sample_spec("wide");
  spec.allow_inplace = false;
  spec.params.clear();
  for (int i = 0; i < kMaxParams; ++i) spec.params.push_back({.name = "p" + std::to_string(i)});
  const Op op(spec);
  spec.params.push_back({.name = "p16"});
  expect_error(ErrorKind::kValue, "vllm_ir.wide: takes 17 parameters. At most 16 are possible.",
               [&] { Op refused(spec); });
}

TEST(Op, EightResultsArePossibleAndNineAreNot) {
  OpSpec spec = sample_spec();
  spec.allow_inplace = false;
  spec.tensor_outputs = kMaxResults;
  const Op op(spec);
  spec.tensor_outputs = kMaxResults + 1;
  expect_error(ErrorKind::kValue, "vllm_ir.norm: returns 9 tensors. At most 8 are possible.",
               [&] { Op refused(spec); });
}

TEST(Op, AnActivationMustBeATensor) {
  OpSpec spec = sample_spec();
  spec.params[3].activation = true;
  expect_error(ErrorKind::kValue,
               "vllm_ir.norm: activation 'epsilon' is not a Tensor. Name the activations with "
               "activations=[...].",
               [&] { Op op(spec); });
}

TEST(Op, AllowInplaceNeedsAnOutputForEachActivation) {
  OpSpec spec = sample_spec();
  spec.tensor_outputs = 1;
  expect_error(ErrorKind::kValue,
               "vllm_ir.norm: allow_inplace=True needs one Tensor output per activation, got 1 "
               "output(s) for 2 activation(s).",
               [&] { Op op(spec); });
  for (Param& param : spec.params) param.activation = false;
  expect_error(ErrorKind::kValue,
               "vllm_ir.norm: allow_inplace=True needs one Tensor output per activation, got 1 "
               "output(s) for 0 activation(s).",
               [&] { Op op(spec); });
}

TEST(Op, WithoutAllowInplaceOutputsAndActivationsMayDiffer) {
  OpSpec spec = sample_spec();
  spec.tensor_outputs = 1;
  spec.allow_inplace = false;
  EXPECT_FALSE(Op(spec).allow_inplace());
}

// Registration.

TEST(Op, ImplsAreListedInOrderOfRegistration) {
  SampleOp op({always("zebra"), half_only("ape")});
  EXPECT_EQ(op->providers(), (Names{"native", "zebra", "ape"}));
  EXPECT_EQ(op->impls().at(1), op->find_impl("zebra"));
  EXPECT_EQ(op->find_impl("lion"), nullptr);
}

TEST(Op, AnInvalidProviderNameIsRefused) {
  SampleOp op;
  expect_error(ErrorKind::kValue,
               "vllm_ir.norm: provider name 'vllm-c' is invalid. It must match ^[a-z_][a-z0-9_]*$.",
               [&] { op->add_impl(always("vllm-c")); });
  EXPECT_EQ(op->providers(), Names{"native"});
}

TEST(Op, ASecondRegistrationNamesBothPlaces) {
  SampleOp op;
  ImplSpec first = always("fast"), second = half_only("fast");
  first.source = "a.py:3";
  second.source = "b.py:4";
  op->add_impl(first);
  expect_error(ErrorKind::kDuplicate,
               "vllm_ir.norm: provider 'fast' is already registered at a.py:3; the second "
               "registration is at b.py:4. Import the module once, or choose another name.",
               [&] { op->add_impl(second); });
  EXPECT_EQ(op->find_impl("fast")->accepts, Accepts::kAlways);
}

TEST(Op, NativeCannotBeRegisteredTwice) {
  SampleOp op;
  ImplSpec second = always(kNative);
  second.source = "b.py:4";
  expect_error(ErrorKind::kDuplicate,
               "vllm_ir.norm: provider 'native' is reserved: it is the op's own function at "
               "native.py:1. Registered at b.py:4; choose another name for this implementation.",
               [&] { op->add_impl(second); });
}

TEST(Op, UnfusedIsAReservedName) {
  SampleOp op;
  expect_error(ErrorKind::kDuplicate,
               "vllm_ir.norm: provider 'unfused' is reserved. Registered at unfused.py:1; choose "
               "another name for this implementation.",
               [&] { op->add_impl(always("unfused")); });
}

TEST(Op, TheFirstImplMustBeNative) {
  Op op(sample_spec());
  expect_error(ErrorKind::kValue,
               "vllm_ir.norm: the first implementation must be native, got 'fast'. Register native "
               "before it.",
               [&] { op.add_impl(always("fast")); });
  EXPECT_TRUE(op.impls().empty());
  EXPECT_EQ(op.table(), nullptr);
}

TEST(Op, NativeMustAlwaysRun) {
  Op op(sample_spec());
  const std::string text =
      "vllm_ir.norm.native: native must be supported and accept all arguments.";
  expect_error(ErrorKind::kValue, text, [&] { op.add_impl(unsupported(always(kNative))); });
  expect_error(ErrorKind::kValue, text, [&] { op.add_impl(half_only(kNative)); });
  expect_error(ErrorKind::kValue, text, [&] { op.add_impl(asking(kNative)); });
  EXPECT_TRUE(op.impls().empty());
}

TEST(Op, AnInplaceImplNeedsAnOpThatAllowsIt) {
  OpSpec spec = sample_spec();
  ImplSpec writer = always("writer");
  writer.inplace = true;
  Op allowing(spec);
  allowing.add_impl(always(kNative));
  EXPECT_TRUE(allowing.add_impl(writer)->inplace);

  spec.allow_inplace = false;
  Op refusing(spec);
  refusing.add_impl(always(kNative));
  expect_error(ErrorKind::kValue,
               "vllm_ir.norm.writer: inplace=True needs an op with allow_inplace=True.",
               [&] { refusing.add_impl(writer); });
  EXPECT_EQ(refusing.providers(), Names{"native"});
}

TEST(Op, ABadRuleRegistersNothing) {
  SampleOp op;
  expect_error(ErrorKind::kUnknownName,
               "vllm_ir.norm.fast: clause is_none(\"wieght\"): unknown parameter 'wieght'.",
               [&] { op->add_impl(ruled("fast", {make_clause("is_none", {"wieght"}, {}, 0)})); });
  EXPECT_EQ(op->providers(), Names{"native"});
  op->add_impl(always("fast"));
  EXPECT_EQ(op->providers(), (Names{"native", "fast"}));
}

// Priority.

TEST(Op, AnUnsetPriorityIsNative) {
  SampleOp op({always("fast")});
  EXPECT_EQ(order(*op), Names{"native"});
  EXPECT_TRUE(op->table()->priority_not_set);
}

TEST(Op, TheFirstSupportedProviderOfTheListComesFirst) {
  SampleOp op({unsupported(always("gone")), half_only("half"), always("fast")});
  op->set_default({"gone", "half", "fast"});
  EXPECT_EQ(order(*op), (Names{"half", "fast"}));
  EXPECT_EQ(op->configured(), (Names{"gone", "half", "fast"}));
}

TEST(Op, AnEmptyListIsAnUnsetPriority) {
  SampleOp op({always("fast")});
  const Table* const unset = op->table();
  op->set_default({"fast"});
  op->set_default({});
  EXPECT_EQ(order(*op), Names{"native"});
  EXPECT_EQ(op->table(), unset);
}

TEST(Op, AnUnknownProviderIsRefusedAndChangesNothing) {
  SampleOp op({always("fast")});
  op->set_default({"fast"});
  expect_error(ErrorKind::kUnknownName, "vllm_ir.norm: unknown provider 'fsat'.",
               [&] { op->set_default({"native", "fsat"}); });
  expect_error(ErrorKind::kUnknownName, "vllm_ir.norm: unknown provider ''.",
               [&] { op->intern({""}); });
  EXPECT_EQ(order(*op), Names{"fast"});
  EXPECT_EQ(op->configured(), Names{"fast"});
  try {
    op->intern({"fsat"});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UnknownName& error) {
    EXPECT_EQ(error.known(), (Names{"native", "fast"}));
  }
}

TEST(Op, ThePlatformDefaultFollowsTheConfiguredList) {
  SampleOp op({half_only("mine"), half_only("platform"), always("fast")});
  EXPECT_EQ(op->set_platform_default({"platform", "fast"}, Mode::kEager), Names{});
  EXPECT_EQ(order(*op), (Names{"platform", "fast"}));
  op->set_default({"mine"});
  EXPECT_EQ(order(*op), (Names{"mine", "platform", "fast"}));
}

TEST(Op, EachModeHasAPlatformDefaultOfItsOwn) {
  SampleOp op({always("fast"), always("fused")});
  op->set_platform_default({"fast"}, Mode::kEager);
  EXPECT_EQ(order(*op, Mode::kEager), Names{"fast"});
  EXPECT_EQ(order(*op, Mode::kCompiling), Names{"native"});
  op->set_platform_default({"fused"}, Mode::kCompiling);
  EXPECT_EQ(order(*op, Mode::kEager), Names{"fast"});
  EXPECT_EQ(order(*op, Mode::kCompiling), Names{"fused"});
  op->set_default({"native"});
  EXPECT_EQ(order(*op, Mode::kEager), Names{"native"});
  EXPECT_EQ(order(*op, Mode::kCompiling), Names{"native"});
}

TEST(Op, APlatformDefaultCountsAsSoonAsItsProviderRegisters) {
  SampleOp op;
  EXPECT_EQ(op->set_platform_default({"later", "native"}, Mode::kEager), Names{"later"});
  EXPECT_EQ(order(*op), Names{"native"});
  op->add_impl(half_only("later"));
  EXPECT_EQ(order(*op), (Names{"later", "native"}));
}

TEST(Op, APlatformDefaultMayBeSetBeforeNativeIsThere) {
  Op op(sample_spec());
  EXPECT_EQ(op.set_platform_default({"native"}, Mode::kEager), Names{"native"});
  op.rebuild();
  EXPECT_EQ(op.table(), nullptr);
  op.add_impl(always(kNative));
  EXPECT_EQ(order(op), Names{"native"});
  EXPECT_FALSE(op.table()->priority_not_set);
}

TEST(Op, AScopedListTakesThePlaceOfAllOthers) {
  SampleOp op({half_only("half"), always("fast"), half_only("platform")});
  op->set_default({"fast"});
  op->set_platform_default({"platform"}, Mode::kEager);
  const PriorityList* const list = op->intern({"half"});
  EXPECT_EQ(list->names, Names{"half"});
  EXPECT_EQ(list->table.load()->providers(), (Names{"half", "native"}));
  EXPECT_EQ(order(*op), (Names{"fast"}));
}

TEST(Op, AnEmptyScopedListIsNative) {
  SampleOp op({always("fast")});
  op->set_default({"fast"});
  const Table* const table = op->intern({})->table.load();
  EXPECT_EQ(table->providers(), Names{"native"});
  EXPECT_TRUE(table->priority_not_set);
}

// Strict mode.

TEST(Op, StrictModeRefusesAnUnsupportedProvider) {
  SampleOp op({unsupported(always("gone")), unsupported(always("cuda_c"), "built without CUDA")});
  const PriorityList* const lenient = op->intern({"gone"});
  const StrictMode strict;
  expect_error(ErrorKind::kRuntime,
               "vllm_ir.norm.gone: strict mode: unsupported here (supported=False). Remove it from "
               "the priority list.",
               [&] { op->set_default({"gone"}); });
  expect_error(ErrorKind::kRuntime,
               "vllm_ir.norm.cuda_c: strict mode: unsupported here (built without CUDA). Remove it "
               "from the priority list.",
               [&] { op->intern({"native", "cuda_c"}); });
  expect_error(ErrorKind::kRuntime,
               "vllm_ir.norm.gone: strict mode: unsupported here (supported=False). Remove it from "
               "the priority list.",
               [&] { op->intern(lenient->names); });
  EXPECT_TRUE(op->configured().empty());
}

TEST(Op, StrictModeFindsAKnownListAgain) {
  SampleOp op({always("fast")});
  const PriorityList* const list = op->intern({"fast"});
  const StrictMode strict;
  EXPECT_EQ(op->intern({"fast"}), list);
}

// Interning.

TEST(Op, EqualContentIsOneTable) {
  SampleOp op({half_only("half"), always("fast")});
  op->set_default({"half"});
  const Table* const first = op->table();
  EXPECT_EQ(op->table(Mode::kCompiling), first);
  op->set_default({"half", "half"});
  EXPECT_EQ(op->table(), first);
  op->set_default({"half", "native"});
  EXPECT_NE(op->table(), first) << "native was listed, not appended";
  op->set_default({"fast"});
  op->set_default({"half"});
  EXPECT_EQ(op->table(), first);
}

TEST(Op, TablesThatDifferInAnythingAreApart) {
  SampleOp op({half_only("half"), unsupported(always("gone"))});
  const auto table = [&](const Names& names) { return op->intern(names)->table.load(); };
  const Table* const demands_half = table({"half"});
  op->set_platform_default({"half"}, Mode::kEager);
  EXPECT_NE(op->table(), demands_half) << "a default demands nothing";
  EXPECT_EQ(op->table()->demanded, "");
  EXPECT_EQ(demands_half->demanded, "half");
  EXPECT_NE(table({"half", "gone"}), demands_half) << "what was dropped is part of a table";
  EXPECT_NE(table({"gone"}), table({}));
  op->add_impl(always("fast"));
  const Table* const mistaken = table({"fast", "half"});
  op->set_platform_default({"half"}, Mode::kEager);
  op->set_default({"fast"});
  EXPECT_NE(op->table(), mistaken) << "the user named nobody who is unreachable";
}

TEST(Op, OneListIsInternedOnce) {
  SampleOp op({always("fast")});
  const PriorityList* const list = op->intern({"fast"});
  EXPECT_EQ(op->intern({"fast"}), list);
  EXPECT_NE(op->intern({"fast", "native"}), list);
}

TEST(Op, ChangingPrioritiesForAWhileStopsMakingTables) {
  SampleOp op({half_only("a"), half_only("b"), always("c"), unsupported(always("d"))});
  const std::vector<Names> lists = {{}, {"a"}, {"b", "a"}, {"c"}, {"d", "c"}, {"a", "native"}};
  const auto change = [&](int times) {
    for (int i = 0; i < times; ++i) {
      op->set_default(lists[static_cast<size_t>(i) % lists.size()]);
      op->set_platform_default(lists[static_cast<size_t>(i / 7) % lists.size()], Mode::kEager);
      op->set_platform_default(lists[static_cast<size_t>(i / 3) % lists.size()], Mode::kCompiling);
      op->intern(lists[static_cast<size_t>(i / 2) % lists.size()]);
    }
  };
  change(2000);
  const size_t tables = op->interned_tables();
  change(2000);
  EXPECT_EQ(op->interned_tables(), tables);
}

TEST(Op, ATableOutlivesEveryChange) {
  SampleOp op({always("fast")});
  op->set_default({"fast"});
  const Table* const old = op->table();
  op->set_default({"native"});
  op->add_impl(always("newer"));
  op->set_default({"newer"});
  EXPECT_EQ(old->providers(), Names{"fast"});
}

// Notices.

TEST(Op, ACauseIsFirstOnlyOnce) {
  SampleOp op;
  EXPECT_TRUE(op->first_time("priority"));
  EXPECT_FALSE(op->first_time("priority"));
  EXPECT_TRUE(op->first_time("alias:fast"));
}

TEST(Op, ADecisionIsNewOnlyOnceAndAStreamOfNewOnesEnds) {
  SampleOp op;
  EXPECT_TRUE(op->new_decision("fast runs"));
  EXPECT_FALSE(op->new_decision("fast runs"));
  int given = 1;
  for (int i = 0; i < 10000; ++i) given += op->new_decision("decision " + std::to_string(i));
  EXPECT_EQ(given, 4096);
  EXPECT_TRUE(op->first_time("priority")) << "a full memory of decisions silences no notice";
}

}  // namespace
}  // namespace vllm_ir
