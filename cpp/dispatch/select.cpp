// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/select.h"

#include <algorithm>

namespace vllm_ir {

const char* name_of(Status status) noexcept {
  switch (status) {
    case Status::kSelected:
      return "selected";
    case Status::kRejected:
      return "rejected";
    case Status::kUnsupported:
      return "unsupported";
    case Status::kNotListed:
      return "not in the priority list";
    case Status::kUnreachable:
      return "unreachable";
    case Status::kNotReached:
      return "not reached";
  }
  return "";
}

std::string Decision::to_string() const {
  if (status == Status::kUnreachable) return reason;  // "unreachable behind X"
  return name_of(status) + (reason.empty() ? "" : ": " + reason);
}

void add_unwalked(const Op& op, const Table& table, Explanation& out) {
  const auto met = [&](const Impl* impl) {
    return std::any_of(out.decisions.begin(), out.decisions.end(),
                       [&](const Decision& d) { return d.impl == impl; });
  };
  for (const Impl* impl : table.order) {
    if (!met(impl)) out.decisions.push_back({impl, Status::kNotReached, ""});
  }
  for (const Dropped& dropped : table.dropped) {
    const Status status = dropped.unsupported ? Status::kUnsupported : Status::kUnreachable;
    out.decisions.push_back({dropped.impl, status, dropped.reason});
  }
  for (const Impl* impl : op.impls()) {
    if (!met(impl)) out.decisions.push_back({impl, Status::kNotListed, ""});
  }
}

std::string to_string(const Op& op, const Explanation& explanation) {
  size_t width = 0;
  for (const Decision& d : explanation.decisions) width = std::max(width, d.impl->provider.size());
  std::string out = op.qualified_name() + ": " + explanation.selected->provider + " runs";
  for (const Decision& d : explanation.decisions) {
    const std::string& name = d.impl->provider;
    out += "\n  " + name + std::string(width - name.size() + 2, ' ') + d.to_string();
  }
  return out;
}

void insist(const Op& op, const Table& table, const Explanation& explanation) {
  if (table.demanded.empty() || table.demanded == explanation.selected->provider) return;
  throw Error(ErrorKind::kRuntime, op.qualified_name() + "." + table.demanded +
                                       ": strict mode: the provider was asked for and would not "
                                       "run.\n" +
                                       to_string(op, explanation));
}

}  // namespace vllm_ir
