// SPDX-License-Identifier: Apache-2.0
// The one exception type of the dispatch core. The binding turns a kind into a Python class.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace vllm_ir {

enum class ErrorKind { kValue, kType, kRuntime, kUnknownName, kDuplicate };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

// An unknown name keeps its parts, so that the facade can add the nearest match to the text.
class UnknownName : public Error {
 public:
  UnknownName(const std::string& where, const std::string& kind, std::string name,
              std::vector<std::string> known)
      : Error(ErrorKind::kUnknownName, where + ": unknown " + kind + " '" + name + "'."),
        where_(where),
        noun_(kind),
        name_(std::move(name)),
        known_(std::move(known)) {}

  const std::string& where() const noexcept { return where_; }
  const std::string& noun() const noexcept { return noun_; }
  const std::string& name() const noexcept { return name_; }
  const std::vector<std::string>& known() const noexcept { return known_; }

 private:
  std::string where_, noun_, name_;
  std::vector<std::string> known_;
};

}  // namespace vllm_ir
