// SPDX-License-Identifier: Apache-2.0
// The path of one eager call, top to bottom: plain? -> bind -> unpack -> load the table -> select
// -> run. Any doubt on the way hands the caller's own arguments to torch's operator.
#include "cpp/python/irop_call.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>

#include "cpp/dispatch/scope.h"
#include "cpp/dispatch/select.h"
#include "cpp/python/errors.h"
#include "cpp/python/plain_eager.h"
#include "cpp/python/python_body.h"
#include "cpp/torch/argument.h"
#include "cpp/torch/careful.h"
#include "cpp/torch/run.h"

namespace vllm_ir {
namespace {

bool g_ask_unwrapped = false;

PyObject* call_torch(IrOpObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  // A donating call always asks: under export it must be the default overload.
  const bool ask = self->unwrapped && (g_ask_unwrapped || self->donating);
  PyObject* const target = ask ? self->unwrapped : self->torch_op;
  if (!self->donating) return PyObject_Vectorcall(target, args, nargsf, kwnames);
  const EagerDonation donation;
  return PyObject_Vectorcall(target, args, nargsf, kwnames);
}

int find_keyword(const IrOpObject* self, PyObject* keyword) {
  for (int i = 0; i < self->count; ++i) {
    if (self->params[static_cast<size_t>(i)].name == keyword) return i;  // interned, as a rule
  }
  for (int i = 0; i < self->count; ++i) {
    if (PyUnicode_Compare(self->params[static_cast<size_t>(i)].name, keyword) == 0) return i;
  }
  return -1;
}

// Positional form with defaults filled, in `out`. False for what torch should word: too many,
// missing, unknown or repeated arguments.
bool bind(const IrOpObject* self, PyObject* const* args, Py_ssize_t given, PyObject* kwnames,
          PyObject** out) {
  if (given > self->count) return false;
  for (int i = 0; i < self->count; ++i) out[i] = i < given ? args[i] : nullptr;
  const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t k = 0; k < keywords; ++k) {
    const int at = find_keyword(self, PyTuple_GET_ITEM(kwnames, k));
    if (at < 0 || out[at]) return false;
    out[at] = args[given + k];
  }
  for (int i = 0; i < self->count; ++i) {
    if (!out[i]) out[i] = self->params[static_cast<size_t>(i)].fallback;
    if (!out[i]) return false;
  }
  return true;
}

// Exact types only; anything else gets torch's own conversion or error.
inline bool unpack_scalar(PyObject* object, ParamKind kind, Arg& arg) {
  switch (kind) {
    case ParamKind::kFloat:
      // Not an int: Python impls get the object itself, and it must be a float by every route.
      if (!PyFloat_CheckExact(object)) return false;
      arg.tag = Tag::kFloat;
      arg.real = PyFloat_AS_DOUBLE(object);
      return true;
    case ParamKind::kInt: {
      if (!PyLong_CheckExact(object)) return false;
      int overflow = 0;
      arg.tag = Tag::kInt;
      arg.integer = PyLong_AsLongLongAndOverflow(object, &overflow);
      return overflow == 0;
    }
    case ParamKind::kBool:
      arg.tag = Tag::kBool;
      arg.flag = object == Py_True;
      return PyBool_Check(object);
    case ParamKind::kString: {
      if (!PyUnicode_CheckExact(object)) return false;
      Py_ssize_t bytes = 0;
      const char* const text = PyUnicode_AsUTF8AndSize(object, &bytes);
      if (!text) PyErr_Clear();  // a lone surrogate
      return text && arg.set_text(text, static_cast<size_t>(bytes));
    }
    case ParamKind::kDType:
      arg.tag = Tag::kObject;
      return THPDtype_Check(object);
    case ParamKind::kTensor:
    case ParamKind::kOther:
      break;
  }
  return false;
}

// Fills `out`. False when an argument isn't plain.
inline bool unpack(const IrOpObject* self, PyObject* const* objects, Eager mode, Arg* out) {
  uint64_t keys = 0;
  for (int i = 0; i < self->count; ++i) {
    PyObject* const object = objects[i];
    const BoundParam& param = self->params[static_cast<size_t>(i)];
    if (object == Py_None) {
      if (!param.optional) return false;
      out[i].tag = Tag::kNone;
    } else if (param.kind == ParamKind::kTensor) {
      if (!is_plain_tensor(object)) return false;
      const at::Tensor& t = THPVariable_Unpack(object);
      keys |= t.unsafeGetTensorImpl()->key_set().raw_repr();
      if (needs_autograd(t, mode)) return false;
      out[i].tag = Tag::kTensor;
      out[i].tensor = &t;
    } else if (!unpack_scalar(object, param.kind, out[i])) {
      return false;
    }
  }
  return has_plain_keys(keys);
}

class EagerArgs : public TensorArgs {
 public:
  EagerArgs(const Arg* args, PyObject* const* objects, int count)
      : TensorArgs(args, count), objects_(objects) {}

