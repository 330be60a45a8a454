// SPDX-License-Identifier: Apache-2.0
// What the emulated CUDA functions call from inside a kernel, and the launch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vllm_ir::emulation {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Size {
  unsigned x = 1, y = 1, z = 1;
};

// Where a kernel waits, to tell one barrier from another.
struct Site {
  const char* file;
  int line;
};

// Calls `kernel(argument)` in every thread of every block. False on a fault.
bool run_grid(void (*kernel)(const void*), const void* argument, const Size& grid,
              const Size& block);

void block_barrier(const Site& site);
void warp_barrier(unsigned mask, const Site& site);
// Shows `value` to the warp and returns the one that lane `source` shows.
uint64_t warp_exchange(unsigned mask, uint64_t value, int source, const Site& site);
int lane();

// Before an access to global memory. Does not return when it is a fault.
void on_load(const void* begin, size_t bytes);
void on_store(const void* begin, size_t bytes);

// Ends the launch: the thread stays where it is for good, so it must own no memory by then.
void fail(const char* what);

}  // namespace vllm_ir::emulation

// CUDA's own variables. Written by the scheduler before a thread runs.
inline vllm_ir::emulation::Index threadIdx, blockIdx;
inline vllm_ir::emulation::Size blockDim, gridDim;
