// SPDX-License-Identifier: Apache-2.0
// Accesses to global memory: their alignment, their bounds, their number. Compiled without
// ThreadSanitizer's instrumentation, see block.cpp.
#include <algorithm>
#include <vector>

#include "tests/cpp/emulation/block.h"
#include "tests/cpp/emulation/emulation.h"

namespace vllm_ir::emulation {

Watch* watch_of(const void* begin, size_t bytes);

namespace {

std::vector<Watch*> watches;

void check_access(const void* begin, size_t bytes, bool is_store) {
  if (reinterpret_cast<uintptr_t>(begin) % bytes != 0)
    fail(bytes == 16 ? "misaligned access of 16 bytes" : "misaligned access of an element");
  ++(bytes == 16 ? counts().wide : counts().narrow);
  if (watches.empty()) return;
  Watch* watch = watch_of(begin, bytes);
  if (watch == nullptr)
    fail(is_store ? "store outside of the watched memory" : "load outside of the watched memory");
  (is_store ? watch->stored : watch->loaded) += static_cast<int64_t>(bytes);
}

}  // namespace

Watch* watch_of(const void* begin, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(begin);
  for (Watch* w : watches)
    if (first >= w->begin_ && first + bytes <= w->end_) return w;
  return nullptr;
}

Watch::Watch(const void* begin, const void* end)
    : begin_(static_cast<const std::byte*>(begin)), end_(static_cast<const std::byte*>(end)) {
  watches.push_back(this);
}
Watch::~Watch() { watches.erase(std::find(watches.begin(), watches.end(), this)); }

Counts& counts() {
  static Counts c;
  return c;
}

void on_load(const void* begin, size_t bytes) { check_access(begin, bytes, false); }
void on_store(const void* begin, size_t bytes) { check_access(begin, bytes, true); }

}  // namespace vllm_ir::emulation
