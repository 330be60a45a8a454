// SPDX-License-Identifier: Apache-2.0
// The clause about memory: what it accepts is checked element by element on random views.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "cpp/dispatch/rule_eval.h"
#include "tests/cpp/dispatch/plain_args.h"
#include "tests/cpp/dispatch/sample_op.h"

namespace vllm_ir {
namespace {

constexpr int64_t kS = kSymbolic;

bool apart(std::vector<PlainArg> tensors) {
  static const Names kParams = {"x", "x_residual", "weight"};
  const Names args(kParams.begin(), kParams.begin() + static_cast<std::ptrdiff_t>(tensors.size()));
  const Clause clause(make_clause("no_overlap", args, {}, 0), sample_params(), "here");
  return holds(clause, PlainArgs(std::move(tensors)));
}

PlainArg view(const PlainArg& buffer, std::vector<int64_t> sizes, std::vector<int64_t> strides,
              int64_t offset = 0) {
  return tensor(std::move(sizes)).strided(std::move(strides)).within(buffer, offset);
}

// One tensor.

TEST(NoOverlap, ElementsOfAnOrdinaryTensorAreApart) {
  EXPECT_TRUE(apart({tensor({})}));
  EXPECT_TRUE(apart({tensor({8})}));
  EXPECT_TRUE(apart({tensor({2, 3, 8})}));
  EXPECT_TRUE(apart({tensor({2, 8}).strided({100, 1})}));
  EXPECT_TRUE(apart({tensor({8, 2}).strided({1, 8})})) << "transposed";
  EXPECT_TRUE(apart({tensor({4, 3}).strided({9, 3})})) << "every third column";
}

TEST(NoOverlap, ATensorMayOverlapItself) {
  EXPECT_FALSE(apart({tensor({4, 8}).strided({0, 1})})) << "expanded rows";
  EXPECT_FALSE(apart({tensor({4, 8}).strided({1, 0})})) << "expanded columns";
  EXPECT_FALSE(apart({tensor({4, 8}).strided({4, 1})})) << "a sliding window";
  EXPECT_FALSE(apart({tensor({4, 4}).strided({1, 1})}));
  EXPECT_FALSE(apart({tensor({2, 3, 8}).strided({8, 8, 1})}));
}

TEST(NoOverlap, OneElementOrNoneCannotOverlapItself) {
  EXPECT_TRUE(apart({tensor({1, 8}).strided({0, 1})}));
  EXPECT_TRUE(apart({tensor({1, 1, 1}).strided({0, 0, 0})}));
  EXPECT_TRUE(apart({tensor({0, 8}).strided({0, 0})}));
  EXPECT_TRUE(apart({tensor({8, 0}).strided({0, 0})}));
}

// Two tensors and more.

TEST(NoOverlap, DifferentBuffersAreApart) {
  EXPECT_TRUE(apart({tensor({4, 8}), tensor({4, 8})}));
  EXPECT_TRUE(apart({tensor({4, 8}), tensor({4, 8}), tensor({8})}));
}

TEST(NoOverlap, TheSameTensorTwiceOverlaps) {
  const PlainArg x = tensor({4, 8});
  EXPECT_FALSE(apart({x, x}));
  EXPECT_FALSE(apart({x, tensor({4, 8}), x}));
}

TEST(NoOverlap, DisjointPartsOfOneBufferAreApart) {
  const PlainArg buffer = tensor({8, 8});
  const PlainArg top = view(buffer, {4, 8}, {8, 1}), bottom = view(buffer, {4, 8}, {8, 1}, 32);
  EXPECT_TRUE(apart({top, bottom}));
  EXPECT_TRUE(apart({bottom, top}));
  EXPECT_FALSE(apart({top, view(buffer, {4, 8}, {8, 1}, 31)}));
}

TEST(NoOverlap, TheInterleavedHalvesOfAProjectionAreApart) {
  const PlainArg buffer = tensor({4, 16});
  const PlainArg left = view(buffer, {4, 8}, {16, 1}), right = view(buffer, {4, 8}, {16, 1}, 8);
  EXPECT_TRUE(apart({left, right}));
  EXPECT_TRUE(apart({right, left}));
  EXPECT_FALSE(apart({left, view(buffer, {4, 8}, {16, 1}, 7)}));
  EXPECT_FALSE(apart({left, view(buffer, {3, 8}, {16, 1}, 9)})) << "wraps into the next row";
}

TEST(NoOverlap, ThirdsOfAProjectionAreApart) {
  const PlainArg qkv = tensor({4, 24});
  EXPECT_TRUE(apart(
      {view(qkv, {4, 8}, {24, 1}), view(qkv, {4, 8}, {24, 1}, 8), view(qkv, {4, 8}, {24, 1}, 16)}));
  EXPECT_FALSE(apart(
      {view(qkv, {4, 8}, {24, 1}), view(qkv, {4, 8}, {24, 1}, 8), view(qkv, {4, 8}, {24, 1}, 12)}));
}

TEST(NoOverlap, HalvesWithADimensionOfOneInBetweenAreApart) {
  const PlainArg buffer = tensor({4, 2, 8});
  EXPECT_TRUE(apart({view(buffer, {4, 1, 8}, {16, 8, 1}), view(buffer, {4, 1, 8}, {16, 8, 1}, 8)}));
}

TEST(NoOverlap, TheStrideOfADimensionOfOneSaysNothing) {
  // The first rows of two transposed stacks, one row apart: rows 1 to 3 are shared.
  const PlainArg stack = tensor({2, 8, 8});
  EXPECT_FALSE(apart({view(stack, {4, 1, 8}, {8, 64, 1}), view(stack, {4, 1, 8}, {8, 64, 1}, 8)}));
}

TEST(NoOverlap, AnEmptyTensorIsApartFromEverything) {
  const PlainArg buffer = tensor({4, 8});
  EXPECT_TRUE(apart({buffer, view(buffer, {0, 8}, {8, 1}, 16)}));
  EXPECT_TRUE(apart({view(buffer, {4, 0}, {8, 1}, 3), buffer}));
  const PlainArg nothing = view(buffer, {0, 8}, {8, 1});
  EXPECT_TRUE(apart({nothing, nothing}));
}

TEST(NoOverlap, ScalarsOfOneBufferAreApartWhenTheyDiffer) {
  const PlainArg buffer = tensor({8});
  EXPECT_TRUE(apart({view(buffer, {}, {}, 3), view(buffer, {}, {}, 4)}));
  EXPECT_FALSE(apart({view(buffer, {}, {}, 3), view(buffer, {}, {}, 3)}));
}

TEST(NoOverlap, AnAbsentTensorLeavesTheOthersToBeCompared) {
  const PlainArg x = tensor({4, 8});
  EXPECT_TRUE(apart({none(), x}));
  EXPECT_TRUE(apart({x, none()}));
  EXPECT_FALSE(apart({none(), x, x}));
  EXPECT_FALSE(apart({x, none(), x}));
  EXPECT_FALSE(apart({none(), tensor({4, 8}).strided({0, 1})}));
}

// Symbolic sizes and offsets.

TEST(NoOverlap, ASymbolicBatchOfRowsIsDecidedByTheRow) {
  const PlainArg buffer = tensor({kS, 16});
  EXPECT_TRUE(apart({tensor({kS, 8})}));
  EXPECT_TRUE(apart({view(buffer, {kS, 8}, {16, 1}), view(buffer, {kS, 8}, {16, 1}, 8)}));
  EXPECT_FALSE(apart({view(buffer, {kS, 8}, {16, 1}), view(buffer, {kS, 8}, {16, 1}, 4)}));
  EXPECT_FALSE(apart({tensor({kS, 8}).strided({4, 1})}));
  EXPECT_FALSE(apart({tensor({kS, 8}).strided({0, 1})}));
}

TEST(NoOverlap, RowsBehindSymbolicStridesAreDecidedByTheRow) {
  // Two symbolic dimensions collapse into rows: their stride and their length are what matters.
  const PlainArg buffer = tensor({64});
  const auto rows = [&](int64_t stride, int64_t offset = 0) {
    return view(buffer, {kS, kS, 8}, {kS, stride, 1}, offset).with_rows_proven();
  };
  EXPECT_TRUE(apart({rows(16)}));
  EXPECT_TRUE(apart({rows(8)}));
  EXPECT_FALSE(apart({rows(7)}));
  EXPECT_FALSE(apart({rows(kS)}));
  EXPECT_FALSE(apart({view(buffer, {kS, kS, 8}, {kS, 16, 1})})) << "not proven";
  EXPECT_TRUE(apart({rows(16), rows(16, 8)}));
  EXPECT_FALSE(apart({rows(16), rows(16, 4)}));
}

TEST(NoOverlap, ASymbolicRowIsNeverKnownToBeApart) {
  const PlainArg buffer = tensor({1, 64});
  EXPECT_FALSE(apart({view(buffer, {1, kS}, {64, 1}), view(buffer, {1, kS}, {64, 1}, 8)}));
  EXPECT_FALSE(apart({view(buffer, {1, kS}, {64, 1}).of(DType::kInt8, 1),
                      view(buffer, {1, kS}, {64, 1}, 8).of(DType::kInt8, 1)}));
  EXPECT_FALSE(apart({view(buffer, {4, kS}, {kS, 1}), view(buffer, {4, kS}, {kS, 1}, 8)}));
  EXPECT_TRUE(apart({tensor({1, kS}).strided({64, 1}), tensor({1, kS}).strided({64, 1})}));
}

TEST(NoOverlap, ASymbolicOffsetIsNeverKnownToBeApart) {
  const PlainArg buffer = tensor({8, 8});
  EXPECT_FALSE(apart({view(buffer, {2, 8}, {8, 1}), view(buffer, {2, 8}, {8, 1}, kS)}));
  EXPECT_TRUE(apart({view(buffer, {2, 8}, {8, 1}, kS)}));
}

TEST(NoOverlap, ASymbolicStrideOfADimensionOfOneOrNoneIsNotEvaluated) {
  const PlainArg buffer = tensor({8, 8});
  const PlainArg empty = view(buffer, {0, 8}, {kS, 1});
  EXPECT_FALSE(apart({empty, empty}));
  EXPECT_FALSE(apart({tensor({kS, 1, 8}).strided({kS, 16, 1})}));
}

// Against the truth.

std::vector<int64_t> elements(const PlainArg& t) {
  std::vector<int64_t> out = {t.offset};
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t at : out) {
      for (int64_t k = 0; k < t.sizes[d]; ++k) next.push_back(at + k * t.strides[d]);
    }
    out = std::move(next);
  }
  return out;
}

