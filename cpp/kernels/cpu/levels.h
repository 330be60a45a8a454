// SPDX-License-Identifier: Apache-2.0
// The builds of the *_level.cpp files, one namespace a level, and the choice between them.
#pragma once

#include "cpp/kernels/act_and_mul.h"
#include "cpp/kernels/cpu_level.h"
#include "cpp/kernels/fused_add_rms_norm.h"
#include "cpp/kernels/rms_norm.h"

namespace vllm_ir::kernels {

#define VLLM_IR_DECLARE_LEVEL(level)                                     \
  namespace level {                                                      \
  void act_and_mul(const ActAndMulArgs&, int64_t, int64_t);              \
  void rms_norm(const RmsNormArgs&, int64_t, int64_t);                   \
  void fused_add_rms_norm(const FusedAddRmsNormArgs&, int64_t, int64_t); \
  }
VLLM_IR_DECLARE_LEVEL(base)
VLLM_IR_DECLARE_LEVEL(v3)
VLLM_IR_DECLARE_LEVEL(v4)
#undef VLLM_IR_DECLARE_LEVEL

}  // namespace vllm_ir::kernels
