// SPDX-License-Identifier: Apache-2.0
// The scheduler. Compiled without ThreadSanitizer's instrumentation, like the fibers: it shares its
// state with all of them, and no barrier of CUDA's orders that.
#include "tests/cpp/emulation/block.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cpp/emulation/emulation.h"
#include "tests/cpp/emulation/fiber.h"

#if defined(VLLM_IR_EMULATION_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace vllm_ir::emulation {

namespace {

constexpr int kWarp = 32;

enum class At { kReady, kBlockBarrier, kWarpBarrier, kShuffle, kExited, kFaulty };

struct Thread {
  Fiber fiber;
  Index index;
  At at = At::kExited;
  unsigned mask = 0;
  Site site{};
  uint64_t shown[2] = {};  // in turns: the next shuffle may begin while lanes still read this one
  int turn = 0;
};

// A tag on which the race detector is told of an order; nothing to others.
struct Tag {
  void before() {
#if defined(VLLM_IR_EMULATION_TSAN)
    __tsan_release(this);
#endif
  }
  void after() {
#if defined(VLLM_IR_EMULATION_TSAN)
    __tsan_acquire(this);
#endif
  }
  char byte = 0;
};

// The threads of the block that runs.
struct Block {
  std::vector<std::unique_ptr<Thread>> all;
  int count = 0;
  int now = 0;
  void (*kernel)(const void*) = nullptr;
  const void* argument = nullptr;
  std::mt19937 random;
  Tag start, end, block_barrier, warp_barrier[kWarp];
};

Block& block = *new Block;  // leaked: its fibers have no end that could come before its own
std::string fault_text;

Thread& current() { return *block.all[block.now]; }

void set_fault(const std::string& what) {
  if (!fault_text.empty()) return;
  fault_text = what;
  std::fprintf(stderr, "emulation: %s\n", what.c_str());
}

// Whatever a thread did is over for the launcher, should the launch end before it runs again.
void wait(At at, unsigned mask, const Site& site) {
  block.end.before();
  Thread& t = current();
  t.at = at;
  t.mask = mask;
  t.site = site;
  Fiber::suspend();
}

void enter_thread() {
  block.start.after();
  block.kernel(block.argument);
  wait(At::kExited, 0, {});
}

std::string place(const Site& s) {
  const std::string file = s.file;
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(s.line);
}

bool same_site(const Site& a, const Site& b) {
  return a.line == b.line && std::string(a.file) == b.file;
}

// A bit for each lane of the warp from thread `first` on that waits like `t` does.
unsigned lanes_like(const Thread& t, int first) {
  unsigned lanes = 0;
  for (int i = first; i < std::min(first + kWarp, block.count); ++i) {
    const Thread& other = *block.all[i];
    if (other.at == t.at && other.mask == t.mask && same_site(other.site, t.site))
      lanes |= 1u << (i - first);
  }
  return lanes;
}

bool open_warp_barriers() {
  bool opened = false;
  for (int first = 0; first < block.count; first += kWarp)
    for (int i = first; i < std::min(first + kWarp, block.count); ++i) {
      const Thread& t = *block.all[i];
      if (t.at != At::kWarpBarrier && t.at != At::kShuffle) continue;
      const unsigned here = lanes_like(t, first);
      if ((here & t.mask) != t.mask) continue;
      for (int j = first; j < std::min(first + kWarp, block.count); ++j)
        if (here >> (j - first) & 1) block.all[j]->at = At::kReady;
      opened = true;
    }
  return opened;
}

bool open_block_barrier() {
  for (int i = 0; i < block.count; ++i)
    if (block.all[i]->at != At::kBlockBarrier || !same_site(block.all[i]->site, block.all[0]->site))
      return false;
  for (int i = 0; i < block.count; ++i) block.all[i]->at = At::kReady;
  return true;
}

void explain_deadlock() {
  for (int i = 0; i < block.count; ++i) {
    const Thread& t = *block.all[i];
    if (t.at != At::kWarpBarrier && t.at != At::kShuffle) continue;
    char missing[16];
    std::snprintf(missing, sizeof missing, "%08x", t.mask & ~lanes_like(t, i / kWarp * kWarp));
    return set_fault(std::string(t.at == At::kShuffle ? "shuffle" : "__syncwarp") + " at " +
                     place(t.site) + " names lanes that do not come: " + missing);
  }
  for (int i = 0; i < block.count; ++i) {
    const Thread& t = *block.all[i];
    if (t.at != At::kBlockBarrier) continue;
    return set_fault("divergent barrier: __syncthreads at " + place(t.site) +
                     " is not reached by every thread of the block");
  }
}

void run_ready_threads(const std::vector<int>& order) {
  for (const int i : order) {
    Thread& t = *block.all[i];
    if (t.at != At::kReady) continue;
    block.now = i;
    threadIdx = t.index;
    t.fiber.resume();
    if (t.at == At::kFaulty) return;
  }
}

std::vector<int> order_of_threads() {
  std::vector<int> order(block.count);
  std::iota(order.begin(), order.end(), 0);
  if (settings().order == Order::kReverse) std::reverse(order.begin(), order.end());
  if (settings().order == Order::kRandom) std::shuffle(order.begin(), order.end(), block.random);
  return order;
}

void start_threads() {
  for (int i = 0; i < block.count; ++i) {
    Thread& t = *block.all[i];
    t.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    t.at = At::kReady;
    t.turn = 0;
    t.fiber.start(&enter_thread);
  }
}

bool all_exited() {
  return std::all_of(block.all.begin(), block.all.begin() + block.count,
                     [](const auto& t) { return t->at == At::kExited; });
}

void run_threads() {
  for (;;) {
    run_ready_threads(order_of_threads());
    if (!fault_text.empty() || all_exited()) return;
    const bool opened = open_warp_barriers();
    if (!open_block_barrier() && !opened) return explain_deadlock();
  }
}

bool run_block() {
  start_threads();
  block.start.before();
  run_threads();
  block.end.after();
  if (!fault_text.empty()) return false;
  ++counts().blocks;
  return true;
}

bool valid_shape(const Size& grid, const Size& threads) {
  constexpr unsigned kMaxX = (1u << 31) - 1, kMaxYZ = 65535, kMaxThreads = 1024;
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= kMaxX && grid.y <= kMaxYZ &&
         grid.z <= kMaxYZ && threads.x > 0 && threads.y > 0 && threads.z > 0 &&
         threads.x <= kMaxThreads && threads.y <= kMaxThreads && threads.z <= 64 &&
         threads.x * threads.y * threads.z <= kMaxThreads;
}

}  // namespace

