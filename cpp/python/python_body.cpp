// SPDX-License-Identifier: Apache-2.0
#include "cpp/python/python_body.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <vector>

#include "cpp/dispatch/error.h"
#include "cpp/dispatch/switches.h"
#include "cpp/python/errors.h"
#include "cpp/torch/run.h"

namespace vllm_ir {

FacadeHooks g_facade;

namespace {

constexpr const char* kSaidNo = "supports_args returned False";

std::string where(const Op& op, const Impl& impl) {
  return op.qualified_name() + "." + impl.provider;
}

std::string type_name(PyObject* object) { return Py_TYPE(object)->tp_name; }

// Torch carries dtypes, layouts and memory formats as numbers; the schema says what they are.
py::object to_python(const c10::IValue& value, const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  const c10::TypeKind kind = (optional ? optional->getElementType() : type)->kind();
  const auto borrowed = [](void* object) {
    return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(object));
  };
  if (value.isInt()) {
    if (kind == c10::TypeKind::ScalarTypeType) {
      return borrowed(torch::getTHPDtype(static_cast<at::ScalarType>(value.toInt())));
    }
    if (kind == c10::TypeKind::LayoutType) {
      return borrowed(torch::getTHPLayout(static_cast<at::Layout>(value.toInt())));
    }
    if (kind == c10::TypeKind::MemoryFormatType) {
      return borrowed(
          torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(value.toInt())));
    }
  }
  return torch::jit::toPyObject(value);
}

std::vector<c10::TypePtr> argument_types(const Op& op) {
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(("vllm_ir::" + op.name()).c_str(), "");
  std::vector<c10::TypePtr> types;
  for (const c10::Argument& a : handle.schema().arguments()) types.push_back(a.real_type());
  return types;
}

// Python objects for torch values, kept alive together.
class Objects {
 public:
  Objects(const std::vector<c10::TypePtr>& types, c10::ArrayRef<c10::IValue> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      held_.push_back(to_python(values[i], types[i]));
      pointers_.push_back(held_.back().ptr());
    }
  }
  PyObject* const* data() const { return pointers_.data(); }
  int size() const { return static_cast<int>(pointers_.size()); }

 private:
  std::vector<py::object> held_;
  std::vector<PyObject*> pointers_;
};

void push_tensor(const Op& op, const Impl& impl, PyObject* object, Outputs& out) {
  if (!THPVariable_Check(object)) {
    throw Error(ErrorKind::kType, where(op, impl) + ": must return a Tensor for each output, got " +
                                      type_name(object) + ". Mend the implementation.");
  }
  out.push(at::Tensor(THPVariable_Unpack(object)));
}

void unpack_result(const Op& op, const Impl& impl, PyObject* result, Outputs& out) {
  const auto want = static_cast<Py_ssize_t>(op.tensor_outputs());
  const bool sequence = PyTuple_Check(result) || PyList_Check(result);
  if (!sequence) {
    if (want != 1) {
      throw Error(ErrorKind::kType, where(op, impl) + ": must return " + std::to_string(want) +
                                        " tensors, got " + type_name(result) +
                                        ". Mend the implementation.");
    }
    return push_tensor(op, impl, result, out);
  }
  const Py_ssize_t got = PySequence_Fast_GET_SIZE(result);
  if (got != want) {
    throw Error(ErrorKind::kType, where(op, impl) + ": must return " + std::to_string(want) +
                                      " tensor(s), got " + std::to_string(got) +
                                      ". Mend the implementation.");
  }
  for (Py_ssize_t i = 0; i < got; ++i) {
    push_tensor(op, impl, PySequence_Fast_GET_ITEM(result, i), out);
  }
}

// The pending Python error of an impl's body, with op and provider in it where that helps.
[[noreturn]] void throw_impl_error(const Op& op, const Impl& impl) {
  if (impl.provider != kNative && g_facade.impl_failed) {
    const py::error_already_set pending;
    // Before Python 3.12 the traceback is kept apart from the exception.
    if (pending.trace()) PyException_SetTraceback(pending.value().ptr(), pending.trace().ptr());
    const py::object wrapped = py::reinterpret_borrow<py::function>(g_facade.impl_failed)(
        op.name(), impl.provider, pending.value());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(wrapped.ptr())), wrapped.ptr());
  }
  throw_pending_python_error();
}

struct Raised {
  std::string kind;  // "ValueError"
  std::string text;
};

