// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/registry.h"

#include <algorithm>
#include <utility>

#include "cpp/dispatch/error.h"

namespace vllm_ir {

Registry& Registry::instance() {
  static Registry* const registry = new Registry;
  return *registry;
}

Op* Registry::add_op(OpSpec spec) {
  const std::lock_guard lock(mutex_);
  const auto found = ops_.find(spec.name);
  if (found != ops_.end()) {
    throw Error(ErrorKind::kDuplicate,
                "vllm_ir." + spec.name + ": the op is already registered at " +
                    found->second->source() + "; the second registration is at " + spec.source +
                    ". Import the module once, or choose another name.");
  }
  auto op = std::make_unique<Op>(std::move(spec));
  Op* const added = op.get();
  ops_.emplace(added->name(), std::move(op));
  declared_.push_back(added);
  return added;
}

void Registry::discard(Op* op) {
  const std::lock_guard lock(mutex_);
  declared_.erase(std::remove(declared_.begin(), declared_.end(), op), declared_.end());
  ops_.erase(op->name());
}

Op* Registry::find_op(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto it = ops_.find(name);
  return it == ops_.end() ? nullptr : it->second.get();
}

std::vector<Op*> Registry::ops() const {
  const std::lock_guard lock(mutex_);
  std::vector<Op*> out;
  for (const auto& [name, op] : ops_) out.push_back(op.get());
  return out;
}

std::vector<Op*> Registry::first_ops(size_t count) const {
  const std::lock_guard lock(mutex_);
  return {declared_.begin(),
          declared_.begin() + static_cast<std::ptrdiff_t>(std::min(count, declared_.size()))};
}

void Registry::set_batch_invariant(bool on) {
  batch_invariant_.store(on, std::memory_order_relaxed);
  for (Op* op : ops()) op->rebuild();
}

}  // namespace vllm_ir
