// SPDX-License-Identifier: Apache-2.0
// The one rule of the project against a second writing of it, on random ops and arguments.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cpp/dispatch/scope.h"
#include "cpp/dispatch/select.h"
#include "tests/cpp/dispatch/plain_args.h"
#include "tests/cpp/dispatch/random_case.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

struct Expected {
  const Impl* selected = nullptr;
  std::map<const Impl*, Status> statuses;
  Names asked;
};

bool accepts(const Impl& impl, const PlainArgs& args, Expected& out) {
  if (impl.accepts == Accepts::kAlways) return true;
  if (impl.accepts == Accepts::kCallable) {
    out.asked.push_back(impl.provider);
    return args.agreeable.count(impl.provider) != 0;
  }
  const auto& clauses = impl.rule.clauses();
  return std::all_of(clauses.begin(), clauses.end(),
                     [&](const Clause& clause) { return holds(clause, args); });
}

// Walks names instead of a table. `names` is the whole request, native is behind it.
Expected expected(const Op& op, Names names, bool batch_invariant, const PlainArgs& args) {
  Expected out;
  for (const Impl* impl : op.impls()) out.statuses[impl] = Status::kNotListed;
  const size_t listed = names.size();
  names.push_back(kNative);
  bool cut = false;
  for (size_t i = 0; i < names.size(); ++i) {
    const Impl* const impl = op.find_impl(names[i]);
    if (!impl || out.statuses[impl] != Status::kNotListed) continue;
    if (cut && i >= listed) break;  // native is not appended
    const bool steady = impl->batch_invariant || impl->provider == kNative;
    if (!impl->supported || (batch_invariant && !steady)) {
      out.statuses[impl] = Status::kUnsupported;
    } else if (cut) {
      out.statuses[impl] = Status::kUnreachable;
    } else {
      cut = impl->accepts == Accepts::kAlways;
      if (out.selected) {
        out.statuses[impl] = Status::kNotReached;
      } else if (accepts(*impl, args, out)) {
        out.selected = impl;
        out.statuses[impl] = Status::kSelected;
      } else {
        out.statuses[impl] = Status::kRejected;
      }
    }
  }
  return out;
}

void expect_agreement(const Op& op, const Table& table, const Expected& want, PlainArgs args) {
  check_invariants(table);
  ASSERT_EQ(select(table, args), want.selected);
  ASSERT_EQ(args.asked, want.asked);
  args.asked.clear();
  const Explanation explanation = explain(op, table, args);
  ASSERT_EQ(explanation.selected, want.selected);
  ASSERT_EQ(args.asked, want.asked);
  std::map<const Impl*, Status> statuses;
  for (const Decision& d : explanation.decisions) {
    ASSERT_TRUE(statuses.emplace(d.impl, d.status).second) << d.impl->provider << " twice";
    const bool has_reason = d.status == Status::kRejected || d.status == Status::kUnsupported ||
                            d.status == Status::kUnreachable;
    ASSERT_EQ(!d.reason.empty(), has_reason) << d.impl->provider << ": " << d.to_string();
  }
  ASSERT_EQ(statuses, want.statuses) << to_string(op, explanation);
}

Names joined(Names first, const Names& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// One random op, with random priorities and a few calls under each.
void try_one_op(RandomCase& random, std::map<Status, int>& seen) {
  const Names all = {"native", "a", "b", "c", "d", "e", "f"};
  RegisteredOp op("norm");
  // The platform's default may name what registers later, or never.
  const Names eager = random.some_of(all, 4), compiling = random.some_of(all, 4);
  op->set_platform_default(eager, Mode::kEager);
  op->set_platform_default(compiling, Mode::kCompiling);
  Names registered = {"native"};
  for (size_t i = 1; i < all.size(); ++i) {
    if (random.chance(4)) continue;
    op->add_impl(random.impl(all[i]));
    registered.push_back(all[i]);
  }
  const Names configured = random.some_of(registered, 5), scoped = random.some_of(registered, 5);
  op->set_default(configured);
  std::optional<BatchInvariantMode> mode;
  if (random.chance(3)) mode.emplace();
  for (int call = 0; call < 4; ++call) {
    std::vector<PlainArg> arguments = random.arguments();
    if (random.chance(3)) arguments = random.masked(arguments);
    PlainArgs args(arguments);
    for (const std::string& name : registered) {
      if (random.chance(2)) args.agreeable.insert(name);
    }
    const bool invariant = mode.has_value();
    const auto check = [&](const Table& table, const Names& names) {
      const Expected want = expected(*op, names, invariant, args);
      for (const auto& [impl, status] : want.statuses) ++seen[status];
      expect_agreement(*op, table, want, args);
    };
    check(*op->table(Mode::kEager), joined(configured, eager));
    check(*op->table(Mode::kCompiling), joined(configured, compiling));
    const ThreadScope scope(*op, scoped);
    check(*effective_table(*op, g_switches.load()), scoped);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(RandomTables, SelectAndExplainAgreeWithTheRule) {
  RandomCase random(1);
  std::map<Status, int> seen;
  for (int i = 0; i < 3000; ++i) {
    try_one_op(random, seen);
    ASSERT_FALSE(HasFatalFailure()) << "op " << i;
  }
  ASSERT_EQ(seen.size(), 6u);
  for (const auto& [status, times] : seen) EXPECT_GT(times, 500) << static_cast<int>(status);
}

}  // namespace
}  // namespace vllm_ir
