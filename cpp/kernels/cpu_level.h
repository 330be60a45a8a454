// SPDX-License-Identifier: Apache-2.0
// Which build of the CPU kernels runs. Each kernel is compiled once a level; all levels give the
// same bits.
#pragma once

#include <cstdint>

namespace vllm_ir::kernels {

// kV3 and kV4 are the x86-64-v3 (AVX2, FMA, F16C) and x86-64-v4 (AVX-512) instruction sets; other
// processors have kBase only.
enum class CpuLevel : int8_t { kBase, kV3, kV4 };

// The highest level that this binary holds and this processor runs. Asks the processor once.
CpuLevel best_cpu_level();

// The level in use: the best one, unless set_cpu_level chose another.
CpuLevel cpu_level();

// Uses `level` from the next kernel call on, in all threads. For tests and benchmarks.
// Returns false and changes nothing when `level` is above the best one.
bool set_cpu_level(CpuLevel level);

// "base", "x86-64-v3" or "x86-64-v4".
const char* cpu_level_name(CpuLevel level);
inline const char* cpu_level_name() { return cpu_level_name(cpu_level()); }

}  // namespace vllm_ir::kernels
