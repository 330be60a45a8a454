// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/emulation/fiber.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(VLLM_IR_EMULATION_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__x86_64__) && !defined(VLLM_IR_EMULATION_UCONTEXT)
#define VLLM_IR_SWITCH_STACK
#else
#include <ucontext.h>
#endif

#if defined(VLLM_IR_SWITCH_STACK)
// Saves the registers that a call preserves and the stack pointer, then takes those of another
// stack. swapcontext makes a system call each time besides: all tests took three times as long.
extern "C" void vllm_ir_switch_stack(void** save, void* load);
asm(R"(
.text
.type vllm_ir_switch_stack, @function
vllm_ir_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size vllm_ir_switch_stack, .-vllm_ir_switch_stack
)");
#endif

namespace vllm_ir::emulation {

struct Fiber::Switch {
  void (*entry)() = nullptr;
#if defined(VLLM_IR_SWITCH_STACK)
  void* fiber = nullptr;
  void* resumer = nullptr;
#else
  ucontext_t fiber, resumer;
#endif
  void* tsan_fiber = nullptr;
  void* tsan_resumer = nullptr;
  void* asan_fiber = nullptr;
  const void* resumer_stack = nullptr;
  size_t resumer_stack_bytes = 0;
};

namespace {
Fiber* running = nullptr;
}

Fiber::Fiber() : stack_(new std::byte[kStackBytes]), switch_(std::make_unique<Switch>()) {
#if defined(VLLM_IR_EMULATION_TSAN)
  switch_->tsan_fiber = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(VLLM_IR_EMULATION_TSAN)
  __tsan_destroy_fiber(switch_->tsan_fiber);
#endif
}

void Fiber::start(void (*entry)()) {
  switch_->entry = entry;
  switch_->asan_fiber = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_.get(), kStackBytes);  // from frames that never returned
#endif
#if defined(VLLM_IR_SWITCH_STACK)
  const uintptr_t end = reinterpret_cast<uintptr_t>(stack_.get() + kStackBytes) & ~uintptr_t{15};
  auto** top = reinterpret_cast<void**>(end) - 2;  // a function begins 8 bytes off an address of 16
  top[0] = reinterpret_cast<void*>(&Fiber::begin);
  top[1] = nullptr;
  for (int i = 1; i <= 6; ++i) top[-i] = nullptr;
  switch_->fiber = top - 6;
#else
  getcontext(&switch_->fiber);
  switch_->fiber.uc_stack.ss_sp = stack_.get();
  switch_->fiber.uc_stack.ss_size = kStackBytes;
  switch_->fiber.uc_link = nullptr;
  makecontext(&switch_->fiber, &Fiber::begin, 0);
#endif
}

void Fiber::begin() {
  Switch& s = *running->switch_;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &s.resumer_stack, &s.resumer_stack_bytes);
#endif
  s.entry();
}

void Fiber::resume() {
  Switch& s = *switch_;
  running = this;
#if defined(__SANITIZE_ADDRESS__)
  void* resumer_fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&resumer_fake_stack, stack_.get(), kStackBytes);
#endif
#if defined(VLLM_IR_EMULATION_TSAN)
  s.tsan_resumer = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(s.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(VLLM_IR_SWITCH_STACK)
  vllm_ir_switch_stack(&s.resumer, s.fiber);
#else
  swapcontext(&s.resumer, &s.fiber);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(resumer_fake_stack, nullptr, nullptr);
#endif
  running = nullptr;
}

void Fiber::suspend() {
  Switch& s = *running->switch_;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&s.asan_fiber, s.resumer_stack, s.resumer_stack_bytes);
#endif
#if defined(VLLM_IR_EMULATION_TSAN)
  __tsan_switch_to_fiber(s.tsan_resumer, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(VLLM_IR_SWITCH_STACK)
  vllm_ir_switch_stack(&s.fiber, s.resumer);
#else
  swapcontext(&s.fiber, &s.resumer);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(s.asan_fiber, &s.resumer_stack, &s.resumer_stack_bytes);
#endif
}

}  // namespace vllm_ir::emulation
