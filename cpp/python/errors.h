// SPDX-License-Identifier: Apache-2.0
// C++ errors become the classes of vllm_ir/errors.py.
#pragma once

#include <Python.h>

#include "cpp/dispatch/error.h"

namespace vllm_ir {

// Sets the Python error for a dispatch error. Needs Python's lock.
void set_python_error(const Error& error);
// Sets the Python error for whatever is being handled (dispatch, torch or standard exception).
void set_python_error_from_current() noexcept;
// Throws the pending Python error as a C++ exception that survives giving up the lock.
[[noreturn]] void throw_pending_python_error();
// For CallHooks::raise: takes the lock, then both of the above.
void raise_through_torch(const Error& error);

}  // namespace vllm_ir
