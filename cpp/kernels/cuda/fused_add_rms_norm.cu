// SPDX-License-Identifier: Apache-2.0
#include "cpp/kernels/cuda/norm_launch.cuh"

namespace vllm_ir::kernels {
namespace {

template <typename T, typename W>
struct FusedAddRmsNormParams {
  T* out;
  T* residual_out;
  const T* x;
  const T* x_residual;
  const W* weight;
  int64_t rows;
  int64_t out_stride;
  int64_t residual_out_stride;
  int64_t x_stride;
  int64_t x_residual_stride;
  NormColumns columns;
};

// The sum is kept in float32, unrounded. Both outputs are written after both inputs of the same
// columns were read for the last time, which makes the in-place form right.
template <bool kWide, typename T>
struct SumRow {
  using Element = T;
  static constexpr int N = kPerVector<T>;
  using Kept = Floats<N>;
  T* out;
  T* residual_out;
  const T* x;
  const T* x_residual;
  int cols;

  __device__ Kept load(int c) const {
    const Floats<N> a = to_floats(kernels::load<kWide, N>(x, c, cols));
    const Floats<N> b = to_floats(kernels::load<kWide, N>(x_residual, c, cols));
    Kept sum;
#pragma unroll
    for (int j = 0; j < N; ++j) sum.f[j] = a.f[j] + b.f[j];
    return sum;
  }

  __device__ void store(int c, const Kept& sum, const Vector<T, N>& normed) const {
    kernels::store<kWide>(residual_out, c, cols, rounded_to<T>(sum));
    kernels::store<kWide>(out, c, cols, normed);
  }
};

template <bool kWide, typename T, typename W>
__global__ void __launch_bounds__(kMaxRowThreads, 1)
    fused_add_rms_norm_kernel(FusedAddRmsNormParams<T, W> p) {
  const int64_t r = row_of_thread();
  const NormColumns columns = columns_of(p.columns, r < p.rows);
  const SumRow<kWide, T> row{p.out + r * p.out_stride, p.residual_out + r * p.residual_out_stride,
                             p.x + r * p.x_stride, p.x_residual + r * p.x_residual_stride,
                             columns.cols};
  normalise<kWide>(row, p.weight, columns);
}

template <typename T, typename W>
LaunchStatus launch_fused_add_rms_norm(const FusedAddRmsNormArgs& a, void* stream) {
  constexpr int N = kPerVector<T>;
  const FusedAddRmsNormParams<T, W> params{static_cast<T*>(a.out),
                                           static_cast<T*>(a.residual_out),
                                           static_cast<const T*>(a.x),
                                           static_cast<const T*>(a.x_residual),
                                           static_cast<const W*>(a.weight),
                                           a.rows,
                                           a.out_stride,
                                           a.residual_out_stride,
                                           a.x_stride,
                                           a.x_residual_stride,
                                           norm_columns(a)};
  const bool wide =
      a.cols % N == 0 && wide_pointers({a.out, a.residual_out, a.x, a.x_residual, a.weight}) &&
      wide_strides({a.out_stride, a.residual_out_stride, a.x_stride, a.x_residual_stride}, a.rows,
                   N);
  return launch(
      wide ? fused_add_rms_norm_kernel<true, T, W> : fused_add_rms_norm_kernel<false, T, W>, params,
      norm_shape((a.cols + N - 1) / N), a.rows, stream);
}

}  // namespace

LaunchStatus fused_add_rms_norm_cuda(const FusedAddRmsNormArgs& args, void* stream) {
  return with_norm_types(args, [&](auto t, auto w) {
    return launch_fused_add_rms_norm<decltype(t), decltype(w)>(args, stream);
  });
}

}  // namespace vllm_ir::kernels
