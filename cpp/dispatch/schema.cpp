// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/schema.h"

namespace vllm_ir {

bool is_valid_name(std::string_view name) noexcept {
  const auto lower = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  if (name.empty() || !lower(name.front())) return false;
  for (const char c : name) {
    if (!lower(c) && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

int find_param(const std::vector<Param>& params, std::string_view name) noexcept {
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace vllm_ir
