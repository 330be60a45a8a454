// SPDX-License-Identifier: Apache-2.0
// One process-wide word that each call reads once, relaxed: zero means that nothing unusual is on.
// The low bits are switches, the bits above them count the open priority scopes, so that a closed
// log, a lenient mode and no scope together cost one load.
#pragma once

#include <atomic>
#include <cstdint>

namespace vllm_ir {

enum class Switch : uint64_t { kTrace = 1, kStrict = 2 };
inline constexpr uint64_t kOneScope = 256;

class Switches {
 public:
  uint64_t load() const noexcept { return word_.load(std::memory_order_relaxed); }

  void set(Switch which, bool on) noexcept {
    const auto bit = static_cast<uint64_t>(which);
    // Relaxed: a switch orders nothing; a call that races with the change may see either value.
    on ? word_.fetch_or(bit, std::memory_order_relaxed)
       : word_.fetch_and(~bit, std::memory_order_relaxed);
  }

  // A scope's own thread opens it and reads it, so program order is enough.
  void open_scope() noexcept { word_.fetch_add(kOneScope, std::memory_order_relaxed); }
  void close_scope() noexcept { word_.fetch_sub(kOneScope, std::memory_order_relaxed); }

  static bool has(uint64_t word, Switch which) noexcept {
    return (word & static_cast<uint64_t>(which)) != 0;
  }
  static bool any_scope(uint64_t word) noexcept { return word >= kOneScope; }

 private:
  std::atomic<uint64_t> word_{0};
};

inline Switches g_switches;

}  // namespace vllm_ir
