// SPDX-License-Identifier: Apache-2.0
// An op to test with, impls for it, and what puts the process-wide switches back.
#pragma once

#include <gtest/gtest.h>

#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "cpp/dispatch/error.h"
#include "cpp/dispatch/op.h"
#include "cpp/dispatch/registry.h"
#include "cpp/dispatch/switches.h"

namespace vllm_ir {

using Names = std::vector<std::string>;

inline std::vector<Param> sample_params() {
  return {{.name = "x", .activation = true},
          {.name = "x_residual", .optional = true, .activation = true},
          {.name = "weight", .optional = true},
          {.name = "epsilon", .kind = ParamKind::kFloat},
          {.name = "variance_size", .kind = ParamKind::kInt, .optional = true}};
}

inline OpSpec sample_spec(std::string name = "norm") {
  return {.name = std::move(name),
          .params = sample_params(),
          .allow_inplace = true,
          .tensor_outputs = 2,
          .source = "ops/norm.py:10"};
}

inline ImplSpec always(std::string provider) {
  ImplSpec spec;
  spec.provider = std::move(provider);
  spec.source = spec.provider + ".py:1";
  return spec;
}

inline ImplSpec ruled(std::string provider, std::vector<ClauseSpec> clauses) {
  ImplSpec spec = always(std::move(provider));
  spec.accepts = Accepts::kRule;
  spec.clauses = std::move(clauses);
  return spec;
}

// x must be float16.
inline ImplSpec half_only(std::string provider) {
  return ruled(std::move(provider), {make_clause("dtype", {"x"}, {"float16"}, 0)});
}

inline ImplSpec asking(std::string provider) {
  ImplSpec spec = always(std::move(provider));
  spec.accepts = Accepts::kCallable;
  return spec;
}

inline ImplSpec unsupported(ImplSpec spec, std::string reason = "") {
  spec.supported = false;
  spec.unsupported_reason = std::move(reason);
  return spec;
}

inline ImplSpec batch_invariant(ImplSpec spec) {
  spec.batch_invariant = true;
  return spec;
}

// An op of its own, outside the registry, with native and then `impls`.
class SampleOp {
 public:
  explicit SampleOp(std::vector<ImplSpec> impls = {}) : op_(sample_spec()) {
    op_.add_impl(always(kNative));
    for (ImplSpec& spec : impls) op_.add_impl(std::move(spec));
  }
  Op& operator*() noexcept { return op_; }
  Op* operator->() noexcept { return &op_; }

 private:
  Op op_;
};

// The same in the registry, for what goes through all ops; gone from it at the end of the test.
class RegisteredOp {
 public:
  explicit RegisteredOp(std::string name, std::vector<ImplSpec> impls = {})
      : op_(Registry::instance().add_op(sample_spec(std::move(name)))) {
    op_->add_impl(always(kNative));
    for (ImplSpec& spec : impls) op_->add_impl(std::move(spec));
  }
  ~RegisteredOp() { Registry::instance().discard(op_); }
  RegisteredOp(const RegisteredOp&) = delete;
  RegisteredOp& operator=(const RegisteredOp&) = delete;
  Op& operator*() noexcept { return *op_; }
  Op* operator->() noexcept { return op_; }

 private:
  Op* const op_;
};

struct StrictMode {
  StrictMode() { g_switches.set(Switch::kStrict, true); }
  ~StrictMode() { g_switches.set(Switch::kStrict, false); }
};

struct BatchInvariantMode {
  BatchInvariantMode() { Registry::instance().set_batch_invariant(true); }
  ~BatchInvariantMode() { Registry::instance().set_batch_invariant(false); }
};

// `f` must throw an Error of this kind with exactly this text.
template <class F>
void expect_error(ErrorKind kind, const std::string& text, const F& f,
                  std::source_location here = std::source_location::current()) {
  const testing::ScopedTrace trace(here.file_name(), static_cast<int>(here.line()), "thrown by");
  try {
    f();
    ADD_FAILURE() << "nothing was thrown; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), text);
    EXPECT_EQ(error.kind(), kind);
  }
}

}  // namespace vllm_ir
