// SPDX-License-Identifier: Apache-2.0
// Counterparts for bench_dispatch.py. The same bodies are reached by three routes: a hand-written
// METH_FASTCALL (the shortest way from Python to C++, the floor), torch.ops, and an impl of a
// vllm_ir op. So a difference between two rows is the route and nothing else.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "vllm_ir/entry.h"

namespace {

using at::Tensor;
using OptionalInt = std::optional<int64_t>;
using Pair = std::tuple<Tensor, Tensor>;

// One float32 row; `s` is what the norm is taken of, and may be `out`.
void norm_row(const float* s, const float* weight, float* out, int64_t width, float epsilon) {
  float sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += s[i] * s[i];
  const float scale = 1 / std::sqrt(sum / static_cast<float>(width) + epsilon);
  for (int64_t i = 0; i < width; ++i) out[i] = s[i] * scale * (weight ? weight[i] : 1);
}

const float* data_or_null(const Tensor* weight) {
  return weight ? weight->const_data_ptr<float>() : nullptr;
}

// The body of the call-cost rows: no work, no allocation.
Tensor noop(const Tensor&, const Tensor*, double, OptionalInt) {
  static const Tensor result = at::detail::empty_cpu({1, 16}, at::kFloat);
  return result;
}

Tensor& norm_into(Tensor& out, const Tensor& x, const Tensor* weight, double epsilon) {
  const int64_t width = x.size(-1);
  const float* from = x.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  for (int64_t at = 0; at < x.numel(); at += width)
    norm_row(from + at, data_or_null(weight), to + at, width, static_cast<float>(epsilon));
  return out;
}

// The body of the end-to-end rows: allocates as an idiomatic torch kernel does.
Tensor rms(const Tensor& x, const Tensor* weight, double epsilon, OptionalInt) {
  Tensor out = at::empty_like(x);
  return norm_into(out, x, weight, epsilon);
}

// The same, allocating below torch's dispatcher.
Tensor rms_lean(const Tensor& x, const Tensor* weight, double epsilon, OptionalInt) {
  Tensor out = at::detail::empty_cpu(x.sizes(), x.scalar_type());
  return norm_into(out, x, weight, epsilon);
}

// Writes the norm into x and the sum into the residual, and returns both.
Pair fused_add_(const Tensor& x, const Tensor& x_residual, const Tensor* weight, double epsilon,
                OptionalInt) {
  const int64_t width = x.size(-1);
  float* normed = x.mutable_data_ptr<float>();
  float* sum = x_residual.mutable_data_ptr<float>();
  for (int64_t at = 0; at < x.numel(); at += width) {
    for (int64_t i = at; i < at + width; ++i) sum[i] += normed[i];
    norm_row(sum + at, data_or_null(weight), normed + at, width, static_cast<float>(epsilon));
  }
  return {x, x_residual};
}

template <auto Body>
PyObject* fastcall(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count < 3 || count > 4 || !THPVariable_Check(args[0]) || !PyFloat_CheckExact(args[2]) ||
      (args[1] != Py_None && !THPVariable_Check(args[1])))
    throw torch::TypeError("expected (Tensor, Tensor or None, float, int or None = None)");
  OptionalInt variance_size;
  if (count == 4 && args[3] != Py_None) variance_size = PyLong_AsLongLong(args[3]);
  const Tensor* weight = args[1] == Py_None ? nullptr : &THPVariable_Unpack(args[1]);
  return THPVariable_Wrap(
      Body(THPVariable_Unpack(args[0]), weight, PyFloat_AS_DOUBLE(args[2]), variance_size));
  END_HANDLE_TH_ERRORS
}

// The torch ops take the optional tensor as torch hands it out.
using OptionalTensor = std::optional<Tensor>;
const Tensor* pointer(const OptionalTensor& t) { return t ? &*t : nullptr; }

template <auto Body>
Tensor norm_op(const Tensor& x, const OptionalTensor& weight, double epsilon, OptionalInt size) {
  return Body(x, pointer(weight), epsilon, size);
}

// A functional torch op over an in-place kernel has to clone.
Pair fused_add_op(const Tensor& x, const Tensor& x_residual, const OptionalTensor& weight,
                  double epsilon, OptionalInt size) {
  return fused_add_(x.clone(), x_residual.clone(), pointer(weight), epsilon, size);
}

void fused_add_inplace_op(const Tensor& x, const Tensor& x_residual, const OptionalTensor& weight,
                          double epsilon, OptionalInt size) {
  fused_add_(x, x_residual, pointer(weight), epsilon, size);
}

TORCH_LIBRARY(vllm_ir_bench, m) {
  m.def("noop(Tensor x, Tensor? weight, float epsilon, int? variance_size=None) -> Tensor");
  m.def("rms(Tensor x, Tensor? weight, float epsilon, int? variance_size=None) -> Tensor");
  m.def(
      "fused_add(Tensor x, Tensor x_residual, Tensor? weight, float epsilon, "
      "int? variance_size=None) -> (Tensor, Tensor)");
  m.def(
      "fused_add_(Tensor(a!) x, Tensor(b!) x_residual, Tensor? weight, float epsilon, "
      "int? variance_size=None) -> ()");
}

TORCH_LIBRARY_IMPL(vllm_ir_bench, CPU, m) {
  m.impl("noop", &norm_op<noop>);
  m.impl("rms", &norm_op<rms>);
  m.impl("fused_add", &fused_add_op);
  m.impl("fused_add_", &fused_add_inplace_op);
}

PyCFunction as_method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"noop", as_method(fastcall<noop>), METH_FASTCALL, "no work"},
    {"rms", as_method(fastcall<rms>), METH_FASTCALL, "float32 rms_norm over at::empty_like"},
    {"rms_lean", as_method(fastcall<rms_lean>), METH_FASTCALL, "the same over empty_cpu"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "dispatch_bench",
                      nullptr,
                      -1,
                      methods,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

VLLM_IR_ENTRY_TABLE(vllm_ir::entry<&noop>("vllm_ir_bench::noop"),
                    vllm_ir::entry<&rms>("vllm_ir_bench::rms"),
                    vllm_ir::entry<&rms_lean>("vllm_ir_bench::rms_lean"),
                    vllm_ir::entry<&fused_add_>("vllm_ir_bench::fused_add_"))

PyMODINIT_FUNC PyInit_dispatch_bench() { return PyModule_Create(&module); }
