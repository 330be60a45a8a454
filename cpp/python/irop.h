// SPDX-License-Identifier: Apache-2.0
// IrOpBase: the C type behind every callable op (and every maybe_inplace). Calling one is a whole
// eager dispatch; the Python subclass adds the names that people use.
#pragma once

#include <Python.h>

#include <array>

#include "cpp/dispatch/op.h"

namespace vllm_ir {

struct BoundParam {
  PyObject* name;      // interned
  PyObject* fallback;  // the default, or null
  ParamKind kind;
  bool optional;
};

struct IrOpObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* weakrefs;
  PyObject* torch_op;   // torch.ops.vllm_ir.<op>.<overload>: takes every call that isn't plain
  PyObject* unwrapped;  // Python function that dispatches without the torch operator, or null
  Op* op;
  int count;      // of parameters
  bool donating;  // the maybe_inplace overload
  std::array<BoundParam, kMaxParams> params;
};

// Creates the type and adds it to the module, with the functions that need it.
void init_irop(PyObject* module);

// While true (some thread has asked to go around torch's operators), calls that aren't plain eager
// ask `unwrapped` first.
void set_ask_unwrapped(bool on) noexcept;

}  // namespace vllm_ir
