// SPDX-License-Identifier: Apache-2.0
// Counts of what ran and why others did not, read from the counters of impls and clauses.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cpp/dispatch/op.h"

namespace vllm_ir {

struct ImplCounts {
  std::string provider;
  uint64_t selected = 0;
  std::vector<std::pair<std::string, uint64_t>> rejections;  // reason, how often
};

std::vector<ImplCounts> roll_up(const Op& op);
void reset_counts(const Op& op);

}  // namespace vllm_ir
