// SPDX-License-Identifier: Apache-2.0
// silu_and_mul and gelu_and_mul: one thread a vector of gates and the vector of ups that belongs to
// it.
#include "cpp/kernels/cuda/launch.cuh"
#include "cpp/kernels/cuda/vector.cuh"

namespace vllm_ir::kernels {
namespace {

// The formulas and their order of operations are those of torch's own CUDA kernels.
struct Silu {
  __device__ static float of(float g) { return g / (1.f + expf(-g)); }
};
struct GeluErf {
  __device__ static float of(float g) {
    constexpr float kSqrtHalf = 0.70710678118654752440f;
    return g * 0.5f * (1.f + erff(g * kSqrtHalf));
  }
};
struct GeluTanh {
  __device__ static float of(float g) {
    constexpr float kSqrtTwoOverPi = 0.79788456080286535588f;
    const float inner = kSqrtTwoOverPi * (g + 0.044715f * (g * g * g));
    return 0.5f * g * (1.f + tanhf(inner));
  }
};

template <typename T>
struct GatedParams {
  T* out;
  const T* x;
  int64_t rows;
  int64_t out_stride;
  int64_t x_stride;
  int cols;
};

template <typename Activation, typename T, int N>
__device__ inline Vector<T, N> gated(const Vector<T, N>& gate, const Vector<T, N>& up) {
  Floats<N> activated = to_floats(gate);
#pragma unroll
  for (int j = 0; j < N; ++j) activated.f[j] = Activation::of(activated.f[j]);
  return rounded_to<T>(product(to_floats(rounded_to<T>(activated)), to_floats(up)));
}

template <bool kWide, typename Activation, typename T>
__global__ void __launch_bounds__(kPieceThreads) gated_kernel(GatedParams<T> p) {
  constexpr int N = kPerVector<T>;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (r >= p.rows) return;
  const T* gates = p.x + r * p.x_stride;
  const T* ups = gates + p.cols;
  T* out = p.out + r * p.out_stride;
  const int begin = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  const int step = static_cast<int>(gridDim.y * blockDim.x) * N;
  for (int c = begin; c < p.cols; c += step)
    store<kWide>(
        out, c, p.cols,
        gated<Activation>(load<kWide, N>(gates, c, p.cols), load<kWide, N>(ups, c, p.cols)));
}

template <typename Activation>
LaunchStatus launch_gated(const GatedActivationArgs& a, void* stream) {
  if (a.rows == 0 || a.cols == 0) return {};
  if (a.cols > kMaxCols) return {LaunchStatus::Kind::kTooLarge};
  return with_type(a.dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int N = kPerVector<T>;
    const GatedParams<T> params{
        static_cast<T*>(a.out),  static_cast<const T*>(a.x), a.rows, a.out_stride, a.x_stride,
        static_cast<int>(a.cols)};
    // The ups begin `cols` elements into a row, so it is `cols` that must be a multiple of N.
    const bool wide = a.cols % N == 0 && wide_pointers({a.out, a.x}) &&
                      wide_strides({a.out_stride, a.x_stride}, a.rows, N);
    return launch(wide ? gated_kernel<true, Activation, T> : gated_kernel<false, Activation, T>,
                  params, gated_shape((a.cols + N - 1) / N), a.rows, stream);
  });
}

}  // namespace

LaunchStatus silu_and_mul_cuda(const GatedActivationArgs& args, void* stream) {
  return launch_gated<Silu>(args, stream);
}

LaunchStatus gelu_and_mul_cuda(const GatedActivationArgs& args, GeluForm form, void* stream) {
  if (form == GeluForm::kTanh) return launch_gated<GeluTanh>(args, stream);
  return launch_gated<GeluErf>(args, stream);
}

}  // namespace vllm_ir::kernels
