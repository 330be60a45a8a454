// SPDX-License-Identifier: Apache-2.0
// The cold half of a call: what happens when a notice is due, decisions are traced, or strict mode
// is on. Shared by the eager call and the torch operators.
#pragma once

#include "cpp/dispatch/select.h"
#include "cpp/dispatch/switches.h"
#include "cpp/torch/torch_op.h"

namespace vllm_ir {

inline bool needs_care(const Table& table, uint64_t switches) noexcept {
  const uint64_t cold =
      static_cast<uint64_t>(Switch::kTrace) | static_cast<uint64_t>(Switch::kStrict);
  return (switches & cold) != 0 || table.notice_due.load(std::memory_order_relaxed);
}

inline void give_notice(const Op& op, const Table& table) {
  if (table.notice_due.exchange(false, std::memory_order_relaxed) && call_hooks().notice) {
    call_hooks().notice(op, table);
  }
}

// What is wrong with a list belongs to who writes it, not to its first call.
inline void give_list_notice(const Op& op, const Table& table) {
  if (!table.priority_not_set) give_notice(op, table);
}

template <class Args>
void take_care(const Op& op, const Table& table, uint64_t switches, Args& args) {
  give_notice(op, table);
  const bool trace = Switches::has(switches, Switch::kTrace);
  const bool strict = Switches::has(switches, Switch::kStrict);
  if (!trace && !strict) return;
  const Explanation explanation = explain(op, table, args);
  if (strict) insist(op, table, explanation);
  if (!trace || !call_hooks().trace) return;
  const std::string decision = to_string(op, explanation);
  if (op.new_decision(decision)) call_hooks().trace(op, decision);
}

}  // namespace vllm_ir
