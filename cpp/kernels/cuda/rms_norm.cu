// SPDX-License-Identifier: Apache-2.0
#include "cpp/kernels/cuda/norm_launch.cuh"

namespace vllm_ir::kernels {
namespace {

template <typename T, typename W>
struct RmsNormParams {
  T* out;
  const T* x;
  const W* weight;
  int64_t rows;
  int64_t out_stride;
  int64_t x_stride;
  NormColumns columns;
};

template <bool kWide, typename T>
struct XRow {
  using Element = T;
  static constexpr int N = kPerVector<T>;
  using Kept = Vector<T, N>;
  T* out;
  const T* x;
  int cols;

  __device__ Kept load(int c) const { return kernels::load<kWide, N>(x, c, cols); }
  __device__ void store(int c, const Kept&, const Vector<T, N>& normed) const {
    kernels::store<kWide>(out, c, cols, normed);
  }
};

template <bool kWide, typename T, typename W>
__global__ void __launch_bounds__(kMaxRowThreads, 1) rms_norm_kernel(RmsNormParams<T, W> p) {
  const int64_t r = row_of_thread();
  const NormColumns columns = columns_of(p.columns, r < p.rows);
  const XRow<kWide, T> row{p.out + r * p.out_stride, p.x + r * p.x_stride, columns.cols};
  normalise<kWide>(row, p.weight, columns);
}

template <typename T, typename W>
LaunchStatus launch_rms_norm(const RmsNormArgs& a, void* stream) {
  constexpr int N = kPerVector<T>;
  const RmsNormParams<T, W> params{static_cast<T*>(a.out),
                                   static_cast<const T*>(a.x),
                                   static_cast<const W*>(a.weight),
                                   a.rows,
                                   a.out_stride,
                                   a.x_stride,
                                   norm_columns(a)};
  const bool wide = a.cols % N == 0 && wide_pointers({a.out, a.x, a.weight}) &&
                    wide_strides({a.out_stride, a.x_stride}, a.rows, N);
  return launch(wide ? rms_norm_kernel<true, T, W> : rms_norm_kernel<false, T, W>, params,
                norm_shape((a.cols + N - 1) / N), a.rows, stream);
}

}  // namespace

LaunchStatus rms_norm_cuda(const RmsNormArgs& args, void* stream) {
  return with_norm_types(args, [&](auto t, auto w) {
    return launch_rms_norm<decltype(t), decltype(w)>(args, stream);
  });
}

}  // namespace vllm_ir::kernels
