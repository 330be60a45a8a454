// SPDX-License-Identifier: Apache-2.0
#include "cpp/python/donated_inputs.h"

#include <ATen/ops/clone.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "cpp/python/errors.h"

namespace vllm_ir {
namespace {

// Elements of a storage from the first to one past the last that a tensor names.
struct Extent {
  const void* storage = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

Extent extent_of(const at::Tensor& t) {
  const auto* const impl = t.unsafeGetTensorImpl();
  if (!impl->has_storage() || t.layout() != at::kStrided) return {};
  Extent out{impl->unsafe_storage().unsafeGetStorageImpl(), 0, INT64_MAX};
  if (impl->has_symbolic_sizes_strides()) return out;  // all of it, for what anybody knows
  const int64_t item = static_cast<int64_t>(impl->itemsize());
  int64_t last = 0;
  for (int64_t d = 0; d < impl->dim(); ++d) {
    if (impl->sizes()[static_cast<size_t>(d)] == 0) return {};
    last += (impl->sizes()[static_cast<size_t>(d)] - 1) * impl->strides()[static_cast<size_t>(d)];
  }
  out.begin = impl->storage_offset() * item;
  out.end = out.begin + (last + 1) * item;
  return out;
}

bool meet(const Extent& a, const Extent& b) {
  return a.storage && a.storage == b.storage && a.begin < b.end && b.begin < a.end;
}

bool meets_another(PyObject* arguments, Py_ssize_t position) {
  const Extent mine = extent_of(THPVariable_Unpack(PyTuple_GET_ITEM(arguments, position)));
  if (!mine.storage) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    PyObject* const other = PyTuple_GET_ITEM(arguments, i);
    if (i == position || !THPVariable_Check(other)) continue;
    if (meet(mine, extent_of(THPVariable_Unpack(other)))) return true;
  }
  return false;
}

PyObject* keep_apart(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
    return PyErr_Format(PyExc_TypeError, "keep_apart takes two tuples");
  }
  try {
    PyObject* const arguments = args[0];
    py::object out = py::reinterpret_borrow<py::object>(arguments);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(args[1]); ++k) {
      const Py_ssize_t i = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], k));
      if (i < 0 || i >= PyTuple_GET_SIZE(arguments)) {
        return PyErr_Format(PyExc_IndexError, "keep_apart: no argument %zd", i);
      }
      PyObject* const donated = PyTuple_GET_ITEM(arguments, i);
      if (!THPVariable_Check(donated) || !meets_another(arguments, i)) continue;
      if (out.ptr() == arguments) out = py::tuple(py::list(out));
      py::object copy = py::cast(at::clone(THPVariable_Unpack(donated)));
      // The tuple is new and nobody else has seen it.
      if (PyTuple_SetItem(out.ptr(), i, copy.release().ptr()) < 0) return nullptr;
    }
    return out.release().ptr();
  } catch (...) {
    set_python_error_from_current();
    return nullptr;
  }
}

PyMethodDef kFunctions[] = {
    {"keep_apart", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&keep_apart)),
     METH_FASTCALL, "keep_apart(arguments, positions) -> arguments"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void init_donated_inputs(PyObject* module) {
  if (PyModule_AddFunctions(module, kFunctions) < 0) throw py::error_already_set();
}

}  // namespace vllm_ir