// What the pending exception says; it is cleared. Anything but an Exception (KeyboardInterrupt,
// SystemExit) passes through.
Raised take_pending() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw_pending_python_error();
  const py::error_already_set pending;
  Raised out{type_name(pending.value().ptr()), ""};
  try {
    out.text = py::str(pending.value());
  } catch (const py::error_already_set&) {
    out.text = "<its text can't be printed>";
  }
  constexpr size_t kLongest = 500;
  if (out.text.size() > kLongest) out.text = out.text.substr(0, kLongest) + " ...";
  return out;
}

}  // namespace

PythonBody::PythonBody(const Op& op, py::object function, py::object callable, bool memoise)
    : op_(op),
      function_(std::move(function)),
      callable_(std::move(callable)),
      types_(argument_types(op)),
      memoise_(memoise) {}

void PythonBody::call(const Impl& impl, PyObject* const* objects, int count, Outputs& out) const {
  const auto result = py::reinterpret_steal<py::object>(
      PyObject_Vectorcall(function_.ptr(), objects, static_cast<size_t>(count), nullptr));
  if (!result) throw_impl_error(op_, impl);
  unpack_result(op_, impl, result.ptr(), out);
}

void PythonBody::call(const Impl& impl, c10::ArrayRef<c10::IValue> args, Outputs& out) const {
  const py::gil_scoped_acquire lock;
  const Objects objects(types_, args);
  call(impl, objects.data(), objects.size(), out);
}

PythonBody::Verdict PythonBody::misbehaved(const Impl& impl, const std::string& kind,
                                           const std::string& reason, std::string* why) const {
  if (Switches::has(g_switches.load(), Switch::kStrict)) {
    throw Error(ErrorKind::kRuntime, where(op_, impl) + ": strict mode: " + reason + ".");
  }
  if (why) *why = reason;
  if (op_.first_time("callable:" + impl.provider + ":" + kind) && g_facade.callable_misbehaved) {
    py::reinterpret_borrow<py::function>(g_facade.callable_misbehaved)(op_.name(), impl.provider,
                                                                       reason);
  }
  return Verdict::kMisbehaved;
}

PythonBody::Verdict PythonBody::ask_now(const Impl& impl, PyObject* const* objects, const Arg* args,
                                        int count, std::string* why) const {
  const int64_t before = sum_of_versions(args, count);
  const auto verdict = py::reinterpret_steal<py::object>(
      PyObject_Vectorcall(callable_.ptr(), objects, static_cast<size_t>(count), nullptr));
  if (sum_of_versions(args, count) != before) {
    PyErr_Clear();
    throw Error(ErrorKind::kRuntime,
                where(op_, impl) +
                    ": supports_args modified one of its arguments in place. It may only look.");
  }
  if (!verdict) {
    const Raised raised = take_pending();
    return misbehaved(impl, raised.kind, "supports_args raised " + raised.kind + ": " + raised.text,
                      why);
  }
  if (verdict.ptr() == Py_True) return Verdict::kYes;
  if (verdict.ptr() == Py_False) {
    if (why) *why = kSaidNo;
    return Verdict::kNo;
  }
  const std::string kind = type_name(verdict.ptr());
  return misbehaved(impl, kind, "supports_args returned " + kind + ", not a bool", why);
}

bool PythonBody::ask(const Impl& impl, PyObject* const* objects, const Arg* args, int count,
                     std::string* why) const {
  Memo::Key key;
  const bool remember = memoise_ && Memo::make_key(args, count, key);
  if (remember) {
    if (const auto known = memo_.find(key)) {
      if (why && !*known) *why = kSaidNo;
      return *known;
    }
  }
  const Verdict verdict = ask_now(impl, objects, args, count, why);
  // A no that came from an error is not a fact about the arguments.
  if (remember && verdict != Verdict::kMisbehaved) memo_.store(key, verdict == Verdict::kYes);
  return verdict == Verdict::kYes;
}

bool PythonBody::ask(const Impl& impl, c10::ArrayRef<c10::IValue> args, std::string* why) const {
  const py::gil_scoped_acquire lock;
  const Objects objects(types_, args);
  std::vector<Arg> unpacked(args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    unpacked[i].tag = Tag::kObject;  // no memo on this path; tensors only for their versions
    if (!args[i].isTensor()) continue;
    unpacked[i].tag = Tag::kTensor;
    unpacked[i].tensor = &args[i].toTensor();
  }
  return ask_now(impl, objects.data(), unpacked.data(), objects.size(), why) == Verdict::kYes;
}

}  // namespace vllm_ir
