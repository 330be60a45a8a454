// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/scope.h"

#include <utility>

namespace vllm_ir {
namespace {

thread_local const Frame* t_frame = nullptr;
const Frame* thread_frame() { return t_frame; }
CurrentFrame g_source = &thread_frame;

}  // namespace

CurrentFrame set_current_frame_source(CurrentFrame source) noexcept {
  return std::exchange(g_source, source);
}
const Frame* current_frame() noexcept { return g_source(); }

ThreadScope::ThreadScope(Op& op, const std::vector<std::string>& names)
    : frame_{t_frame, &op, op.intern(names), true} {
  t_frame = &frame_;
  g_switches.open_scope();
}

ThreadScope::~ThreadScope() {
  g_switches.close_scope();
  t_frame = frame_.outer;
}

}  // namespace vllm_ir
