// SPDX-License-Identifier: Apache-2.0
#include "cpp/kernels/cpu_level.h"

#include <atomic>

namespace vllm_ir::kernels {
namespace {

CpuLevel detect() {
#ifdef VLLM_IR_X86_LEVELS
  __builtin_cpu_init();
  // These include the operating system's support for the wide registers.
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
                  __builtin_cpu_supports("movbe");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? CpuLevel::kV4 : v3 ? CpuLevel::kV3 : CpuLevel::kBase;
#else
  return CpuLevel::kBase;
#endif
}

// Relaxed: every level gives the same bits, so a thread that still sees the old one is not wrong.
std::atomic<CpuLevel>& current() {
  static std::atomic<CpuLevel> level{best_cpu_level()};
  return level;
}

}  // namespace

CpuLevel best_cpu_level() {
  static const CpuLevel best = detect();
  return best;
}

CpuLevel cpu_level() { return current().load(std::memory_order_relaxed); }

bool set_cpu_level(CpuLevel level) {
  if (level < CpuLevel::kBase || level > best_cpu_level()) return false;
  current().store(level, std::memory_order_relaxed);
  return true;
}

const char* cpu_level_name(CpuLevel level) {
  switch (level) {
    case CpuLevel::kV4:
      return "x86-64-v4";
    case CpuLevel::kV3:
      return "x86-64-v3";
    case CpuLevel::kBase:
      break;
  }
  return "base";
}

}  // namespace vllm_ir::kernels