  bool ask(const Impl& impl) {
    const auto* const body = static_cast<const PythonBody*>(impl.body);
    return body->ask(impl, objects_, &(*this)[0], count(), keep_reason_ ? &why_ : nullptr);
  }
  const std::string& refusal(const Impl&) const { return why_; }
  void keep_reason(bool on) { keep_reason_ = on; }

 private:
  PyObject* const* objects_;
  bool keep_reason_ = false;
  std::string why_;
};

bool is_large(const Arg* args, int count) {
  for (int i = 0; i < count; ++i) {
    if (args[i].tag != Tag::kTensor) continue;
    return args[i].tensor->is_cpu() && args[i].tensor->numel() >= kLargeNumel;
  }
  return false;
}

void run_entry(const Entry& entry, const Arg* args, int count, Outputs& out) {
  const bool release =
      entry.gil == Gil::kRelease || (entry.gil == Gil::kReleaseWhenLarge && is_large(args, count));
  if (!release) return entry.call(args, out);
  const py::gil_scoped_release unlocked;
  entry.call(args, out);
}

// Which body of an impl runs: its C++ entry when it has one, or the Python function that tracers
// can look into.
enum class Way : uint8_t { kFastest, kTraceable };

void run_body(const Impl& impl, Way way, const Arg* args, PyObject* const* objects, int count,
              Outputs& out) {
  if (way == Way::kFastest && impl.body->entry) {
    run_entry(*impl.body->entry, args, count, out);
  } else {
    static_cast<const PythonBody*>(impl.body)->call(impl, objects, count, out);
  }
}

// An in-place impl under the default overload: the same run over copies of the activations.
void run_on_copies(const Op& op, const Impl& impl, Way way, const Arg* args,
                   PyObject* const* objects, int count, Outputs& out) {
  std::array<Arg, kMaxParams> copies;
  std::copy(args, args + count, copies.begin());
  Held held;
  clone_activations(op, copies.data(), held);
  std::array<PyObject*, kMaxParams> borrowed;
  std::array<py::object, kMaxParams> owned;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (held[i].defined()) owned[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(held[i]));
    borrowed[i] = owned[i] ? owned[i].ptr() : objects[i];
  }
  run_body(impl, way, copies.data(), borrowed.data(), count, out);
}

void run(const IrOpObject* self, const Impl& impl, Way way, const Arg* args,
         PyObject* const* objects, Outputs& out) {
  const Op& op = *self->op;
  // A Python impl that writes what it was not given to write is found by the version counters.
  const bool watch = !impl.inplace && !impl.body->entry;
  const int64_t before = watch ? sum_of_versions(args, self->count) : 0;
  if (impl.inplace && !self->donating) [[unlikely]] {
    run_on_copies(op, impl, way, args, objects, self->count, out);
  } else {
    run_body(impl, way, args, objects, self->count, out);
  }
  if (watch && sum_of_versions(args, self->count) != before) [[unlikely]] {
    throw Error(ErrorKind::kRuntime,
                op.qualified_name() + "." + impl.provider +
                    ": the implementation modified an argument in place. Work on a copy, or "
                    "register it with inplace=True.");
  }
  if (impl.inplace && self->donating) bump_versions(op, args);
  check_results(op, impl, args, self->count, out, self->donating);
}

PyObject* wrap(Outputs& out) {
  if (out.size() == 1) return THPVariable_Wrap(std::move(out[0]));
  PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(out.size()));
  for (size_t i = 0; tuple && i < out.size(); ++i) {
    PyObject* const item = THPVariable_Wrap(std::move(out[i]));
    if (!item) {
      Py_DECREF(tuple);
      return nullptr;
    }
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), item);
  }
  return tuple;
}

}  // namespace

