// SPDX-License-Identifier: Apache-2.0
#include "cpp/python/irop.h"

#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>

#include "cpp/dispatch/registry.h"
#include "cpp/python/errors.h"
#include "cpp/python/irop_call.h"
#include "cpp/python/scope_var.h"

namespace vllm_ir {
namespace {

IrOpObject* as_irop(PyObject* object) { return reinterpret_cast<IrOpObject*>(object); }

// For methods: an object whose __init__ did not run has no op.
IrOpObject& ready(PyObject* object) {
  if (as_irop(object)->op) return *as_irop(object);
  throw Error(ErrorKind::kRuntime, "vllm_ir: internal error, please report: op before __init__");
}

// What a method body throws becomes the Python error.
template <class F>
PyObject* guarded(F&& body) {
  try {
    return body();
  } catch (...) {
    set_python_error_from_current();
    return nullptr;
  }
}

// IrOpBase(op_name, defaults, torch_op, unwrapped, donating): `defaults` has an item for each
// parameter that has a default, by name.
int init(PyObject* object, PyObject* args, PyObject*) {
  auto* const self = as_irop(object);
  const char* name = nullptr;
  PyObject *defaults = nullptr, *torch_op = nullptr, *unwrapped = nullptr;
  int donating = 0;
  if (!PyArg_ParseTuple(args, "sO!OOp", &name, &PyDict_Type, &defaults, &torch_op, &unwrapped,
                        &donating)) {
    return -1;
  }
  Op* const op = Registry::instance().find_op(name);
  if (!op || self->op) {
    PyErr_Format(PyExc_RuntimeError, "vllm_ir: internal error, please report: bad IrOpBase(%s)",
                 name);
    return -1;
  }
  self->count = static_cast<int>(op->params().size());
  for (int i = 0; i < self->count; ++i) {
    const Param& param = op->params()[static_cast<size_t>(i)];
    PyObject* const interned = PyUnicode_InternFromString(param.name.c_str());
    if (!interned) return -1;
    PyObject* const fallback = PyDict_GetItemWithError(defaults, interned);
    if (!fallback && PyErr_Occurred()) return -1;
    self->params[static_cast<size_t>(i)] = {interned, Py_XNewRef(fallback), param.kind,
                                            param.optional};
  }
  self->torch_op = Py_NewRef(torch_op);
  self->unwrapped = unwrapped == Py_None ? nullptr : Py_NewRef(unwrapped);
  self->op = op;
  self->donating = donating != 0;
  self->vectorcall = &call_irop;
  return 0;
}

PyObject* not_ready(PyObject*, PyObject* const*, size_t, PyObject*) {
  PyErr_SetString(PyExc_RuntimeError, "vllm_ir: internal error, please report: op before __init__");
  return nullptr;
}

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* const object = type->tp_alloc(type, 0);
  if (object) as_irop(object)->vectorcall = &not_ready;
  return object;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* const self = as_irop(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->torch_op);
  Py_VISIT(self->unwrapped);
  for (int i = 0; i < self->count; ++i) Py_VISIT(self->params[static_cast<size_t>(i)].fallback);
  return 0;
}

int clear(PyObject* object) {
  auto* const self = as_irop(object);
  self->vectorcall = &not_ready;
  Py_CLEAR(self->torch_op);
  Py_CLEAR(self->unwrapped);
  for (int i = 0; i < self->count; ++i) {
    Py_CLEAR(self->params[static_cast<size_t>(i)].name);
    Py_CLEAR(self->params[static_cast<size_t>(i)].fallback);
  }
  self->count = 0;
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (as_irop(object)->weakrefs) PyObject_ClearWeakRefs(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

Mode mode_of(PyObject* flag) { return PyObject_IsTrue(flag) ? Mode::kCompiling : Mode::kEager; }

PyObject* explain_method(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return PyErr_Format(PyExc_TypeError, "_explain takes 2 arguments");
  return guarded([&] { return explain_irop(ready(self), args[0], mode_of(args[1])); });
}

PyObject* select_method(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n != 3) return PyErr_Format(PyExc_TypeError, "_select takes 3 arguments");
  return guarded([&] {
    const auto names = [&](int i) { return py::handle(args[i]).cast<std::vector<std::string>>(); };
    return select_irop(ready(self), args[0], PriorityRequest{names(1), names(2)});
  });
}

PyObject* peek_method(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return PyErr_Format(PyExc_TypeError, "_peek takes 2 arguments");
  return guarded([&] { return peek_irop(ready(self), args[0], mode_of(args[1])); });
}

PyObject* verdict_method(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return PyErr_Format(PyExc_TypeError, "_verdict takes 2 arguments");
  const char* const provider = PyUnicode_AsUTF8(args[0]);
  if (!provider) return nullptr;
  return guarded([&] { return verdict_irop(ready(self), provider, args[1]); });
}

PyObject* run_unwrapped_method(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) return PyErr_Format(PyExc_TypeError, "_run_unwrapped takes 2 arguments");
  return guarded([&] { return run_unwrapped(ready(self), args[0], mode_of(args[1])); });
}

PyObject* set_priority_method(PyObject* self, PyObject* providers) {
  return guarded([&] { return make_scope(*ready(self).op, providers); });
}

PyCFunction as_method(PyObject* (*f)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f));
}

