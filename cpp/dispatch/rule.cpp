// SPDX-License-Identifier: Apache-2.0
#include "cpp/dispatch/rule.h"

#include <algorithm>
#include <utility>

#include "cpp/dispatch/error.h"

namespace vllm_ir {
namespace {

enum class Wants { kNothing, kDTypes, kDevices, kNumber };

struct KindFacts {
  ClauseKind kind;
  const char* name;
  int min_args, max_args;
  Wants wants;
  ParamKind first_param;  // what the first argument must be; the others are tensors
  bool looks_at_layout;
};

// In the order of the enumeration.
constexpr KindFacts kKinds[] = {
    {ClauseKind::kDtype, "dtype", 1, 1, Wants::kDTypes, ParamKind::kTensor, false},
    {ClauseKind::kDtypeSameOr, "same_dtype", 2, 2, Wants::kDTypes, ParamKind::kTensor, false},
    {ClauseKind::kDevice, "device", 1, 1, Wants::kDevices, ParamKind::kTensor, false},
    {ClauseKind::kSameDevice, "same_device", 2, 2, Wants::kNothing, ParamKind::kTensor, false},
    {ClauseKind::kSameShape, "same_shape", 2, 2, Wants::kNothing, ParamKind::kTensor, true},
    {ClauseKind::kIsNone, "is_none", 1, 1, Wants::kNothing, ParamKind::kOther, false},
    {ClauseKind::kIsGiven, "is_given", 1, 1, Wants::kNothing, ParamKind::kOther, false},
    {ClauseKind::kMinDims, "min_dims", 1, 1, Wants::kNumber, ParamKind::kTensor, true},
    {ClauseKind::kMatchesLastDim, "matches_last_dim", 2, 2, Wants::kNothing, ParamKind::kTensor,
     true},
    {ClauseKind::kWithinLastDim, "within_last_dim", 2, 2, Wants::kNothing, ParamKind::kInt, true},
    {ClauseKind::kLastDimContiguous, "last_dim_contiguous", 1, 1, Wants::kNothing,
     ParamKind::kTensor, true},
    {ClauseKind::kLastDimMultipleOf, "last_dim_multiple_of", 1, 1, Wants::kNumber,
     ParamKind::kTensor, true},
    {ClauseKind::kLastDimAtMost, "last_dim_at_most", 1, 1, Wants::kNumber, ParamKind::kTensor,
     true},
    {ClauseKind::kFlattensForFree, "flattens_for_free", 1, 1, Wants::kNothing, ParamKind::kTensor,
     true},
    {ClauseKind::kAligned, "aligned", 1, 1, Wants::kNumber, ParamKind::kTensor, true},
    {ClauseKind::kNoOverlap, "no_overlap", 1, kMaxClauseArgs, Wants::kNothing, ParamKind::kTensor,
     true},
};

const KindFacts& facts_of(ClauseKind kind) { return kKinds[static_cast<size_t>(kind)]; }

template <class Enum>
std::string set_text(uint64_t mask, int count) {
  std::string out = "{";
  for (int i = 0; i < count; ++i) {
    if (!(mask >> i & 1)) continue;
    if (out.size() > 1) out += ", ";
    out += name_of(static_cast<Enum>(i));
  }
  return out + "}";
}

const char* noun_of(ParamKind kind) {
  switch (kind) {
    case ParamKind::kTensor:
      return "Tensor";
    case ParamKind::kInt:
      return "int";
    case ParamKind::kFloat:
      return "float";
    case ParamKind::kBool:
      return "bool";
    case ParamKind::kString:
      return "str";
    case ParamKind::kDType:
      return "dtype";
    case ParamKind::kOther:
      break;
  }
  return "other";
}

}  // namespace

std::string ClauseSpec::to_string() const {
  const KindFacts& facts = facts_of(kind);
  std::string out = std::string(facts.name) + "(";
  for (size_t i = 0; i < args.size(); ++i) out += (i ? ", \"" : "\"") + args[i] + "\"";
  if (facts.wants == Wants::kNumber) out += ", " + std::to_string(number);
  out += ")";
  if (facts.wants == Wants::kDTypes && kind == ClauseKind::kDtype) {
    out += " in " + set_text<DType>(allowed, kDTypeCount);
  } else if (facts.wants == Wants::kDTypes && allowed) {
    out += " or in " + set_text<DType>(allowed, kDTypeCount);
  } else if (facts.wants == Wants::kDevices) {
    out += " in " + set_text<DeviceType>(allowed, kDeviceTypeCount);
  }
  return out;
}

ClauseSpec make_clause(const std::string& kind, std::vector<std::string> args,
                       const std::vector<std::string>& values, int64_t number,
                       std::string because) {
  const auto* facts = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [&](const KindFacts& f) { return kind == f.name; });
  const std::string where = "vllm_ir.rules." + kind;
  if (facts == std::end(kKinds)) {
    std::vector<std::string> known;
    for (const KindFacts& f : kKinds) known.emplace_back(f.name);
    throw UnknownName("vllm_ir.rules", "clause", kind, std::move(known));
  }
  const int count = static_cast<int>(args.size());
  if (count < facts->min_args || count > facts->max_args) {
    throw Error(
        ErrorKind::kValue,
        where + ": takes " + std::to_string(facts->min_args) +
            (facts->max_args == facts->min_args ? "" : " to " + std::to_string(facts->max_args)) +
            " parameter name(s), got " + std::to_string(count) + ".");
  }
  ClauseSpec spec{facts->kind, std::move(args), 0, number, std::move(because)};
  for (const std::string& value : values) {
    const int bit = facts->wants == Wants::kDevices ? static_cast<int>(device_named(value))
                                                    : static_cast<int>(dtype_named(value));
    spec.allowed |= uint64_t{1} << bit;
  }
  if (facts->wants == Wants::kNumber && number < 1) {
    throw Error(ErrorKind::kValue,
                where + ": needs a positive number, got " + std::to_string(number) + ".");
  }
  const bool needs_values = facts->wants == Wants::kDevices || facts->kind == ClauseKind::kDtype;
  if (needs_values && values.empty()) {
    throw Error(ErrorKind::kValue, where + ": needs at least one allowed value, got none.");
  }
  return spec;
}

