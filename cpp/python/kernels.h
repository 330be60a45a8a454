// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace vllm_ir {

void init_kernels(py::module_& module);

}  // namespace vllm_ir
