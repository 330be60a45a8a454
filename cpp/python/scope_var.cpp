// SPDX-License-Identifier: Apache-2.0
#include "cpp/python/scope_var.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <new>
#include <string>
#include <vector>

#include "cpp/dispatch/scope.h"
#include "cpp/python/errors.h"
#include "cpp/python/python_body.h"
#include "cpp/torch/careful.h"

namespace vllm_ir {
namespace {

PyObject* g_variable = nullptr;  // the context variable; its value is the innermost ScopeObject
PyTypeObject* g_scope_type = nullptr;

struct ScopeObject {
  PyObject_HEAD
  Frame frame;
  PyObject* token;  // non-null from __enter__ to __exit__
  PyObject* outer;  // keeps the frame that `frame.outer` points to alive
};

const Frame* frame_of(PyObject* value) {
  return value ? &reinterpret_cast<ScopeObject*>(value)->frame : nullptr;
}

const Frame* read_variable() {
  // A torch operator runs without Python's lock. Only paid while some scope is open.
  const PyGILState_STATE lock = PyGILState_Ensure();
  PyObject* value = nullptr;
  if (PyContextVar_Get(g_variable, nullptr, &value) < 0) PyErr_WriteUnraisable(g_variable);
  const Frame* const frame = frame_of(value);
  Py_XDECREF(value);  // the context itself keeps it alive while this call runs
  PyGILState_Release(lock);
  return frame;
}

// The innermost scope that is still open, as a new reference; null when there is none. Closed ones
// stay in the variable of a context that was left in another one; keeping them would make chains
// grow, and cycles when one is opened again.
bool innermost_open(PyObject** out) {
  PyObject* scope = nullptr;
  if (PyContextVar_Get(g_variable, nullptr, &scope) < 0) return false;
  while (scope && !reinterpret_cast<ScopeObject*>(scope)->token) {
    PyObject* const outer = Py_XNewRef(reinterpret_cast<ScopeObject*>(scope)->outer);
    Py_SETREF(scope, outer);
  }
  *out = scope;
  return true;
}

PyObject* enter(PyObject* object, PyObject*) {
  auto* const self = reinterpret_cast<ScopeObject*>(object);
  if (self->token) {
    set_python_error(Error(ErrorKind::kRuntime, self->frame.op->qualified_name() +
                                                    ": this priority scope is open already. "
                                                    "Call set_priority again for a nested one."));
    return nullptr;
  }
  PyObject* outer = nullptr;
  if (!innermost_open(&outer)) return nullptr;
  PyObject* const token = PyContextVar_Set(g_variable, object);
  if (!token) {
    Py_XDECREF(outer);
    return nullptr;
  }
  Py_XSETREF(self->outer, outer);
  self->frame.outer = frame_of(outer);
  self->frame.open = true;
  self->token = token;
  g_switches.open_scope();
  return Py_NewRef(object);
}

PyObject* leave(PyObject* object, PyObject* const*, Py_ssize_t) {
  auto* const self = reinterpret_cast<ScopeObject*>(object);
  if (!self->token) {
    set_python_error(Error(ErrorKind::kRuntime, self->frame.op->qualified_name() +
                                                    ": this priority scope is not open."));
    return nullptr;
  }
  PyObject* const token = self->token;
  self->token = nullptr;
  self->frame.open = false;
  g_switches.close_scope();
  if (PyContextVar_Reset(g_variable, token) < 0) {
    // Left in another context than it was entered in, as when a generator is closed by the
    // collector. The frame is closed, which is what ends the scope; the variable is only a path.
    if (!PyErr_ExceptionMatches(PyExc_ValueError)) {
      Py_DECREF(token);
      return nullptr;
    }
    PyErr_Clear();
  }
  Py_DECREF(token);
  Py_RETURN_NONE;
}

void dealloc(PyObject* object) {
  auto* const self = reinterpret_cast<ScopeObject*>(object);
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->token) g_switches.close_scope();  // its thread or task ended inside it
  Py_XDECREF(self->token);
  Py_XDECREF(self->outer);
  type->tp_free(object);
  Py_DECREF(type);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* const self = reinterpret_cast<ScopeObject*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->token);
  Py_VISIT(self->outer);
  return 0;
}

PyMethodDef kMethods[] = {
    {"__enter__", &enter, METH_NOARGS, "Open the scope."},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&leave)), METH_FASTCALL,
     "Close the scope; what was in force before is in force again."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot kSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(&dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
    {Py_tp_methods, kMethods},
    {Py_tp_doc, const_cast<char*>("A priority list in force for one op; made by set_priority.")},
    {0, nullptr}};

PyType_Spec kSpec = {"vllm_ir._C.Scope", sizeof(ScopeObject), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                     kSlots};

bool read_names(const Op& op, PyObject* providers, std::vector<std::string>& names) {
  const bool sequence = PyList_Check(providers) || PyTuple_Check(providers);
  if (!sequence) {
    throw Error(ErrorKind::kType, op.qualified_name() +
                                      ": a priority must be a list of provider names, got " +
                                      Py_TYPE(providers)->tp_name + ".");
  }
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(providers);
  names.reserve(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(providers, i);
    if (!PyUnicode_Check(item)) {
      throw Error(ErrorKind::kType, op.qualified_name() +
                                        ": a provider name must be a string, got " +
                                        Py_TYPE(item)->tp_name + ".");
    }
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(item, &size);
    if (!text) return false;
    names.emplace_back(text, static_cast<size_t>(size));
  }
  return true;
}

}  // namespace

PyObject* make_scope(Op& op, PyObject* providers) {
  try {
    std::vector<std::string> names;
    if (!read_names(op, providers, names)) return nullptr;
    const PriorityList* const list = op.intern(names);
    give_list_notice(op, *list->table.load(std::memory_order_acquire));
    auto* const scope = PyObject_GC_New(ScopeObject, g_scope_type);
    if (!scope) return nullptr;
    new (&scope->frame) Frame{nullptr, &op, list, false};
    scope->token = nullptr;
    scope->outer = nullptr;
    PyObject_GC_Track(scope);
    return reinterpret_cast<PyObject*>(scope);
  } catch (...) {
    set_python_error_from_current();
    return nullptr;
  }
}

void init_scope(PyObject* module) {
  g_variable = PyContextVar_New("vllm_ir_priority", nullptr);
  if (!g_variable) throw py::error_already_set();
  g_scope_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kSpec));
  if (!g_scope_type) throw py::error_already_set();
  if (PyModule_AddObjectRef(module, "Scope", reinterpret_cast<PyObject*>(g_scope_type)) < 0) {
    throw py::error_already_set();
  }
  set_current_frame_source(&read_variable);
}

}  // namespace vllm_ir
