// SPDX-License-Identifier: Apache-2.0
// `with op.set_priority([...])`: a scope that belongs to the thread or async task that opened it.
#pragma once

#include <Python.h>

#include "cpp/dispatch/op.h"

namespace vllm_ir {

// Creates the context variable and the Scope type, and tells the dispatch core to read them.
void init_scope(PyObject* module);

// A context manager that is not entered yet. Checks the list; null with a Python error set.
PyObject* make_scope(Op& op, PyObject* providers);

}  // namespace vllm_ir
