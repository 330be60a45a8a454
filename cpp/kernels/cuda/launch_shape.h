// SPDX-License-Identifier: Apache-2.0
// The one place that decides the shape of a launch. Plain C++, so that it is tested without CUDA.
//
// A thread works on vectors of 16 bytes of x. The shape follows from the number of vectors in a row
// alone. The number of rows must not decide anything here: it would make the order of a sum, and so
// a row's bits, depend on the batch.
//
// Norms. A row's threads keep kKeptVectors vectors each in registers, so that memory is read once:
//   up to   64 vectors (512 elements of 16 bits)   up to 32 lanes of a warp, a power of two, and
//                                                  4 to 128 rows in a block of 128 threads
//   up to 2048 vectors (16384 elements of 16 bits) one block a row, 2 to 32 warps
//   beyond                                         32 warps; what does not fit into the registers
//                                                  is read a second time (mostly from L2)
// So 100000 rows of 128 get 6250 full blocks, and one row of 8192 gets 16 warps.
//
// Gated activations have no sum. A row is cut into pieces of up to 256 vectors, one a thread, and
// narrow rows share a block as above; one row of 14336 gets 7 blocks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vllm_ir::kernels {

constexpr int kVectorBytes = 16;
constexpr int kWarp = 32;
constexpr int kKeptVectors = 2;
constexpr int kMaxRowThreads = 1024;
constexpr int kNarrowBlock = 128;
constexpr int kPieceThreads = 256;

// Columns are counted in int, with room for the last step of a loop.
constexpr int64_t kMaxCols = int64_t{1} << 30;
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxGridY = 65535;

// A block of `lanes` x `rows` threads: blockDim.x and blockDim.y. `lanes` is a power of two when
// rows share a warp, else a multiple of 32, and rows == 1. `pieces` is gridDim.y.
struct LaunchShape {
  int lanes;
  int rows;
  int64_t pieces;

  int64_t blocks(int64_t all_rows) const { return (all_rows + rows - 1) / rows; }
};

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

constexpr int power_of_two_from(int64_t n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

constexpr LaunchShape norm_shape(int64_t vectors) {
  const int64_t threads = (vectors + kKeptVectors - 1) / kKeptVectors;
  if (threads <= kWarp) {
    const int lanes = power_of_two_from(threads);
    return {lanes, kNarrowBlock / lanes, 1};
  }
  return {static_cast<int>(std::min<int64_t>(round_up(threads, kWarp), kMaxRowThreads)), 1, 1};
}

constexpr LaunchShape gated_shape(int64_t vectors) {
  if (vectors < kPieceThreads) {
    const int lanes = power_of_two_from(vectors);
    return {lanes, kPieceThreads / lanes, 1};
  }
  const int64_t pieces = (vectors + kPieceThreads - 1) / kPieceThreads;
  return {kPieceThreads, 1, std::min(pieces, kMaxGridY)};
}

}  // namespace vllm_ir::kernels