void set_ask_unwrapped(bool on) noexcept { g_ask_unwrapped = on; }

PyObject* call_irop(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* const self = reinterpret_cast<IrOpObject*>(object);
  const Eager mode = plain_eager();
  if (mode == Eager::kNo) [[unlikely]]
    return call_torch(self, args, nargsf, kwnames);

  const Py_ssize_t given = PyVectorcall_NARGS(nargsf);
  PyObject* bound[kMaxParams];
  PyObject* const* objects = args;
  if (kwnames || given != self->count) {
    if (!bind(self, args, given, kwnames, bound)) return call_torch(self, args, nargsf, kwnames);
    objects = bound;
  }
  Arg unpacked[kMaxParams];
  if (!unpack(self, objects, mode, unpacked)) return call_torch(self, args, nargsf, kwnames);

  try {
    const uint64_t switches = g_switches.load();
    const Table& table = *effective_table(*self->op, switches);
    EagerArgs eager(unpacked, objects, self->count);
    if (needs_care(table, switches)) [[unlikely]] {
      eager.keep_reason(true);
      take_care(*self->op, table, switches, eager);
    }
    const Impl* const impl = select(table, eager);
    Outputs out;
    run(self, *impl, Way::kFastest, unpacked, objects, out);
    return wrap(out);
  } catch (...) {
    set_python_error_from_current();
    return nullptr;
  }
}

namespace {

std::string type_name(PyObject* object) {
  return object == Py_None ? "None" : Py_TYPE(object)->tp_name;
}

[[noreturn]] void wrong_type(const IrOpObject& self, int i, const char* want, PyObject* got) {
  throw Error(ErrorKind::kType, self.op->qualified_name() + ": " +
                                    PyUnicode_AsUTF8(self.params[static_cast<size_t>(i)].name) +
                                    " must be " + want + ", got " + type_name(got) + ".");
}

// What torch would make of a number that isn't of the exact type: numpy's, a bool. Null without an
// error when it isn't a number.
py::object as_number(PyObject* object, ParamKind kind) {
  PyObject* number = nullptr;
  if (kind == ParamKind::kInt && PyIndex_Check(object)) number = PyNumber_Index(object);
  if (kind == ParamKind::kFloat && PyNumber_Check(object) && !PyComplex_Check(object)) {
    number = PyNumber_Float(object);
  }
  if (!number) PyErr_Clear();
  return py::reinterpret_steal<py::object>(number);
}

// A number that must not be asked for its value: asking a symbol adds a guard, a fake tensor
// raises.
bool has_no_value(PyObject* object) {
  return THPVariable_Check(object) || torch::is_symint(object) || torch::is_symfloat(object) ||
         torch::is_symbool(object);
}

// Any tensor will do, fake ones too, and any number that torch takes. `objects` gets the numbers
// that were converted, kept alive by `held`.
void unpack_leniently(const IrOpObject& self, PyObject** objects, py::object* held, Arg* out) {
  for (int i = 0; i < self.count; ++i) {
    const BoundParam& param = self.params[static_cast<size_t>(i)];
    PyObject* const object = objects[i];
    out[i].tag = Tag::kObject;
    if (object == Py_None && (param.optional || param.kind != ParamKind::kTensor)) {
      out[i].tag = Tag::kNone;
    } else if (param.kind == ParamKind::kTensor) {
      if (!THPVariable_Check(object)) wrong_type(self, i, "a Tensor", object);
      out[i].tag = Tag::kTensor;
      out[i].tensor = &THPVariable_Unpack(object);
    } else if (!unpack_scalar(object, param.kind, out[i])) {
      out[i].tag = Tag::kObject;
      const bool number = param.kind == ParamKind::kInt || param.kind == ParamKind::kFloat;
      if (!number || has_no_value(object)) continue;
      held[i] = as_number(object, param.kind);
      const char* const want = param.kind == ParamKind::kInt ? "an int" : "a float";
      if (!held[i] || !unpack_scalar(held[i].ptr(), param.kind, out[i])) {
        wrong_type(self, i, want, object);
      }
      objects[i] = held[i].ptr();
    }
  }
}

// The arguments of a call off the fast path: from a tuple with every parameter.
class LookedAt {
 public:
  LookedAt(const IrOpObject& self, PyObject* tuple) : eager_(make(self, tuple)) {
    eager_.keep_reason(true);
  }
  EagerArgs& args() { return eager_; }
  PyObject* const* objects() const { return objects_.data(); }

