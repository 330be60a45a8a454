// SPDX-License-Identifier: Apache-2.0
// The eager call. Everything that an ordinary call executes is in irop_call.cpp, in order.
#pragma once

#include "cpp/python/irop.h"

namespace vllm_ir {

// The vectorcall of IrOpObject.
PyObject* call_irop(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames);

// Selection without a call, over whatever objects: real, fake or symbolic. `args` is a tuple with
// every parameter. Returns (selected provider, [(provider, status, reason, source), ...]).
PyObject* explain_irop(const IrOpObject& self, PyObject* args, Mode mode);
// Only the selected provider; counts nothing, logs nothing.
PyObject* peek_irop(const IrOpObject& self, PyObject* args, Mode mode);

// The same by the table of a request that was taken down earlier, whatever is in force here; for
// the lowering of a graph, which needs no gradient. Strict mode insists as it does in a call.
PyObject* select_irop(const IrOpObject& self, PyObject* args, const PriorityRequest& request);

// Whether one impl accepts the arguments, wherever it stands in the priority: (bool, reason).
PyObject* verdict_irop(const IrOpObject& self, const char* provider, PyObject* args);

// A whole call that goes around the torch operator and runs the impl's Python function, so that a
// tracer sees what it does. Native when a gradient is needed, as ever.
PyObject* run_unwrapped(const IrOpObject& self, PyObject* args, Mode mode);

}  // namespace vllm_ir
