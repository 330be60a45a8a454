// SPDX-License-Identifier: Apache-2.0
// The element types that kernels take. float64 is not among them: the rules of the providers reject
// it.
#pragma once

#include <cstdint>

namespace vllm_ir::kernels {

enum class DType : int8_t { kFloat32, kFloat16, kBFloat16 };

}  // namespace vllm_ir::kernels
