// SPDX-License-Identifier: Apache-2.0
// What the tests of the norms share: a launch whose accesses are watched, and the shapes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "cpp/kernels/cuda/launchers.h"
#include "tests/cpp/emulation/cuda_model.h"
#include "tests/cpp/emulation/emulation.h"
#include "tests/cpp/kernels/matrix.h"

namespace vllm_ir::kernels {

constexpr double kEpsilon = 1e-5;

template <typename T>
emulation::Watch watched(const Matrix<T>& m) {
  const T* end = m.rows() == 0 ? m.data() : m.row(m.rows() - 1) + m.cols();
  return emulation::Watch(m.data(), end);
}

// How often a byte of x is read: once, or a second time beyond what a row's threads keep.
template <typename T>
int64_t loaded_bytes(const Matrix<T>& x, int64_t var_cols) {
  constexpr int64_t per_vector = kVectorBytes / sizeof(T);
  const int64_t kept = norm_shape((x.cols() + per_vector - 1) / per_vector).lanes *
                       int64_t{kKeptVectors} * per_vector;
  const int64_t again =
      std::max<int64_t>(0, std::min(round_up(var_cols, per_vector), x.cols()) - kept);
  return x.rows() * (x.cols() + again) * static_cast<int64_t>(sizeof(T));
}

template <typename T>
bool is_wide(const Matrix<T>& m) {
  constexpr int64_t per_vector = kVectorBytes / sizeof(T);
  return reinterpret_cast<uintptr_t>(m.data()) % kVectorBytes == 0 && m.cols() % per_vector == 0 &&
         (m.rows() < 2 || m.stride() % per_vector == 0);
}

template <typename T>
int64_t bytes_of(const Matrix<T>& m) {
  return m.rows() * m.cols() * static_cast<int64_t>(sizeof(T));
}

// Where a matrix begins and how far its rows are apart. `offset` and `gap` count elements.
struct Layout {
  int64_t offset;
  int64_t gap;
};

// The base aligned and off by one element, rows dense and apart. A std::vector is aligned to 16.
inline std::vector<Layout> layouts() { return {{0, 0}, {1, 0}, {0, 1}, {3, 5}}; }

template <typename T>
WeightView view(const Matrix<T>& m) {
  return {m.data(), kDType<T>, values(m.row(0), m.cols())};
}

inline emulation::Watch watched(const WeightView& w) {
  return emulation::Watch(w.data, static_cast<const char*>(w.data) + w.bytes());
}

inline bool is_wide(const WeightView& w) {
  return reinterpret_cast<uintptr_t>(w.data) % kVectorBytes == 0;
}

// Calls f(weight): none, of type T, and float32 where that is another one.
template <typename T>
void with_weights(int64_t cols, int64_t offset, const std::function<void(const WeightView&)>& f) {
  f({});
  const Matrix<T> own = Matrix<T>(1, cols, 0, offset).randomise(7);
  f(view(own));
  if constexpr (!std::is_same_v<T, float>) {
    const Matrix<float> wide = Matrix<float>(1, cols, 0, offset).randomise(8);
    f(view(wide));
  }
}

inline void in_each_order(const std::function<void()>& f) {
  for (const auto order :
       {emulation::Order::kForward, emulation::Order::kReverse, emulation::Order::kRandom}) {
    emulation::settings().order = order;
    f();
    if (testing::Test::HasFatalFailure()) break;
  }
  emulation::settings() = {};
}

// The widths at which something changes: vectors of a row, lanes, warps, kept and read again.
inline std::vector<int64_t> some_widths() {
  return {1,    2,    7,    8,    9,    15,   16,   31,   33,   64,   100,   127,  128,
          129,  255,  256,  257,  511,  512,  513,  520,  768,  769,  1000,  1023, 1024,
          1025, 1536, 2047, 2048, 2049, 3420, 3584, 4096, 5120, 8192, 16384, 16385};
}

}  // namespace vllm_ir::kernels
