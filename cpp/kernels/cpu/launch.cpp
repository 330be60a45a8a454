// SPDX-License-Identifier: Apache-2.0
// The CPU launchers: each hands its arguments to the level in use. Compiled for the oldest
// processor.
#include "cpp/kernels/cpu/levels.h"

namespace vllm_ir::kernels {

#ifdef VLLM_IR_X86_LEVELS
#define VLLM_IR_CALL_LEVEL(function, ...) \
  switch (cpu_level()) {                  \
    case CpuLevel::kV4:                   \
      return v4::function(__VA_ARGS__);   \
    case CpuLevel::kV3:                   \
      return v3::function(__VA_ARGS__);   \
    case CpuLevel::kBase:                 \
      return base::function(__VA_ARGS__); \
  }
#else
#define VLLM_IR_CALL_LEVEL(function, ...) return base::function(__VA_ARGS__);
#endif

void act_and_mul_cpu(const ActAndMulArgs& args, int64_t row_begin, int64_t row_end) {
  VLLM_IR_CALL_LEVEL(act_and_mul, args, row_begin, row_end)
}

void rms_norm_cpu(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  VLLM_IR_CALL_LEVEL(rms_norm, args, row_begin, row_end)
}

void fused_add_rms_norm_cpu(const FusedAddRmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  VLLM_IR_CALL_LEVEL(fused_add_rms_norm, args, row_begin, row_end)
}

}  // namespace vllm_ir::kernels
