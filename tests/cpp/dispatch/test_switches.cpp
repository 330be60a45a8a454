// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cpp/dispatch/switches.h"

namespace vllm_ir {
namespace {

TEST(Switches, NothingUnusualIsZero) {
  const Switches switches;
  EXPECT_EQ(switches.load(), 0u);
  EXPECT_FALSE(Switches::has(0, Switch::kStrict));
  EXPECT_FALSE(Switches::has(0, Switch::kTrace));
  EXPECT_FALSE(Switches::any_scope(0));
}

TEST(Switches, ASwitchChangesOnlyItself) {
  Switches switches;
  switches.set(Switch::kStrict, true);
  EXPECT_TRUE(Switches::has(switches.load(), Switch::kStrict));
  EXPECT_FALSE(Switches::has(switches.load(), Switch::kTrace));
  switches.set(Switch::kTrace, true);
  switches.set(Switch::kStrict, false);
  EXPECT_FALSE(Switches::has(switches.load(), Switch::kStrict));
  EXPECT_TRUE(Switches::has(switches.load(), Switch::kTrace));
}

TEST(Switches, SettingASwitchTwiceIsSettingItOnce) {
  Switches switches;
  switches.set(Switch::kTrace, true);
  switches.set(Switch::kTrace, true);
  switches.set(Switch::kTrace, false);
  EXPECT_EQ(switches.load(), 0u);
  switches.set(Switch::kTrace, false);
  EXPECT_EQ(switches.load(), 0u);
}

TEST(Switches, ScopesAreCountedBesideTheSwitches) {
  Switches switches;
  switches.set(Switch::kStrict, true);
  EXPECT_FALSE(Switches::any_scope(switches.load()));
  for (int i = 0; i < 1000; ++i) switches.open_scope();
  EXPECT_TRUE(Switches::any_scope(switches.load()));
  EXPECT_TRUE(Switches::has(switches.load(), Switch::kStrict));
  EXPECT_FALSE(Switches::has(switches.load(), Switch::kTrace));
  for (int i = 0; i < 999; ++i) switches.close_scope();
  EXPECT_TRUE(Switches::any_scope(switches.load()));
  switches.close_scope();
  EXPECT_FALSE(Switches::any_scope(switches.load()));
  EXPECT_TRUE(Switches::has(switches.load(), Switch::kStrict));
}

}  // namespace
}  // namespace vllm_ir