Clause::Clause(ClauseSpec spec, const std::vector<Param>& params, const std::string& where)
    : kind_(spec.kind),
      arg_count_(static_cast<int8_t>(spec.args.size())),
      allowed_(spec.allowed),
      number_(spec.number),
      spec_(std::move(spec)) {
  const KindFacts& facts = facts_of(kind_);
  compares_ = facts.min_args == 2;
  looks_at_layout_ = facts.looks_at_layout;
  for (size_t i = 0; i < spec_.args.size(); ++i) {
    const int at = find_param(params, spec_.args[i]);
    if (at < 0) {
      std::vector<std::string> known;
      for (const Param& p : params) known.push_back(p.name);
      throw UnknownName(where + ": clause " + to_string(), "parameter", spec_.args[i],
                        std::move(known));
    }
    const ParamKind want = i == 0 ? facts.first_param : ParamKind::kTensor;
    const ParamKind got = params[static_cast<size_t>(at)].kind;
    if (want != ParamKind::kOther && want != got) {
      throw Error(ErrorKind::kValue, where + ": clause " + to_string() + " needs '" +
                                         spec_.args[i] + "' to be " + noun_of(want) + ", got " +
                                         noun_of(got) + ".");
    }
    args_[i] = static_cast<int8_t>(at);
  }
  rejections_ = std::make_unique<std::atomic<uint64_t>[]>(static_cast<size_t>(slots()));
  reset_counts();
}

int Clause::slots() const noexcept {
  switch (kind_) {
    case ClauseKind::kDtype:
    case ClauseKind::kDtypeSameOr:
      return kDTypeCount;
    case ClauseKind::kDevice:
      return kDeviceTypeCount;
    default:
      return 1;
  }
}

void Clause::roll_up(std::vector<std::pair<std::string, uint64_t>>& out) const {
  for (int slot = 0; slot < slots(); ++slot) {
    const uint64_t n = rejections_[static_cast<size_t>(slot)].load(std::memory_order_relaxed);
    if (n == 0) continue;
    std::string reason;
    if (slots() == kDTypeCount) {
      reason = arg_name() + ".dtype is " + std::string(name_of(static_cast<DType>(slot)));
    } else if (slots() == kDeviceTypeCount) {
      reason = arg_name() + " is on " + std::string(name_of(static_cast<DeviceType>(slot)));
    } else {
      reason = "not " + to_string();
    }
    out.emplace_back(std::move(reason), n);
  }
}

void Clause::reset_counts() const noexcept {
  for (int i = 0; i < slots(); ++i) {
    rejections_[static_cast<size_t>(i)].store(0, std::memory_order_relaxed);
  }
}

Rule::Rule(std::vector<ClauseSpec> specs, const std::vector<Param>& params,
           const std::string& where) {
  clauses_.reserve(specs.size());
  for (ClauseSpec& spec : specs) clauses_.emplace_back(std::move(spec), params, where);
}

std::string Rule::to_string() const {
  std::string out;
  for (const Clause& clause : clauses_) out += (out.empty() ? "" : " & ") + clause.to_string();
  return out;
}

}  // namespace vllm_ir
