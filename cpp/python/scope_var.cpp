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
  PyObject* outer;  // the scope that `frame.outer` points into, kept alive; or null
};

ScopeObject* as_scope(PyObject* object) { return reinterpret_cast<ScopeObject*>(object); }
bool is_open(PyObject* scope) { return as_scope(scope)->frame.open; }

// The value of the context variable, as a new reference: a scope, or null for none. False with a
// Python error set.
bool read(PyObject** scope) {
  if (PyContextVar_Get(g_variable, nullptr, scope) < 0) return false;
  if (*scope == Py_None) Py_CLEAR(*scope);
  return true;
}

// Replaces a reference to a scope by one to the innermost of it and its outer ones that is open.
// Closed ones stay behind where scopes are left out of order or in another context; keeping them
// would make chains grow, and cycles when one is opened again.
void skip_closed(PyObject** scope) {
  while (*scope && !is_open(*scope)) {
    PyObject* const outer = Py_XNewRef(as_scope(*scope)->outer);
    Py_SETREF(*scope, outer);
  }
}

const Frame* read_frame() {
  // A torch operator runs without Python's lock. Only paid while some scope is open.
  const PyGILState_STATE lock = PyGILState_Ensure();
  PyObject* scope = nullptr;
  if (!read(&scope)) PyErr_WriteUnraisable(g_variable);
  const Frame* const frame = scope ? &as_scope(scope)->frame : nullptr;
  Py_XDECREF(scope);  // the context itself keeps it alive while this call runs
  PyGILState_Release(lock);
  return frame;
}

bool write(PyObject* scope) {
  PyObject* const token = PyContextVar_Set(g_variable, scope ? scope : Py_None);
  Py_XDECREF(token);
  return token != nullptr;
}

PyObject* enter(PyObject* object, PyObject*) {
  ScopeObject* const self = as_scope(object);
  if (self->frame.open) {
    set_python_error(Error(ErrorKind::kRuntime, self->frame.op->qualified_name() +
                                                    ": this priority scope is open already. "
                                                    "Call set_priority again for a nested one."));
    return nullptr;
  }
  PyObject* outer = nullptr;
  if (!read(&outer)) return nullptr;
  skip_closed(&outer);
  if (!write(object)) {
    Py_XDECREF(outer);
    return nullptr;
  }
  Py_XSETREF(self->outer, outer);
  self->frame.outer = outer ? &as_scope(outer)->frame : nullptr;
  self->frame.open = true;
  g_switches.open_scope();
  return Py_NewRef(object);
}

PyObject* leave(PyObject* object, PyObject* const*, Py_ssize_t) {
  ScopeObject* const self = as_scope(object);
  if (!self->frame.open) {
    set_python_error(Error(ErrorKind::kRuntime, self->frame.op->qualified_name() +
                                                    ": this priority scope is not open."));
    return nullptr;
  }
  self->frame.open = false;  // which ends the scope, for everybody
  g_switches.close_scope();
  PyObject* current = nullptr;
  if (!read(&current)) return nullptr;
  // Another one is current when scopes are left out of order (generators), or in another context
  // than they were entered in. It stays; a closed frame in its chain overrides nothing.
  bool done = true;
  if (current == object) {
    skip_closed(&current);
    done = write(current);
  }
  Py_XDECREF(current);
  if (!done) return nullptr;
  Py_RETURN_NONE;
}

void dealloc(PyObject* object) {
  ScopeObject* const self = as_scope(object);
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->frame.open) g_switches.close_scope();  // its thread or task ended inside it
  Py_XDECREF(self->outer);
  type->tp_free(object);
  Py_DECREF(type);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  ScopeObject* const self = as_scope(object);
  Py_VISIT(Py_TYPE(object));
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
  set_current_frame_source(&read_frame);
}

}  // namespace vllm_ir
