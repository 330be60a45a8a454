// SPDX-License-Identifier: Apache-2.0
// fused_add_rms_norm's loops over rows. Compiled once a CPU level, with VLLM_IR_CPU_LEVEL the
// level's namespace.
#include "cpp/kernels/cpu/norm_row.h"
#include "cpp/kernels/fused_add_rms_norm.h"

namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL {
namespace {

// The unrounded sum. It is computed again for the norm, so that no memory for a row of float32 is
// needed. Each chunk of both inputs is read before either output's chunk is written: that makes the
// in-place form right.
template <typename T>
struct SumRow {
  using Element = T;
  const T* x;
  const T* residual;

  Chunk chunk(int64_t i) const { return add(load_chunk(x + i), load_chunk(residual + i)); }
  Chunk tail(int64_t i, int64_t n) const {
    return add(load_chunk(Tail<T>(x + i, n).elements),
               load_chunk(Tail<T>(residual + i, n).elements));
  }

 private:
  static Chunk add(Chunk c, const Chunk& d) {
    for (int q = 0; q < kPairs; ++q) c.pair[q] = c.pair[q] + d.pair[q];
    return c;
  }
};

template <typename T>
struct Outputs {
  T* out;
  T* residual;
};

// `next` is the row that comes after this one. Its memory is fetched meanwhile: with large matrices
// that saves a fifth here, and costs as much in rms_norm (one core of a Zen 4).
template <bool kStream, typename T, typename W>
void store_row(const Outputs<T>& to, const SumRow<T>& row, const W* weight, float scale,
               int64_t cols, const SumRow<T>& next) {
  int64_t i = 0;
  for (; i + kChunk <= cols; i += kChunk) {
    prefetch_chunk(next.x + i);
    prefetch_chunk(next.residual + i);
    const Chunk sum = row.chunk(i);
    store_chunk<kStream>(to.residual + i, sum);
    store_normed<kStream>(to.out + i, sum, weight_at(weight, i), scale);
  }
  if (i == cols) return;
  const Chunk sum = row.tail(i, cols - i);
  Tail<T> rounded;
  store_chunk<false>(rounded.elements, sum);
  rounded.store(to.residual + i, cols - i);
  store_normed_tail(to.out + i, sum, weight_at(weight, i), scale, cols - i);
}

template <typename T, typename W>
void fused_add_rms_norm_rows(const FusedAddRmsNormArgs& a, int64_t row_begin, int64_t row_end) {
  const float epsilon = float_epsilon(a.epsilon);
  const W* weight = static_cast<const W*>(a.weight);
  const auto streams = [&](const void* out, int64_t stride) {
    return can_stream(out, a.x, a.rows, a.cols, stride, sizeof(T)) && out != a.x_residual;
  };
  const bool stream =
      streams(a.out, a.out_stride) && streams(a.residual_out, a.residual_out_stride);
  const auto store = stream ? store_row<true, T, W> : store_row<false, T, W>;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const SumRow<T> row{static_cast<const T*>(a.x) + r * a.x_stride,
                        static_cast<const T*>(a.x_residual) + r * a.x_residual_stride};
    SumRow<T> next = row;
    if (r + 1 < row_end) next = {row.x + a.x_stride, row.residual + a.x_residual_stride};
    const Outputs<T> to{static_cast<T*>(a.out) + r * a.out_stride,
                        static_cast<T*>(a.residual_out) + r * a.residual_out_stride};
    const float scale = norm_scale(sum_of_squares(row, a.var_cols), a.var_cols, epsilon);
    store(to, row, weight, scale, a.cols, next);
  }
  if (stream) finish_streaming();
}

}  // namespace

void fused_add_rms_norm(const FusedAddRmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  if (args.cols == 0) return;
  with_types(args.dtype, args.weight != nullptr, args.weight_dtype, [&](auto t, auto w) {
    fused_add_rms_norm_rows<decltype(t), decltype(w)>(args, row_begin, row_end);
  });
}

}  // namespace vllm_ir::kernels::VLLM_IR_CPU_LEVEL
