// SPDX-License-Identifier: Apache-2.0
// The one rule of the project: the first impl in priority order that is supported and accepts the
// arguments runs; native is last. `walk` is that sentence. `select` is walk, hot and silent;
// `explain` is walk with every decision written down. Calls, torch operators, lowering, the command
// line and error texts all end here.
//
// `Args` is an argument adaptor (rule_eval.h) that also has
//   bool ask(const Impl&)  the verdict of an impl's callable, called with the call's own arguments
//   std::string refusal(const Impl&)  why ask said no
#pragma once

#include <string>
#include <vector>

#include "cpp/dispatch/error.h"
#include "cpp/dispatch/op.h"
#include "cpp/dispatch/rule_eval.h"

namespace vllm_ir {

// Whether an impl accepts the arguments; `clause` gets the one that rejects, when it is a rule's.
template <class Args>
inline bool accepts(const Impl& impl, Args& args, const Clause*& clause) {
  if (impl.accepts == Accepts::kAlways) return true;
  if (impl.accepts == Accepts::kCallable) return args.ask(impl);
  clause = first_rejection(impl.rule, args);
  return clause == nullptr;
}

// Visitor: rejected_by_rule(impl, clause), rejected_by_callable(impl).
template <class Args, class Visitor>
inline const Impl* walk(const Table& table, Args& args, Visitor&& visit) {
  for (const Impl* impl : table.order) {
    const Clause* clause = nullptr;
    if (accepts(*impl, args, clause)) return impl;
    clause ? visit.rejected_by_rule(*impl, *clause) : visit.rejected_by_callable(*impl);
  }
  throw Error(ErrorKind::kRuntime, "vllm_ir: internal error, please report: a table has no end");
}

// The impl that runs. Counts it, and each rejection on the way.
template <class Args>
inline const Impl* select(const Table& table, Args& args) {
  struct Counting {
    const Args& args;
    void rejected_by_rule(const Impl&, const Clause& clause) const {
      clause.count(rejection_slot(clause, args));
    }
    void rejected_by_callable(const Impl& impl) const {
      impl.callable_rejections.fetch_add(1, std::memory_order_relaxed);
    }
  };
  const Impl* impl = walk(table, args, Counting{args});
  impl->selected.fetch_add(1, std::memory_order_relaxed);
  return impl;
}

enum class Status : uint8_t {
  kSelected,
  kRejected,
  kUnsupported,
  kNotListed,
  kUnreachable,
  kNotReached,
};

const char* name_of(Status status) noexcept;  // "not reached"

struct Decision {
  const Impl* impl;
  Status status;
  std::string reason;  // empty for selected, not listed and not reached

  std::string to_string() const;  // "rejected: x.dtype is float64"
};

struct Explanation {
  const Impl* selected = nullptr;
  std::vector<Decision> decisions;  // the table's order, then the dropped ones, then the rest
};

// Adds the impls that the walk did not meet. Not a template, so it is apart.
void add_unwalked(const Op& op, const Table& table, Explanation& out);

// Every registered impl with its decision. Counts nothing.
template <class Args>
Explanation explain(const Op& op, const Table& table, Args& args) {
  Explanation out;
  struct Recording {
    Args& args;
    Explanation& out;
    void rejected_by_rule(const Impl& impl, const Clause& clause) const {
      out.decisions.push_back({&impl, Status::kRejected, why_not(clause, args)});
    }
    void rejected_by_callable(const Impl& impl) const {
      out.decisions.push_back({&impl, Status::kRejected, args.refusal(impl)});
    }
  };
  out.selected = walk(table, args, Recording{args, out});
  out.decisions.push_back({out.selected, Status::kSelected, ""});
  add_unwalked(op, table, out);
  return out;
}

// "vllm_ir.rms_norm: native runs" and a line for each decision.
std::string to_string(const Op& op, const Explanation& explanation);

// Strict mode: throws Error(kRuntime) with the decisions when the demanded provider does not run.
void insist(const Op& op, const Table& table, const Explanation& explanation);

}  // namespace vllm_ir
