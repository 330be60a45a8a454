// SPDX-License-Identifier: Apache-2.0
// Scoped priorities. A frame overrides one op's list; frames form a chain, the innermost wins.
// Which chain is current belongs to whoever knows threads and tasks: by default a thread_local
// here, in Python a context variable (cpp/python/scope_var.cpp), so that an async task has its own.
#pragma once

#include <atomic>

#include "cpp/dispatch/op.h"
#include "cpp/dispatch/switches.h"

namespace vllm_ir {

struct Frame {
  const Frame* outer = nullptr;
  const Op* op = nullptr;
  const PriorityList* list = nullptr;
  // A task may inherit a chain and outlive a frame in it. A closed frame overrides nothing, so a
  // scope ends for everybody when its block ends. Relaxed: it orders no other memory.
  std::atomic<bool> open{false};
};

using CurrentFrame = const Frame* (*)();
// Replaced once, at start-up, before any call. Returns the one before.
CurrentFrame set_current_frame_source(CurrentFrame source) noexcept;
const Frame* current_frame() noexcept;

// The list that is in force for an op here, or nullptr.
inline const PriorityList* scoped_list(const Op& op) noexcept {
  for (const Frame* frame = current_frame(); frame; frame = frame->outer) {
    if (frame->op == &op && frame->open.load(std::memory_order_relaxed)) return frame->list;
  }
  return nullptr;
}

// The table that a call here walks. `switches` is the word that the call has read.
inline const Table* effective_table(const Op& op, uint64_t switches,
                                    Mode mode = Mode::kEager) noexcept {
  if (Switches::any_scope(switches)) [[unlikely]] {
    if (const PriorityList* list = scoped_list(op)) {
      return list->table.load(std::memory_order_acquire);
    }
  }
  return op.table(mode);
}

// What is asked for here: to be taken down now and selected by later, elsewhere.
inline PriorityRequest effective_request(const Op& op, Mode mode) {
  const PriorityList* const list = scoped_list(op);
  return list ? PriorityRequest{list->names, {}} : op.request(mode);
}

// A scope of this thread, for programs without Python, whose frame source is the one here; scopes
// are left in reverse order of entry.
class ThreadScope {
 public:
  ThreadScope(Op& op, const std::vector<std::string>& names);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  Frame frame_;
};

}  // namespace vllm_ir
