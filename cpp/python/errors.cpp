// SPDX-License-Identifier: Apache-2.0
#include "cpp/python/errors.h"

#include <torch/csrc/Exceptions.h>

#include <exception>

namespace vllm_ir {
namespace {

const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kValue:
      return "IrValueError";
    case ErrorKind::kType:
      return "IrTypeError";
    case ErrorKind::kRuntime:
      return "IrRuntimeError";
    case ErrorKind::kUnknownName:
      return "UnknownNameError";
    case ErrorKind::kDuplicate:
      return "DuplicateError";
  }
  return "IrError";
}

py::str text_of(const Error& error, const py::module_& errors) {
  const auto* const unknown = dynamic_cast<const UnknownName*>(&error);
  if (!unknown) return py::str(error.what());
  return errors.attr("unknown_name")(unknown->where(), unknown->noun(), unknown->name(),
                                     unknown->known());
}

}  // namespace

void set_python_error(const Error& error) {
  try {
    const auto errors = py::module_::import("vllm_ir.errors");
    const py::object type = errors.attr(class_of(error.kind()));
    PyErr_SetObject(type.ptr(), text_of(error, errors).ptr());
  } catch (py::error_already_set& e) {
    e.restore();  // the classes could not be imported: that error is the one to show
  }
}

void set_python_error_from_current() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_python_error(error);
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
  } catch (...) {
    set_python_error(Error(ErrorKind::kRuntime,
                           "vllm_ir: a C++ entry threw something that is no std::exception. "
                           "Mend the entry."));
  }
}

void throw_pending_python_error() {
  python_error error;
  error.persist();
  throw error;
}

void raise_through_torch(const Error& error) {
  const py::gil_scoped_acquire lock;
  set_python_error(error);
  throw_pending_python_error();
}

}  // namespace vllm_ir
