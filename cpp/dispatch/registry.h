// SPDX-License-Identifier: Apache-2.0
// The process-wide list of ops.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cpp/dispatch/op.h"

namespace vllm_ir {

class Registry {
 public:
  // Never destroyed: impls hold callbacks into an interpreter that may be gone by then, and a
  // thread of the host program may still be calling while the process exits.
  static Registry& instance();

  // Throws Error(kValue, kDuplicate) and registers nothing on failure. The op lives for ever.
  Op* add_op(OpSpec spec);
  // Takes back an op whose torch operator could not be defined. Only right after add_op, before
  // anyone else has seen the op.
  void discard(Op* op);
  Op* find_op(const std::string& name) const;      // nullptr when there is none
  std::vector<Op*> ops() const;                    // by name
  std::vector<Op*> first_ops(size_t count) const;  // in order of declaration

  // While on, tables hold only impls that were declared batch-invariant, and native.
  bool batch_invariant() const noexcept { return batch_invariant_.load(std::memory_order_relaxed); }
  void set_batch_invariant(bool on);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Op>> ops_;
  std::vector<Op*> declared_;
  std::atomic<bool> batch_invariant_{false};
};

}  // namespace vllm_ir
