// SPDX-License-Identifier: Apache-2.0
// Seeded random arguments, clauses and impls for the property tests.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/dispatch/plain_args.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {

class RandomCase {
 public:
  explicit RandomCase(unsigned seed) : random_(seed) {}

  int64_t upto(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }
  bool chance(int64_t one_in) { return upto(one_in - 1) == 0; }

  // x, x_residual, weight, epsilon, variance_size
  std::vector<PlainArg> arguments() {
    const PlainArg x = any_tensor();
    PlainArg residual = chance(3) ? none() : chance(2) ? x : any_tensor();
    if (!residual.none && chance(2)) residual = residual.within(x, upto(16));
    PlainArg weight = chance(3) ? none() : any_tensor();
    if (!weight.none && !x.sizes.empty() && chance(2)) weight = tensor({x.sizes.back()});
    return {x, residual, weight, PlainArg{}, chance(2) ? none() : number(upto(9) - 1)};
  }

  // The arguments as they may look while compiling: some values are symbolic, no address.
  std::vector<PlainArg> masked(std::vector<PlainArg> args) {
    for (PlainArg& arg : args) {
      arg.has_address = false;
      for (size_t d = 0; d < arg.sizes.size(); ++d) {
        if (chance(4)) arg.sizes[d] = kSymbolic;
        if (chance(4)) arg.strides[d] = kSymbolic;
      }
      if (chance(6)) arg.offset = kSymbolic;
      if (chance(4)) arg.integer = kSymbolic;
    }
    return args;
  }

  ClauseSpec clause() {
    static const Names kTensors = {"x", "x_residual", "weight"};
    const auto one = [&] { return kTensors[static_cast<size_t>(upto(2))]; };
    const int64_t n = int64_t{1} << upto(3);
    switch (upto(15)) {
      case 0:
        return make_clause("dtype", {one()}, dtypes(false), 0);
      case 1:
        return make_clause("same_dtype", {one(), one()}, dtypes(true), 0);
      case 2:
        return make_clause("device", {one()}, {chance(2) ? "cpu" : "cuda", "xpu"}, 0);
      case 3:
        return make_clause("same_device", {one(), one()}, {}, 0);
      case 4:
        return make_clause("same_shape", {one(), one()}, {}, 0);
      case 5:
        return make_clause("is_none", {chance(2) ? one() : "variance_size"}, {}, 0);
      case 6:
        return make_clause("is_given", {chance(2) ? one() : "variance_size"}, {}, 0);
      case 7:
        return make_clause("min_dims", {one()}, {}, 1 + upto(3));
      case 8:
        return make_clause("matches_last_dim", {one(), one()}, {}, 0);
      case 9:
        return make_clause("within_last_dim", {"variance_size", one()}, {}, 0);
      case 10:
        return make_clause("last_dim_contiguous", {one()}, {}, 0);
      case 11:
        return make_clause("last_dim_multiple_of", {one()}, {}, n);
      case 12:
        return make_clause("last_dim_at_most", {one()}, {}, n);
      case 13:
        return make_clause("flattens_for_free", {one()}, {}, 0);
      case 14:
        return make_clause("aligned", {one()}, {}, n * 4);
      default:
        return make_clause("no_overlap", {"x", "x_residual", "weight"}, {}, 0);
    }
  }

  ImplSpec impl(std::string provider) {
    ImplSpec spec = always(std::move(provider));
    if (!chance(4)) spec.accepts = chance(3) ? Accepts::kCallable : Accepts::kRule;
    if (spec.accepts == Accepts::kRule) {
      for (int64_t i = upto(2); i >= 0; --i) spec.clauses.push_back(clause());
    }
    if (chance(5)) spec = unsupported(std::move(spec), chance(2) ? "no device" : "");
    spec.batch_invariant = chance(2);
    return spec;
  }

  // Some of the names, in any order, with repetitions.
  Names some_of(const Names& names, int64_t most) {
    Names out;
    for (int64_t i = upto(most); i > 0; --i) {
      out.push_back(names[static_cast<size_t>(upto(static_cast<int64_t>(names.size()) - 1))]);
    }
    return out;
  }

 private:
  Names dtypes(bool may_be_empty) {
    if (may_be_empty && chance(2)) return {};
    return {chance(2) ? "float16" : "float32", "bfloat16"};
  }

  PlainArg any_tensor() {
    static constexpr int64_t kSizes[] = {0, 1, 1, 2, 3, 4, 8, 8};
    std::vector<int64_t> sizes(static_cast<size_t>(upto(3)));
    for (int64_t& size : sizes) size = kSizes[upto(7)];
    PlainArg out = tensor(std::move(sizes));
    if (chance(3)) {
      for (int64_t& stride : out.strides) stride = upto(16);
    }
    if (chance(3)) out = out.of(chance(2) ? DType::kFloat16 : DType::kBFloat16, 2);
    if (chance(6)) out = out.on(DeviceType::kCuda, static_cast<int>(upto(1)));
    return out;
  }

  std::mt19937 random_;
};

}  // namespace vllm_ir