Settings& settings() {
  static Settings s;
  return s;
}
const std::string& fault() { return fault_text; }

void fail(const char* what) {
  set_fault(what);
  wait(At::kFaulty, 0, {});
}

bool run_grid(void (*kernel)(const void*), const void* argument, const Size& grid,
              const Size& threads) {
  fault_text.clear();
  ++counts().launches;
  if (settings().refuse || !valid_shape(grid, threads)) return false;
  block.count = static_cast<int>(threads.x * threads.y * threads.z);
  while (static_cast<int>(block.all.size()) < block.count)
    block.all.push_back(std::make_unique<Thread>());
  block.kernel = kernel;
  block.argument = argument;
  block.random.seed(settings().seed);
  gridDim = grid;
  blockDim = threads;
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  const int64_t first = settings().first_block, count = settings().block_count;
  for (int64_t b = first; b < (count < 0 ? blocks : std::min(blocks, first + count)); ++b) {
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    if (!run_block()) return false;
  }
  return true;
}

void block_barrier(const Site& site) {
  block.block_barrier.before();
  wait(At::kBlockBarrier, 0, site);
  block.block_barrier.after();
}

int lane() { return block.now % kWarp; }

void warp_barrier(unsigned mask, const Site& site) {
  if ((mask >> lane() & 1) == 0) fail("a lane calls __syncwarp with a mask that does not name it");
  Tag& order = block.warp_barrier[block.now / kWarp];
  order.before();
  wait(At::kWarpBarrier, mask, site);
  order.after();
}

// Orders no memory, as CUDA says.
uint64_t warp_exchange(unsigned mask, uint64_t value, int source, const Site& site) {
  if ((mask >> lane() & 1) == 0) fail("a lane calls a shuffle with a mask that does not name it");
  if ((mask >> source & 1) == 0) fail("a shuffle reads a lane that its mask does not name");
  Thread& mine = current();
  const int first = block.now / kWarp * kWarp, turn = mine.turn;
  mine.shown[turn] = value;
  mine.turn = 1 - turn;
  wait(At::kShuffle, mask, site);
  return block.all[first + source]->shown[turn];
}

}  // namespace vllm_ir::emulation
