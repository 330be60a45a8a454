// SPDX-License-Identifier: Apache-2.0
// The Python side of an impl: its function and, when it has one, its supports_args callable.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "cpp/dispatch/op.h"
#include "cpp/torch/body.h"
#include "cpp/torch/memo.h"

namespace vllm_ir {

struct PythonBody final : Body {
  // `op` has its torch operator already. `callable` is null or what to ask.
  PythonBody(const Op& op, py::object function, py::object callable, bool memoise);

  void call(const Impl& impl, c10::ArrayRef<c10::IValue> args, Outputs& out) const override;
  bool ask(const Impl& impl, c10::ArrayRef<c10::IValue> args, std::string* why) const override;

  // The same with Python's lock held and the arguments as Python objects, defaults filled. `args`
  // are the unpacked ones. Errors are thrown as python_error.
  void call(const Impl& impl, PyObject* const* objects, int count, Outputs& out) const;
  bool ask(const Impl& impl, PyObject* const* objects, const Arg* args, int count,
           std::string* why) const;

 private:
  enum class Verdict : uint8_t { kYes, kNo, kMisbehaved };
  Verdict ask_now(const Impl& impl, PyObject* const* objects, const Arg* args, int count,
                  std::string* why) const;
  // The callable misbehaved, which is a no: a notice, once for each kind (the class of what it
  // raised or returned), or an error in strict mode.
  Verdict misbehaved(const Impl& impl, const std::string& kind, const std::string& reason,
                     std::string* why) const;

  const Op& op_;
  const py::object function_;
  const py::object callable_;              // null: accepts everything, or has a rule
  const std::vector<c10::TypePtr> types_;  // of the torch operator's arguments
  const bool memoise_;
  mutable Memo memo_;
};

// Python functions that the bodies call on cold paths; installed once by the facade.
struct FacadeHooks {
  PyObject* impl_failed = nullptr;          // (op, provider, exception) -> exception to raise
  PyObject* callable_misbehaved = nullptr;  // (op, provider, reason) -> None
  // (op, priority_not_set, native_appended, unreachable providers, the one before them) -> None
  PyObject* notice = nullptr;
  PyObject* trace = nullptr;  // (op, decision) -> None
  PyObject* alias = nullptr;  // (op, provider, parameter) -> None
};
extern FacadeHooks g_facade;

}  // namespace vllm_ir