PyMethodDef kMethods[] = {
    {"_explain", as_method(&explain_method), METH_FASTCALL,
     "(arguments, compiling) -> (selected, decisions); counts nothing."},
    {"_select", as_method(&select_method), METH_FASTCALL,
     "(arguments, user's names, defaults) -> (selected, decisions), by that request."},
    {"_peek", as_method(&peek_method), METH_FASTCALL,
     "(arguments, compiling) -> the provider that would run."},
    {"_verdict", as_method(&verdict_method), METH_FASTCALL,
     "(provider, arguments) -> (accepted, reason), whatever the priority."},
    {"_run_unwrapped", as_method(&run_unwrapped_method), METH_FASTCALL,
     "(arguments, compiling) -> results, by the Python function of the selected implementation."},
    {"set_priority", &set_priority_method, METH_O,
     "set_priority(providers) -> context manager\n\n"
     "Put a priority list in force for this op inside a with block, in this thread or async\n"
     "task. Scopes nest; leaving one, also by an exception, restores what was in force before.\n"
     "While it is open, neither the configured list nor platform defaults apply.\n\n"
     "Args:\n"
     "    providers: list or tuple of registered provider names. An empty one means native.\n\n"
     "Raises:\n"
     "    UnknownNameError: a provider is not registered for this op.\n"
     "    IrTypeError: not a list of strings.\n"
     "    IrRuntimeError: in strict mode, a provider is unsupported here.\n\n"
     "Example:\n"
     "    >>> with ir.ops.rms_norm.set_priority(['native']):\n"
     "    ...     y = ir.ops.rms_norm(x, weight, 1e-6)\n"},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef kMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(IrOpObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(IrOpObject, weakrefs), READONLY, nullptr},
    {"torch_op", T_OBJECT_EX, offsetof(IrOpObject, torch_op), READONLY,
     "The torch operator overload that stands for this callable in traced graphs."},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, reinterpret_cast<void*>(&make)},
                        {Py_tp_init, reinterpret_cast<void*>(&init)},
                        {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                        {Py_tp_dealloc, reinterpret_cast<void*>(&dealloc)},
                        {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_members, kMembers},
                        {0, nullptr}};

PyType_Spec kSpec = {
    "vllm_ir._C.IrOpBase", sizeof(IrOpObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    kSlots};

// Dynamo and inspect read a Python `__call__` off the class; the interpreter uses the slots. A
// class that defines __call__ gets Python's generic slot, so the C one is put back afterwards.
PyObject* use_native_call(PyObject*, PyObject* object) {
  auto* const type = reinterpret_cast<PyTypeObject*>(object);
  if (!PyType_Check(object) || type->tp_vectorcall_offset != offsetof(IrOpObject, vectorcall)) {
    PyErr_SetString(PyExc_TypeError, "use_native_call takes a subclass of IrOpBase");
    return nullptr;
  }
  type->tp_call = PyVectorcall_Call;
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(type);
  Py_RETURN_NONE;
}

PyMethodDef kFunctions[] = {
    {"use_native_call", &use_native_call, METH_O,
     "Give a subclass of IrOpBase that defines __call__ its C call slots back."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void init_irop(PyObject* module) {
  PyObject* const type = PyType_FromSpec(&kSpec);
  if (!type || PyModule_AddObjectRef(module, "IrOpBase", type) < 0 ||
      PyModule_AddFunctions(module, kFunctions) < 0) {
    throw py::error_already_set();
  }
}

}  // namespace vllm_ir
