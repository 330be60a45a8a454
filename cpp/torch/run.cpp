// SPDX-License-Identifier: Apache-2.0
#include "cpp/torch/run.h"

#include <ATen/ops/clone.h>

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
      const bool may_alias = donating && params[i].activation;
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

void bump_versions(const Op& op, const Arg* args) {
  const auto& params = op.params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].activation || args[i].tag != Tag::kTensor) continue;
    if (!args[i].tensor->is_inference()) args[i].tensor->unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace vllm_ir
