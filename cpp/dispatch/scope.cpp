// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/scope.h"

namespace vllm_ir {
namespace {

thread_local const Frame* t_frame = nullptr;
const Frame* thread_frame() { return t_frame; }
CurrentFrame g_source = &thread_frame;

}  // namespace

void set_current_frame_source(CurrentFrame source) noexcept { g_source = source; }
const Frame* current_frame() noexcept { return g_source(); }

ThreadScope::ThreadScope(Op& op, const std::vector<std::string>& names)
    : frame_{t_frame, &op, op.intern(names)} {
  t_frame = &frame_;
  g_switches.open_scope();
}

ThreadScope::~ThreadScope() {
  g_switches.close_scope();
  t_frame = frame_.outer;
}

}  // namespace vllm_ir
