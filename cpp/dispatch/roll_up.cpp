// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/roll_up.h"

namespace vllm_ir {

std::vector<ImplCounts> roll_up(const Op& op) {
  std::vector<ImplCounts> out;
  for (const Impl* impl : op.impls()) {
    ImplCounts counts{impl->provider, impl->selected.load(std::memory_order_relaxed), {}};
    for (const Clause& clause : impl->rule.clauses()) clause.roll_up(counts.rejections);
    const uint64_t refused = impl->callable_rejections.load(std::memory_order_relaxed);
    if (refused) counts.rejections.emplace_back("supports_args said no", refused);
    out.push_back(std::move(counts));
  }
  return out;
}

void reset_counts(const Op& op) {
  for (const Impl* impl : op.impls()) {
    impl->selected.store(0, std::memory_order_relaxed);
    impl->callable_rejections.store(0, std::memory_order_relaxed);
    for (const Clause& clause : impl->rule.clauses()) clause.reset_counts();
  }
}

}  // namespace vllm_ir
