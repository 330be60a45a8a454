// SPDX-License-Identifier: Apache-2.0
// The inputs of a compiled graph that it may overwrite, looked at once more before each run.
#pragma once

#include <Python.h>

namespace vllm_ir {

// keep_apart(arguments, positions) -> arguments: the tuple itself, or one with copies in the places
// of donated inputs that share memory with another argument. A compiler orders reads and writes by
// names, so two names for one memory would be read too late.
void init_donated_inputs(PyObject* module);

}  // namespace vllm_ir
