// SPDX-License-Identifier: Apache-2.0
// A rule says which arguments an impl accepts: a conjunction of clauses, each about named
// parameters. This header is the declaration; rule_eval.h evaluates it over any argument adaptor.
// No clause can name dimension 0, so no rule can depend on the batch size.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpp/dispatch/schema.h"
#include "cpp/dispatch/tensor_facts.h"

namespace vllm_ir {

enum class ClauseKind : uint8_t {
  kDtype,              // the tensor's dtype is one of a set
  kDtypeSameOr,        // a's dtype is b's, or one of a set
  kDevice,             // the tensor's device type is one of a set
  kSameDevice,         // both tensors are on one device
  kSameShape,          // both tensors have one shape
  kIsNone,             // the argument is None
  kIsGiven,            // the argument is not None
  kMinDims,            // the tensor has at least n dimensions
  kMatchesLastDim,     // a is one-dimensional, as long as b's last dimension
  kWithinLastDim,      // 1 <= integer a <= b's last dimension
  kLastDimContiguous,  // the last dimension has stride 1
  kLastDimMultipleOf,  // the last dimension is a multiple of n
  kLastDimAtMost,      // the last dimension is at most n
  kFlattensForFree,    // the leading dimensions collapse into rows of one stride, without a copy
  kAligned,            // the address is a multiple of n bytes
  kNoOverlap,          // no two elements of the tensors share memory
};

// A clause as it was declared. None as an argument satisfies every clause but kIsGiven: an absent
// tensor has no property that could be wrong.
struct ClauseSpec {
  ClauseKind kind;
  std::vector<std::string> args;  // parameter names
  uint64_t allowed = 0;           // bit set of DType or DeviceType
  int64_t number = 0;             // n, where the kind has one
  std::string because;            // why nothing else is allowed; told with a rejection, or empty

  std::string to_string() const;
};

// Throw Error(kValue) for an unknown kind, the wrong number of parameters, or an n that is not
// positive. `values` are dtype or device names.
ClauseSpec make_clause(const std::string& kind, std::vector<std::string> args,
                       const std::vector<std::string>& values, int64_t number,
                       std::string because = "");

inline constexpr int kMaxClauseArgs = 4;

// A clause bound to the positions of one op's parameters.
class Clause {
 public:
  Clause(ClauseSpec spec, const std::vector<Param>& params, const std::string& where);

  ClauseKind kind() const noexcept { return kind_; }
  int arg(int i = 0) const noexcept { return args_[static_cast<size_t>(i)]; }
  int arg_count() const noexcept { return arg_count_; }
  // Whether it is a comparison of two arguments, which holds when either is None.
  bool compares() const noexcept { return compares_; }
  // Whether it asks for sizes, strides or memory, which only strided tensors have.
  bool looks_at_layout() const noexcept { return looks_at_layout_; }
  const std::string& arg_name(int i = 0) const noexcept {
    return spec_.args[static_cast<size_t>(i)];
  }
  bool allows(DType dtype) const noexcept { return allowed_ >> static_cast<int>(dtype) & 1; }
  bool allows(DeviceType device) const noexcept { return allowed_ >> static_cast<int>(device) & 1; }
  int64_t number() const noexcept { return number_; }
  std::string to_string() const { return spec_.to_string(); }
  const std::string& because() const noexcept { return spec_.because; }

  // How often the clause rejected, by a small slot: the dtype or device that was seen, else 0.
  void count(int slot) const noexcept {
    rejections_[static_cast<size_t>(slot)].fetch_add(1, std::memory_order_relaxed);
  }
  // Appends "short reason" and count pairs, in slot order.
  void roll_up(std::vector<std::pair<std::string, uint64_t>>& out) const;
  void reset_counts() const noexcept;

 private:
  int slots() const noexcept;

  // What a call reads, in one cache line; the rest is for texts.
  const ClauseKind kind_;
  bool compares_ = false;
  bool looks_at_layout_ = false;
  int8_t arg_count_ = 0;
  std::array<int8_t, kMaxClauseArgs> args_{};
  const uint64_t allowed_;
  const int64_t number_;
  const ClauseSpec spec_;
  std::unique_ptr<std::atomic<uint64_t>[]> rejections_;
};

class Rule {
 public:
  Rule() = default;
  Rule(std::vector<ClauseSpec> specs, const std::vector<Param>& params, const std::string& where);

  const std::vector<Clause>& clauses() const noexcept { return clauses_; }
  std::string to_string() const;

 private:
  std::vector<Clause> clauses_;
};

}  // namespace vllm_ir
