// SPDX-License-Identifier: Apache-2.0
// rms_norm's loops over rows. Compiled once a CPU level, with VLLM_IR_CPU_LEVEL the level's
// namespace.
#include "cpp/kernels/cpu/norm_row.h"
#include "cpp/kernels/rms_norm.h"

namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL {
namespace {

template <typename T>
struct Row {
  using Element = T;
  const T* x;
  Chunk chunk(int64_t i) const { return load_chunk(x + i); }
  Chunk tail(int64_t i, int64_t n) const { return load_chunk(Tail<T>(x + i, n).elements); }
};

template <bool kStream, typename T, typename W>
void store_row(T* out, const Row<T>& row, const W* weight, float scale, int64_t cols) {
  int64_t i = 0;
  for (; i + kChunk <= cols; i += kChunk) {
    store_normed<kStream>(out + i, row.chunk(i), weight_at(weight, i), scale);
  }
  if (i < cols)
    store_normed_tail(out + i, row.tail(i, cols - i), weight_at(weight, i), scale, cols - i);
}

template <typename T, typename W>
void rms_norm_rows(const RmsNormArgs& a, int64_t row_begin, int64_t row_end) {
  const float epsilon = float_epsilon(a.epsilon);
  const W* weight = static_cast<const W*>(a.weight);
  const bool stream = can_stream(a.out, a.x, a.rows, a.cols, a.out_stride, sizeof(T));
  const auto store = stream ? store_row<true, T, W> : store_row<false, T, W>;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    T* out = static_cast<T*>(a.out) + r * a.out_stride;
    const Row<T> row{x};
    const float scale = norm_scale(sum_of_squares(row, a.var_cols), a.var_cols, epsilon);
    store(out, row, weight, scale, a.cols);
  }
  if (stream) finish_streaming();
}

}  // namespace

void rms_norm(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  if (args.cols == 0) return;
  with_types(args.dtype, args.weight != nullptr, args.weight_dtype, [&](auto t, auto w) {
    rms_norm_rows<decltype(t), decltype(w)>(args, row_begin, row_end);
  });
}

}  // namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL
