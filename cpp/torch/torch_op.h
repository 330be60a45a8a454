// SPDX-License-Identifier: Apache-2.0
// The torch operators of an op: torch.ops.vllm_ir.<op>.default, .maybe_inplace and .donated. They
// are the definition of everything that is not a plain eager call; their kernels walk the same
// table. `donated` means what default means, and tells a compiler that nobody will look at the
// activations again: it stands for maybe_inplace in functional graphs.
#pragma once

#include <string>

#include "cpp/dispatch/error.h"
#include "cpp/dispatch/op.h"

namespace vllm_ir {

// Define the operators. `schema` is "(Tensor x, ...) -> Tensor"; `donating_schema` has the alias
// annotations and is empty for an op without maybe_inplace. Throws Error and defines nothing when
// the schema is wrong or torch already has an operator of this name.
void define_torch_op(Op& op, const std::string& schema, const std::string& donating_schema);

// While one lives, the next maybe_inplace operator of this thread works in place: an eager call
// that goes through torch's operator, for a profiler say, still donates. A graph that calls the
// operator itself doesn't: see SelectingKernel.
class EagerDonation {
 public:
  EagerDonation() noexcept;
  ~EagerDonation();
  EagerDonation(const EagerDonation&) = delete;
  EagerDonation& operator=(const EagerDonation&) = delete;
};

// Notices that a call may owe (a priority that was never set, a traced decision), given by the
// layer that can log. Installed once, before any call.
struct CallHooks {
  // A table's one-time notice is due.
  void (*notice)(const Op&, const Table&) = nullptr;
  // Tracing is on and this decision is new.
  void (*trace)(const Op&, const std::string& decision) = nullptr;
  // Throws the error again as one that keeps its Python class on the way through torch.
  void (*raise)(const Error&) = nullptr;
};
void set_call_hooks(CallHooks hooks) noexcept;
const CallHooks& call_hooks() noexcept;

}  // namespace vllm_ir