 private:
  EagerArgs make(const IrOpObject& self, PyObject* tuple) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != self.count) {
      throw Error(ErrorKind::kType, self.op->qualified_name() + ": selection takes a tuple of " +
                                        std::to_string(self.count) + " arguments.");
    }
    std::copy_n(&PyTuple_GET_ITEM(tuple, 0), self.count, objects_.begin());
    unpack_leniently(self, objects_.data(), held_.data(), unpacked_.data());
    return EagerArgs(unpacked_.data(), objects_.data(), self.count);
  }

  std::array<Arg, kMaxParams> unpacked_;
  std::array<PyObject*, kMaxParams> objects_;
  std::array<py::object, kMaxParams> held_;
  EagerArgs eager_;
};

// Where a gradient is needed native runs, whatever the priority says.
Explanation explain_gradient(const Op& op) {
  Explanation out;
  out.selected = op.find_impl(kNative);
  out.decisions.push_back({out.selected, Status::kSelected, ""});
  for (const Impl* impl : op.impls()) {
    if (impl == out.selected) continue;
    out.decisions.push_back({impl, Status::kRejected,
                             "a gradient is needed, so native runs; torch.no_grad() or "
                             "torch.inference_mode() lets others run"});
  }
  return out;
}

Explanation explain_objects(const IrOpObject& self, PyObject* tuple, Mode mode) {
  LookedAt looked_at(self, tuple);
  if (needs_gradient(&looked_at.args()[0], self.count)) return explain_gradient(*self.op);
  return explain(*self.op, *effective_table(*self.op, g_switches.load(), mode), looked_at.args());
}

PyObject* to_python(const Explanation& explanation) {
  py::list decisions;
  for (const Decision& d : explanation.decisions) {
    decisions.append(py::make_tuple(d.impl->provider, name_of(d.status), d.reason, d.impl->source));
  }
  return py::make_tuple(explanation.selected->provider, decisions).release().ptr();
}

}  // namespace

PyObject* explain_irop(const IrOpObject& self, PyObject* args, Mode mode) {
  return to_python(explain_objects(self, args, mode));
}

PyObject* select_irop(const IrOpObject& self, PyObject* args, const PriorityRequest& request) {
  LookedAt looked_at(self, args);
  const Table& table = *self.op->table_for(request);
  const Explanation explanation = explain(*self.op, table, looked_at.args());
  if (Switches::has(g_switches.load(), Switch::kStrict)) insist(*self.op, table, explanation);
  return to_python(explanation);
}

PyObject* peek_irop(const IrOpObject& self, PyObject* args, Mode mode) {
  const Explanation explanation = explain_objects(self, args, mode);
  return py::str(explanation.selected->provider).release().ptr();
}

PyObject* verdict_irop(const IrOpObject& self, const char* provider, PyObject* args) {
  const Impl* const impl = self.op->find_impl(provider);
  if (!impl)
    throw UnknownName(self.op->qualified_name(), "provider", provider, self.op->providers());
  LookedAt looked_at(self, args);
  const Clause* clause = nullptr;
  const bool accepted = accepts(*impl, looked_at.args(), clause);
  std::string reason;
  if (!accepted) {
    reason = clause ? why_not(*clause, looked_at.args()) : looked_at.args().refusal(*impl);
  }
  return py::make_tuple(accepted, reason).release().ptr();
}

PyObject* run_unwrapped(const IrOpObject& self, PyObject* args, Mode mode) {
  LookedAt looked_at(self, args);
  EagerArgs& eager = looked_at.args();
  const Op& op = *self.op;
  const Impl* impl = nullptr;
  if (needs_gradient(&eager[0], self.count)) {
    impl = select_native(op);
  } else {
    const uint64_t switches = g_switches.load();
    const Table& table = *effective_table(op, switches, mode);
    if (needs_care(table, switches)) take_care(op, table, switches, eager);
    impl = select(table, eager);
  }
  Outputs out;
  run(&self, *impl, Way::kTraceable, &eager[0], looked_at.objects(), out);
  return wrap(out);
}

}  // namespace vllm_ir
