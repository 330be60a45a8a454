// SPDX-License-Identifier: Apache-2.0
// A matrix in memory that notices writes outside of its elements, random contents, and a run of a
// test on each CPU level.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cpp/kernels/cpu_level.h"
#include "tests/cpp/kernels/elements.h"

namespace vllm_ir::kernels {

// The address sanitizer sees the end of the heap block, so that nothing may come after the last
// element then.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kGuard = 0;
#else
constexpr int64_t kGuard = 80;
#endif

template <typename T>
class Matrix {
 public:
  // Rows start `gap` elements after the end of the one before; the first starts `offset` elements
  // into the block. Everything is filled with a pattern.
  Matrix(int64_t rows, int64_t cols, int64_t gap = 0, int64_t offset = 0)
      : rows_(rows), cols_(cols), stride_(cols + gap), offset_(offset) {
    memory_.resize(offset + (rows > 0 ? (rows - 1) * stride_ + cols : 0) + kGuard);
    if (!memory_.empty()) std::memset(memory_.data(), kPattern, memory_.size() * sizeof(T));
  }

  T* data() { return memory_.data() + offset_; }
  const T* data() const { return memory_.data() + offset_; }
  T* row(int64_t r) { return data() + r * stride_; }
  const T* row(int64_t r) const { return data() + r * stride_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t stride() const { return stride_; }

  Matrix& randomise(uint32_t seed, float spread = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < cols_; ++c) row(r)[c] = rounded<T>(normal(random));
    return *this;
  }

  // Whether the memory around and between the rows still has the pattern.
  bool outside_untouched() const {
    Matrix inside(*this);
    for (int64_t r = 0; r < rows_; ++r) std::memset(inside.row(r), kPattern, cols_ * sizeof(T));
    const auto* bytes = reinterpret_cast<const unsigned char*>(inside.memory_.data());
    for (size_t i = 0; i < memory_.size() * sizeof(T); ++i)
      if (bytes[i] != kPattern) return false;
    return true;
  }

 private:
  static constexpr unsigned char kPattern = 0xa5;
  int64_t rows_, cols_, stride_, offset_;
  std::vector<T> memory_;
};

// How many elements of two matrices of one size differ.
template <typename T>
int64_t count_different(const Matrix<T>& a, const Matrix<T>& b) {
  int64_t count = 0;
  for (int64_t r = 0; r < a.rows(); ++r)
    for (int64_t c = 0; c < a.cols(); ++c) count += !same(a.row(r)[c], b.row(r)[c]);
  return count;
}

// Calls f once at each level that this processor has.
template <typename F>
void at_each_level(const F& f) {
  for (int i = 0; i <= static_cast<int>(best_cpu_level()); ++i) {
    const auto level = static_cast<CpuLevel>(i);
    ASSERT_TRUE(set_cpu_level(level));
    ASSERT_EQ(cpu_level(), level);
    SCOPED_TRACE(cpu_level_name());
    f();
    if (testing::Test::HasFatalFailure()) break;
  }
  set_cpu_level(best_cpu_level());
}

}  // namespace vllm_ir::kernels