bool truly_apart(const std::vector<PlainArg>& tensors) {
  std::set<int64_t> seen;
  for (const PlainArg& t : tensors) {
    for (const int64_t at : elements(t)) {
      if (!seen.insert(at).second) return false;
    }
  }
  return true;
}

class RandomViews {
 public:
  explicit RandomViews(unsigned seed) : random_(seed) {}

  // Two views of one buffer, often alike, so that a good part of them is apart.
  std::vector<PlainArg> next() {
    const PlainArg buffer = tensor({64});
    const PlainArg first = any(buffer, upto(4));
    PlainArg second = upto(2) ? first : any(buffer, upto(4));
    second.offset = upto(40);
    if (!second.sizes.empty() && upto(3) == 0) second.sizes[0] = upto(4);
    return {first, second};
  }

  int64_t upto(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }

 private:
  PlainArg any(const PlainArg& buffer, int64_t dims) {
    static constexpr int64_t kStrides[] = {0, 1, 1, 2, 3, 4, 6, 8, 8, 12, 16, 24};
    std::vector<int64_t> sizes, strides;
    for (int64_t d = 0; d < dims; ++d) {
      sizes.push_back(upto(9) == 0 ? 0 : 1 + upto(3));
      strides.push_back(kStrides[upto(11)]);
    }
    if (dims && upto(3)) strides.back() = 1;
    return view(buffer, sizes, strides, upto(40));
  }

