// SPDX-License-Identifier: Apache-2.0
// The loops of silu_and_mul and gelu_and_mul over rows. Compiled once a CPU level, with
// VLLM_IR_CPU_LEVEL the level's namespace.
#include "cpp/kernels/act_and_mul.h"
#include "cpp/kernels/cpu/activation.h"
#include "cpp/kernels/cpu/row.h"

namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL {
namespace {

// One chunk. `round_to` and the stores are native's rounding points.
template <Activation kActivation, bool kStream, typename T>
[[gnu::always_inline]] inline void gate_chunk(T* out, const T* gate, const T* up) {
  const auto store = [](T* to, Pair act, const T* times) {
    store_pair<kStream>(to, round_to(act, T{}) * load_pair(times));
  };
  for (int i = 0; i < kChunk; i += kQuadSize) {
    const int j = i + kPairSize;
    const Quad act = activate<kActivation>({load_pair(gate + i), load_pair(gate + j)});
    store(out + i, act.first(), up + i);
    store(out + j, act.second(), up + j);
  }
}

template <Activation kActivation, bool kStream, typename T>
void gate_row(T* out, const T* gate, const T* up, int64_t cols) {
  int64_t i = 0;
  for (; i + kChunk <= cols; i += kChunk)
    gate_chunk<kActivation, kStream>(out + i, gate + i, up + i);
  if (i == cols) return;
  Tail<T> tail;
  gate_chunk<kActivation, false>(tail.elements, Tail<T>(gate + i, cols - i).elements,
                                 Tail<T>(up + i, cols - i).elements);
  tail.store(out + i, cols - i);
}

template <Activation kActivation, typename T>
void gate_rows(const ActAndMulArgs& a, int64_t row_begin, int64_t row_end) {
  const bool stream = can_stream(a.out, a.x, a.rows, a.cols, a.out_stride, sizeof(T));
  const auto gate = stream ? gate_row<kActivation, true, T> : gate_row<kActivation, false, T>;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    gate(static_cast<T*>(a.out) + r * a.out_stride, x, x + a.cols, a.cols);
  }
  if (stream) finish_streaming();
}

}  // namespace

void act_and_mul(const ActAndMulArgs& args, int64_t row_begin, int64_t row_end) {
  with_type(args.dtype, [&](auto t) {
    using T = decltype(t);
    switch (args.activation) {
      case Activation::kSilu:
        return gate_rows<Activation::kSilu, T>(args, row_begin, row_end);
      case Activation::kGelu:
        return gate_rows<Activation::kGelu, T>(args, row_begin, row_end);
      case Activation::kGeluTanh:
        return gate_rows<Activation::kGeluTanh, T>(args, row_begin, row_end);
    }
  });
}

}  // namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL
