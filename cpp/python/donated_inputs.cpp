// SPDX-License-Identifier: Apache-2.0
#include "cpp/python/donated_inputs.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <numeric>

#include "cpp/python/errors.h"

namespace vllm_ir {
namespace {

// Where a tensor lies in its storage, in elements. A tensor whose innermost stride is 1 and whose
// other strides are multiples of one pitch is a range of columns in rows of that pitch.
struct Place {
  const void* storage = nullptr;
  int64_t item = 0;
  int64_t begin = 0;
  int64_t end = INT64_MAX;  // one past the last element
  int64_t cols = 0;         // of the innermost dimension
  int64_t pitch = 0;        // 0: not known to be columns
};

int64_t pitch_of(const c10::TensorImpl& t) {
  const auto sizes = t.sizes(), strides = t.strides();
  const size_t last = sizes.size() - 1;
  if (sizes[last] > 1 && strides[last] != 1) return 0;
  int64_t pitch = 0;
  for (size_t d = 0; d < last; ++d) {
    if (sizes[d] > 1) pitch = std::gcd(pitch, strides[d]);
  }
  return pitch;
}

Place place_of(const at::Tensor& t) {
  const auto& impl = *t.unsafeGetTensorImpl();
  if (!impl.has_storage() || t.layout() != at::kStrided) return {};
  Place out;
  out.storage = impl.unsafe_storage().unsafeGetStorageImpl();
  out.item = static_cast<int64_t>(impl.itemsize());
  if (impl.has_symbolic_sizes_strides()) return out;  // all of it, for what anybody knows
  if (impl.numel() == 0) return {};
  out.begin = out.end = impl.storage_offset();
  for (size_t d = 0; d < impl.sizes().size(); ++d) {
    out.end += (impl.sizes()[d] - 1) * impl.strides()[d];
  }
  ++out.end;
  if (impl.dim() > 0) {
    out.cols = impl.sizes().back();
    out.pitch = pitch_of(impl);
  }
  return out;
}

// Other columns of the same rows: the parts of one projection, say.
bool other_columns(const Place& a, const Place& b) {
  if (a.pitch == 0 || a.pitch != b.pitch || a.item != b.item) return false;
  const int64_t left = a.begin % a.pitch, right = b.begin % b.pitch;
  const bool inside = left + a.cols <= a.pitch && right + b.cols <= b.pitch;
  return inside && (left + a.cols <= right || right + b.cols <= left);
}

bool meet(const Place& a, const Place& b) {
  if (!a.storage || a.storage != b.storage) return false;
  if (a.item == b.item && (a.end <= b.begin || b.end <= a.begin)) return false;
  return !other_columns(a, b);
}

bool meets_another(PyObject* arguments, Py_ssize_t position) {
  const Place mine = place_of(THPVariable_Unpack(PyTuple_GET_ITEM(arguments, position)));
  if (!mine.storage) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    PyObject* const other = PyTuple_GET_ITEM(arguments, i);
    if (i == position || !THPVariable_Check(other)) continue;
    if (meet(mine, place_of(THPVariable_Unpack(other)))) return true;
  }
  return false;
}

// The tensor in memory of its own, with the same strides and offset: the code was made for those.
at::Tensor moved(const at::Tensor& t) {
  const Place place = place_of(t);
  if (place.end == INT64_MAX) return at::clone(t);
  const int64_t extent = place.end - place.begin;
  const at::Tensor memory = at::empty({place.end}, t.options());
  memory.narrow(0, place.begin, extent).copy_(t.as_strided({extent}, {1}, place.begin));
  return memory.as_strided(t.sizes(), t.strides(), place.begin);
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
      py::object copy = py::cast(moved(THPVariable_Unpack(donated)));
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
