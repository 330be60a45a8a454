// SPDX-License-Identifier: Apache-2.0
// What the dispatch core knows of an op's signature.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vllm_ir {

inline constexpr int kMaxParams = 16;
inline constexpr int kMaxResults = 8;

// kOther: a list, a layout, a list of tensors. A call that has one isn't plain: torch checks such
// arguments, and looks for tensors in them.
enum class ParamKind : uint8_t { kTensor, kFloat, kInt, kBool, kString, kDType, kOther };

struct Param {
  std::string name;
  ParamKind kind = ParamKind::kTensor;
  bool optional = false;     // None is allowed
  bool has_default = false;  // may be left out by the caller
  bool activation = false;   // may be donated through maybe_inplace
};

// Where something was registered, "file:line"; printed in conflicts and by explain.
using Source = std::string;

// True for names that match ^[a-z_][a-z0-9_]*$.
bool is_valid_name(std::string_view name) noexcept;

// The position of a parameter, or -1.
int find_param(const std::vector<Param>& params, std::string_view name) noexcept;

}  // namespace vllm_ir
