// SPDX-License-Identifier: Apache-2.0
// One way to run an op. An impl is registered once and lives for ever: a running call may hold it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cpp/dispatch/rule.h"
#include "cpp/dispatch/schema.h"

namespace vllm_ir {

enum class Accepts : uint8_t { kAlways, kRule, kCallable };

// How to run the impl and how to ask its callable; defined by the layer that registers impls. The
// dispatch core only carries the pointer.
struct Body;

struct ImplSpec {
  std::string provider;
  bool supported = true;
  std::string unsupported_reason;  // printed by explain when not supported
  Accepts accepts = Accepts::kAlways;
  std::vector<ClauseSpec> clauses;  // with kRule
  bool inplace = false;
  bool batch_invariant = false;
  Source source;
  Body* body = nullptr;
};

struct Impl {
  Impl(ImplSpec spec, const std::vector<Param>& params, const std::string& op_name)
      : provider(std::move(spec.provider)),
        supported(spec.supported),
        unsupported_reason(spec.supported                    ? ""
                           : spec.unsupported_reason.empty() ? "supported=False"
                                                             : spec.unsupported_reason),
        accepts(spec.accepts),
        rule(std::move(spec.clauses), params, "vllm_ir." + op_name + "." + provider),
        inplace(spec.inplace),
        batch_invariant(spec.batch_invariant),
        source(std::move(spec.source)),
        body(spec.body) {}

  const std::string provider;
  const bool supported;
  const std::string unsupported_reason;  // empty when supported
  const Accepts accepts;
  const Rule rule;
  const bool inplace;
  const bool batch_invariant;
  const Source source;
  Body* const body;

  // Statistics only, so relaxed: no other memory is published through them.
  mutable std::atomic<uint64_t> selected{0};
  mutable std::atomic<uint64_t> callable_rejections{0};
};

inline constexpr const char* kNative = "native";

}  // namespace vllm_ir
