// SPDX-License-Identifier: Apache-2.0
// How an impl runs. A C++ provider has an entry; a Python one is reached through the virtual
// functions, which cpp/python implements, so that this layer needs no Python header.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

#include "cpp/dispatch/impl.h"
#include "cpp/torch/entry.h"

namespace vllm_ir {

struct Body {
  virtual ~Body() = default;

  // Run the Python function on torch values; takes Python's lock.
  virtual void call(const Impl& impl, c10::ArrayRef<c10::IValue> args, Outputs& out) const = 0;
  // Ask the Python callable. `why` gets the reason of a refusal, when not null.
  virtual bool ask(const Impl& impl, c10::ArrayRef<c10::IValue> args, std::string* why) const = 0;

  const Entry* entry = nullptr;
};

}  // namespace vllm_ir
