// SPDX-License-Identifier: Apache-2.0
// Runs CUDA kernels on the CPU, for tests: what a test sets and asks.
//
// A thread is a fiber; threads change only where CUDA's wait for each other, in an order that the
// test picks. A fault ends the launch with cudaErrorLaunchFailure, and fault() says what it was:
// threads of a block that do not all reach one and the same __syncthreads, a shuffle that names
// lanes which are not there, an access that is not aligned or outside of what is watched, a launch
// of a shape that CUDA refuses. Under ThreadSanitizer only CUDA's barriers order memory, so that a
// missing one is a race whatever the order.
//
// Not modelled: speed, atomics, textures, dynamic shared memory, lanes of a warp that run apart
// between two barriers, races between blocks, inline PTX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vllm_ir::emulation {

enum class Order { kForward, kReverse, kRandom };

struct Settings {
  Order order = Order::kForward;
  unsigned seed = 1;
  // Which blocks of a grid run. A count of -1: all from the first one on.
  int64_t first_block = 0;
  int64_t block_count = -1;
  bool refuse = false;  // launches fail with cudaErrorInvalidConfiguration
};
Settings& settings();

struct Counts {
  int64_t launches = 0;
  int64_t blocks = 0;
  int64_t wide = 0;    // accesses of 16 bytes
  int64_t narrow = 0;  // others
};
Counts& counts();

// Of the last launch; empty when it was right.
const std::string& fault();

// While at least one is alive, kernels may access nothing else. Counts the bytes.
class Watch {
 public:
  Watch(const void* begin, const void* end);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  int64_t loaded = 0;
  int64_t stored = 0;

 private:
  friend Watch* watch_of(const void* begin, size_t bytes);
  const std::byte* begin_;
  const std::byte* end_;
};

}  // namespace vllm_ir::emulation
