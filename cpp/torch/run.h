// SPDX-License-Identifier: Apache-2.0
// What surrounds the run of a chosen impl, the same for an eager call and for a torch operator:
// clones in front of an in-place impl, the check that no result is an alias of an input, and the
// version counters of donated tensors.
#pragma once

#include <array>

#include "cpp/dispatch/op.h"
#include "cpp/torch/entry.h"

namespace vllm_ir {

// Copies of the activations, alive as long as the call.
using Held = std::array<at::Tensor, kMaxParams>;

// Point the activations in `args` at fresh copies.
void clone_activations(const Op& op, Arg* args, Held& held);

// Called with an op and impl whose result was an alias of `param` and was copied; once each.
using AliasNotice = void (*)(const Op&, const Impl&, const Param&);
void set_alias_notice(AliasNotice notice) noexcept;

// A default overload never returns memory that the caller still holds: such a result is replaced
// by a copy. `args` are the caller's arguments, before any clone.
void copy_aliases_slow(const Op& op, const Impl& impl, const Arg* args, Outputs& out,
                       bool donating);
// Throws when a result is undefined.
[[noreturn]] void undefined_result(const Op& op, const Impl& impl);
inline void check_results(const Op& op, const Impl& impl, const Arg* args, int count, Outputs& out,
                          bool donating) {
  bool found = false;
  for (size_t o = 0; o < out.size(); ++o) {
    if (!out[o].defined()) [[unlikely]]
      undefined_result(op, impl);
    const auto* const mine = out[o].unsafeGetTensorImpl();
    const bool owns = mine->has_storage();
    const void* const storage = owns ? mine->unsafe_storage().unsafeGetStorageImpl() : nullptr;
    for (int i = 0; i < count; ++i) {
      if (args[i].tag != Tag::kTensor) continue;
      const auto* const theirs = args[i].tensor->unsafeGetTensorImpl();
      found |= mine == theirs || (owns && theirs->has_storage() &&
                                  theirs->unsafe_storage().unsafeGetStorageImpl() == storage);
    }
  }
  if (found) [[unlikely]]
    copy_aliases_slow(op, impl, args, out, donating);
}

// Whether autograd must see this tensor: a gradient is needed, or a forward-mode tangent is there,
// which lives on under no_grad.
inline bool needs_gradient(const at::Tensor& t, bool grad_mode) {
  if (t.unsafeGetTensorImpl()->autograd_meta() == nullptr) return false;
  return (grad_mode && t.requires_grad()) || t._fw_grad(/*level=*/0).defined();
}
bool needs_gradient(const Arg* args, int count);
// Native, counted as the choice that a gradient made.
const Impl* select_native(const Op& op);

// The version counters of all tensors added up: a change means that one was written. Inference
// tensors have none.
int64_t sum_of_versions(const Arg* args, int count);

// Tell autograd that the donated tensors were written.
void bump_versions(const Op& op, const Arg* args);

}  // namespace vllm_ir
