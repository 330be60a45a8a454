// SPDX-License-Identifier: Apache-2.0
// What a call walks: the impls of one op in effective priority order. Immutable once published, so
// a call needs no lock; kept for ever, so a running call can't lose the one that it loaded.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cpp/dispatch/impl.h"

namespace vllm_ir {

// An impl that was asked for and can't run, with the reason; explain prints it.
struct Dropped {
  const Impl* impl;
  std::string reason;
  bool unsupported;  // else: behind an impl that accepts everything
};

struct Table {
  // Never empty; the last one accepts every argument.
  std::vector<const Impl*> order;
  // The first provider that the user asked for, empty when the order is a default. Strict mode
  // insists on it.
  std::string demanded;
  std::vector<Dropped> dropped;
  // Those of `dropped` that the user named behind one that accepts everything: a mistake, most
  // likely. Native isn't among them: closing a list with it is a habit.
  std::vector<const Impl*> unreachable;
  bool priority_not_set = false;  // no list at all: native by default
  bool native_appended = false;   // no listed impl accepts everything

  // True until the one-time notices of this table were given.
  mutable std::atomic<bool> notice_due{false};

  std::vector<std::string> providers() const;
};

// A request for an order: the user's names, then the defaults.
struct PriorityRequest {
  std::vector<std::string> user;
  std::vector<std::string> defaults;
};

// Build the table for a request. Names that `impls` lacks are skipped: who calls has rejected them
// (user lists) or noted them (platform defaults). `impls` holds native.
std::unique_ptr<Table> build_table(const std::vector<const Impl*>& impls,
                                   const PriorityRequest& request, bool batch_invariant);

// The invariants of a table, executed on every publish; throws Error(kRuntime).
void check_invariants(const Table& table);

}  // namespace vllm_ir
