// SPDX-License-Identifier: Apache-2.0
// A stack of its own on which a function runs until it gives control back. All fibers belong to one
// operating system thread. The sanitizers are told of each switch; to ThreadSanitizer a fiber is a
// thread, and a switch orders no memory.
#pragma once

#include <cstddef>
#include <memory>

namespace vllm_ir::emulation {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Forgets where the fiber was; the next resume() calls `entry`, which must not return.
  void start(void (*entry)());

  // Runs the fiber until it calls suspend(). Not from inside a fiber.
  void resume();

  // Returns to whoever resumed the running fiber.
  static void suspend();

 private:
  static void begin();

  static constexpr size_t kStackBytes = 64 * 1024;
  struct Switch;
  std::unique_ptr<std::byte[]> stack_;
  std::unique_ptr<Switch> switch_;
};

}  // namespace vllm_ir::emulation
