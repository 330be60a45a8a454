// SPDX-License-Identifier: Apache-2.0
// One clause on the sample op, and what it says to plain arguments.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cpp/dispatch/rule_eval.h"
#include "tests/cpp/dispatch/plain_args.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {

class Asked {
 public:
  Asked(const std::string& kind, Names args, const Names& values = {}, int64_t n = 0,
        std::string because = "")
      : clause_(make_clause(kind, std::move(args), values, n, std::move(because)), sample_params(),
                "here") {}

  testing::AssertionResult accepts(const PlainArg& x, const PlainArg& residual = none(),
                                   const PlainArg& weight = none(),
                                   const PlainArg& variance_size = none()) const {
    const PlainArgs args({x, residual, weight, PlainArg{}, variance_size});
    if (holds(clause_, args)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << why_not(clause_, args);
  }

  // The reason of a rejection; "accepted" when there is none.
  std::string reason(const PlainArg& x, const PlainArg& residual = none(),
                     const PlainArg& weight = none(),
                     const PlainArg& variance_size = none()) const {
    const PlainArgs args({x, residual, weight, PlainArg{}, variance_size});
    return holds(clause_, args) ? "accepted" : why_not(clause_, args);
  }

 private:
  Clause clause_;
};

}  // namespace vllm_ir