  std::mt19937 random_;
};

TEST(NoOverlap, WhatItAcceptsTrulySharesNothing) {
  RandomViews random(1);
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::vector<PlainArg> tensors = random.next();
    if (!apart(tensors)) continue;
    ++accepted;
    ASSERT_TRUE(truly_apart(tensors)) << "case " << i << ": " << shape_text(PlainArgs(tensors), 0)
                                      << " and " << shape_text(PlainArgs(tensors), 1);
  }
  EXPECT_GT(accepted, 1000);
}

TEST(NoOverlap, OneViewWithNestedStridesIsJudgedExactly) {
  RandomViews random(2);
  for (int i = 0; i < 20'000; ++i) {
    const int64_t row = random.upto(12), matrix = random.upto(40);
    const PlainArg t =
        view(tensor({64}), {1 + random.upto(2), 1 + random.upto(2), 4}, {matrix * row, row, 1});
    ASSERT_EQ(apart({t}), truly_apart({t})) << "strides " << matrix * row << ", " << row << ", 1";
  }
}

TEST(NoOverlap, WhatItAcceptsWithSymbolsItAcceptsWithTheirValues) {
  RandomViews random(3);
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::vector<PlainArg> tensors = random.next();
    std::vector<PlainArg> masked = tensors;
    for (PlainArg& t : masked) {
      for (size_t d = 0; d < t.sizes.size(); ++d) {
        if (random.upto(3) == 0) t.sizes[d] = kS;
        if (random.upto(3) == 0) t.strides[d] = kS;
      }
      if (random.upto(5) == 0) t.offset = kS;
    }
    if (!apart(masked)) continue;
    ++accepted;
    ASSERT_TRUE(truly_apart(tensors)) << "case " << i << ": " << shape_text(PlainArgs(masked), 0)
                                      << " and " << shape_text(PlainArgs(masked), 1);
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace vllm_ir
