// SPDX-License-Identifier: Apache-2.0
// Many threads change what they may change while others select. Under ThreadSanitizer this is also
// the test that no reader sees a table that is being built.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cpp/dispatch/roll_up.h"
#include "cpp/dispatch/scope.h"
#include "cpp/dispatch/select.h"
#include "tests/cpp/dispatch/plain_args.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

constexpr int kChanges = 50'000;  // by each writer

class Threads : public testing::Test {
 protected:
  std::string selected(PlainArgs& args) {
    ++calls_;
    return select(*effective_table(*op_, g_switches.load()), args)->provider;
  }

  static PlainArgs single() { return {{tensor({2, 8})}}; }

  // A wrong result is counted, not reported: a report in each of a million calls helps nobody.
  void expect(bool right) {
    if (!right) ++wrong_;
  }

  // Runs the writers to their end and the readers until then.
  void run(const std::vector<std::function<void(int)>>& writers,
           const std::vector<std::function<void()>>& readers) {
    std::atomic<bool> done{false};
    std::vector<std::thread> writing, reading;
    for (const auto& reader : readers) {
      reading.emplace_back([&] {
        while (!done.load(std::memory_order_relaxed)) reader();
      });
    }
    for (const auto& writer : writers) {
      writing.emplace_back([&] {
        for (int i = 0; i < kChanges; ++i) writer(i);
      });
    }
    for (std::thread& thread : writing) thread.join();
    done = true;
    for (std::thread& thread : reading) thread.join();
    EXPECT_EQ(wrong_, 0u);
  }

  // Everyone but `half` accepts float32, and only `steady` is batch-invariant.
  RegisteredOp op_{"norm",
                   {always("fast"), batch_invariant(always("steady")), half_only("half"),
                    unsupported(always("gone"))}};
  std::atomic<uint64_t> calls_{0}, wrong_{0};
};

TEST_F(Threads, DefaultsChangeWhileOthersSelect) {
  const std::vector<Names> lists = {{}, {"fast"}, {"half", "steady"}, {"gone", "half"}, {"native"}};
  const std::set<std::string> possible = {"native", "fast", "steady"};
  const auto call = [&] {
    PlainArgs args = single();
    for (int i = 0; i < 100; ++i) expect(possible.count(selected(args)) == 1);
  };
  run({[&](int i) { op_->set_default(lists[static_cast<size_t>(i) % lists.size()]); },
       [&](int i) {
         op_->set_platform_default(lists[static_cast<size_t>(i / 3) % lists.size()], Mode::kEager);
       }},
      {call, call});
  op_->set_platform_default({}, Mode::kEager);
  op_->set_default({"half", "steady"});
  EXPECT_EQ(op_->table()->providers(), (Names{"half", "steady"}));
  EXPECT_LT(op_->interned_tables(), 40u);
  uint64_t counted = 0;
  for (const ImplCounts& counts : roll_up(*op_)) counted += counts.selected;
  EXPECT_EQ(counted, calls_) << "no call was lost";
}

TEST_F(Threads, EachThreadSeesItsOwnScopeWhateverOthersDo) {
  const auto scoped = [&](const std::string& mine, const std::string& nested) {
    return [=, this](int) {
      PlainArgs args = single();
      const ThreadScope outer(*op_, {"half", mine});
      expect(selected(args) == mine);
      {
        const ThreadScope inner(*op_, {nested});
        expect(selected(args) == nested);
      }
      expect(selected(args) == mine);
    };
  };
  op_->set_default({"native"});
  run({scoped("fast", "steady"), scoped("steady", "native"),
       [&](int i) { op_->set_default({i % 2 ? "native" : "half"}); }},
      {[&] {
        PlainArgs args = single();
        expect(selected(args) == "native");
      }});
  EXPECT_FALSE(Switches::any_scope(g_switches.load()));
}

TEST_F(Threads, BatchInvariantModeChangesWhileOthersSelect) {
  op_->set_default({"fast"});
  const auto toggle = [](int i) { Registry::instance().set_batch_invariant(i % 2 == 0); };
  const auto scoped = [&] {
    PlainArgs args = single();
    const ThreadScope scope(*op_, {"half", "steady", "fast"});
    for (int i = 0; i < 10; ++i) expect(selected(args) == "steady");
  };
  const auto bare = [&] {
    PlainArgs args = single();
    for (int i = 0; i < 10; ++i) {
      const std::string provider = selected(args);
      expect(provider == "fast" || provider == "native");
    }
  };
  run({toggle, toggle}, {scoped, bare});
  Registry::instance().set_batch_invariant(true);
  EXPECT_EQ(op_->table()->providers(), Names{"native"});
  Registry::instance().set_batch_invariant(false);
  EXPECT_EQ(op_->table()->providers(), Names{"fast"});
}

TEST_F(Threads, ImplsRegisterWhileOthersSelectAndExplain) {
  Names later;
  for (int i = 0; i < 20; ++i) later.push_back("impl_" + std::to_string(i));
  op_->set_platform_default(later, Mode::kEager);
  const auto look = [&] {
    PlainArgs args = single();
    expect(selected(args) == "native");
    const size_t before = op_->impls().size();
    const Explanation explanation = explain(*op_, *op_->table(), args);
    std::set<const Impl*> met;
    for (const Decision& d : explanation.decisions) met.insert(d.impl);
    expect(met.size() == explanation.decisions.size() && met.size() >= before);
  };
  const auto add = [&](int i) {
    if (i % 2500 == 0) op_->add_impl(half_only(later[static_cast<size_t>(i) / 2500]));
    op_->set_default({});
  };
  run({add}, {look, look});
  EXPECT_EQ(op_->table()->providers().size(), 21u);
}

TEST_F(Threads, SwitchesChangeWhileScopesOpen) {
  op_->set_default({"native"});
  const auto flip = [&](int i) { g_switches.set(Switch::kTrace, i % 2 == 0); };
  const auto scoped = [&](int) {
    const ThreadScope scope(*op_, {"fast"});
    PlainArgs args = single();
    expect(selected(args) == "fast");
  };
  run({flip, scoped, scoped}, {});
  g_switches.set(Switch::kTrace, false);
  EXPECT_EQ(g_switches.load(), 0u);
}

}  // namespace
}  // namespace vllm_ir
