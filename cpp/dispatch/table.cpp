// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/table.h"

#include <algorithm>

#include "cpp/dispatch/error.h"

namespace vllm_ir {
namespace {

const Impl* find_impl(const std::vector<const Impl*>& impls, const std::string& provider) {
  const auto it = std::find_if(impls.begin(), impls.end(),
                               [&](const Impl* impl) { return impl->provider == provider; });
  return it == impls.end() ? nullptr : *it;
}

// Why an impl can never run in this process, or "".
std::string static_reason(const Impl& impl, bool batch_invariant) {
  if (!impl.supported) return impl.unsupported_reason;
  // Native is the meaning of the op: there must be something to run.
  if (batch_invariant && !impl.batch_invariant && impl.provider != kNative) {
    return "not batch-invariant (VLLM_BATCH_INVARIANT is on)";
  }
  return "";
}

}  // namespace

std::vector<std::string> Table::providers() const {
  std::vector<std::string> names;
  for (const Impl* impl : order) names.push_back(impl->provider);
  return names;
}

std::unique_ptr<Table> build_table(const std::vector<const Impl*>& impls,
                                   const PriorityRequest& request, bool batch_invariant) {
  auto table = std::make_unique<Table>();
  if (!request.user.empty()) table->demanded = request.user.front();
  table->priority_not_set = request.user.empty() && request.defaults.empty();

  const Impl* catch_all = nullptr;
  std::vector<const Impl*> seen;
  const auto append = [&](const std::string& provider) {
    const Impl* impl = find_impl(impls, provider);
    if (!impl || std::count(seen.begin(), seen.end(), impl)) return;
    seen.push_back(impl);
    const std::string reason = static_reason(*impl, batch_invariant);
    if (!reason.empty()) {
      table->dropped.push_back({impl, reason, true});
    } else if (catch_all) {
      table->dropped.push_back({impl, "unreachable behind " + catch_all->provider, false});
    } else {
      table->order.push_back(impl);
      if (impl->accepts == Accepts::kAlways) catch_all = impl;
    }
  };
  for (const std::string& provider : request.user) append(provider);
  for (const Dropped& dropped : table->dropped) {
    if (!dropped.unsupported && dropped.impl->provider != kNative) {
      table->unreachable.push_back(dropped.impl);
    }
  }
  for (const std::string& provider : request.defaults) append(provider);

  if (!catch_all) {
    table->native_appended = !table->priority_not_set;
    append(kNative);
  }
  table->notice_due =
      table->priority_not_set || table->native_appended || !table->unreachable.empty();
  return table;
}

void check_invariants(const Table& table) {
  const auto fail = [](const char* what) {
    throw Error(ErrorKind::kRuntime,
                std::string("vllm_ir: internal error, please report: table: ") + what);
  };
  if (table.order.empty()) fail("it is empty");
  for (size_t i = 0; i < table.order.size(); ++i) {
    const bool last = i + 1 == table.order.size();
    if (!table.order[i]->supported) fail("it lists an unsupported impl");
    if ((table.order[i]->accepts == Accepts::kAlways) != last) {
      fail("only the last impl may accept everything, and it must");
    }
    if (std::count(table.order.begin(), table.order.end(), table.order[i]) > 1) {
      fail("it lists an impl twice");
    }
  }
}

}  // namespace vllm_ir
