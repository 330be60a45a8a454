// SPDX-License-Identifier: Apache-2.0
// The Python side of an impl: its function and, when it has one, its supports_args callable.
#pragma once

#include <Python.h>

#include <string>

#include "cpp/dispatch/op.h"
#include "cpp/torch/body.h"
#include "cpp/torch/memo.h"

namespace vllm_ir {

struct PythonBody final : Body {
  // Takes its own references, kept for ever as impls are.
  PythonBody(const Op& op, PyObject* function, PyObject* callable, bool memoise);

  void call(const Impl& impl, c10::ArrayRef<c10::IValue> args, Outputs& out) const override;
  bool ask(const Impl& impl, c10::ArrayRef<c10::IValue> args, std::string* why) const override;

  // The same with Python's lock held and the arguments as Python objects, defaults filled. `args`
  // are the unpacked ones. Errors are thrown as python_error.
  void call(const Impl& impl, PyObject* const* objects, int count, Outputs& out) const;
  bool ask(const Impl& impl, PyObject* const* objects, const Arg* args, int count,
           std::string* why) const;

 private:
  bool ask_now(const Impl& impl, PyObject* const* objects, const Arg* args, int count,
               std::string* why) const;
  // Says no because the callable misbehaved: a notice, once, or an error in strict mode.
  bool refuse(const Impl& impl, const std::string& reason, std::string* why) const;

  const Op& op_;
  PyObject* const function_;
  PyObject* const callable_;  // null: accepts everything, or has a rule
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
