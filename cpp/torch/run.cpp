// SPDX-License-Identifier: Apache-2.0
#include "cpp/torch/run.h"

#include <ATen/ops/clone.h>
#include <c10/core/AutogradState.h>

#include <algorithm>

#include "cpp/dispatch/error.h"

namespace vllm_ir {
namespace {

AliasNotice g_alias_notice = nullptr;

}  // namespace

void set_alias_notice(AliasNotice notice) noexcept { g_alias_notice = notice; }

void clone_activations(const Op& op, Arg* args, Held& held) {
  const auto& params = op.params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].activation || args[i].tag != Tag::kTensor) continue;
    held[i] = at::clone(*args[i].tensor);
    args[i].tensor = &held[i];
  }
}

void copy_aliases_slow(const Op& op, const Impl& impl, const Arg* args, Outputs& out,
                       bool donating) {
  const auto& params = op.params();
  for (size_t o = 0; o < out.size(); ++o) {
    for (size_t i = 0; i < params.size(); ++i) {
      const bool may_alias = donating && impl.inplace && params[i].activation;
      if (args[i].tag != Tag::kTensor || may_alias || !out[o].is_alias_of(*args[i].tensor)) {
        continue;
      }
      out[o] = at::clone(out[o]);
      // Native may return its input legally, x.to(x.dtype) for one; a provider should know.
      const bool tell = impl.provider != kNative && g_alias_notice;
      if (tell && op.first_time("alias:" + impl.provider)) g_alias_notice(op, impl, params[i]);
      break;
    }
  }
}

bool needs_gradient(const Arg* args, int count) {
  const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
  return std::any_of(args, args + count, [&](const Arg& arg) {
    return arg.tag == Tag::kTensor && needs_gradient(*arg.tensor, grad_mode);
  });
}

const Impl* select_native(const Op& op) {
  const Impl* const native = op.find_impl(kNative);
  op.gradient_calls.fetch_add(1, std::memory_order_relaxed);
  native->selected.fetch_add(1, std::memory_order_relaxed);
  return native;
}

int64_t sum_of_versions(const Arg* args, int count) {
  int64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    if (args[i].tag != Tag::kTensor || args[i].tensor->is_inference()) continue;
    sum += args[i].tensor->unsafeGetTensorImpl()->version_counter().current_version();
  }
  return sum;
}

void undefined_result(const Op& op, const Impl& impl) {
  throw Error(ErrorKind::kType, op.qualified_name() + "." + impl.provider +
                                    ": must return a Tensor for each output, got an undefined "
                                    "one. Mend the implementation.");
}

void bump_versions(const Op& op, const Arg* args) {
  const auto& params = op.params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].activation || args[i].tag != Tag::kTensor) continue;
    if (!args[i].tensor->is_inference()) args[i].tensor->unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace vllm_ir
