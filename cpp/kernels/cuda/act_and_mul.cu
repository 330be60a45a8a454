// SPDX-License-Identifier: Apache-2.0
// One thread a vector of gates and the vector of ups that belongs to it.
#include "cpp/kernels/cuda/launch.cuh"
#include "cpp/kernels/cuda/vector.cuh"

namespace vllm_ir::kernels {
namespace {

// CUDA's documentation has expf within 2 and erfcf within 4 units of the last place of the exact
// value rounded, and a quotient rounded once. The errors in act_and_mul.h follow from that; it does
// not hold under -use_fast_math.
//
// __fmul_rn is a product that no addition takes in unrounded, so that arguments are native's.
struct Silu {
  __device__ static float of(float g) { return g / (1.f + expf(-g)); }
};
struct Gelu {
  __device__ static float of(float g) {
    constexpr float kSqrtHalf = 0x1.6a09e6p-1f;
    return 0.5f * g * erfcf(__fmul_rn(g, -kSqrtHalf));
  }
};
struct GeluTanh {
  __device__ static float of(float g) {
    constexpr float kTwiceSqrtTwoOverPi = 0x1.988454p0f;
    const float twice_u = __fmul_rn(g + __fmul_rn(0.044715f, g * g * g), kTwiceSqrtTwoOverPi);
    return g / (1.f + expf(-twice_u));
  }
};

template <typename T>
struct ActAndMulParams {
  T* out;
  const T* x;
  int64_t rows;
  int64_t out_stride;
  int64_t x_stride;
  int cols;
};

template <typename Act, typename T, int N>
__device__ inline Vector<T, N> gated(const Vector<T, N>& gate, const Vector<T, N>& up) {
  Floats<N> activated = to_floats(gate);
#pragma unroll
  for (int j = 0; j < N; ++j) activated.f[j] = Act::of(activated.f[j]);
  return rounded_to<T>(product(to_floats(rounded_to<T>(activated)), to_floats(up)));
}

// Five blocks are to fit, for which Gelu must be told; 0 says nothing: the narrow path fits by
// itself and would spill if it were told.
template <bool kWide, typename Act, typename T>
__global__ void __launch_bounds__(kPieceThreads, kWide ? 5 : 0)
    act_and_mul_kernel(ActAndMulParams<T> p) {
  constexpr int N = kPerVector<T>;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (r >= p.rows) return;
  const T* gates = p.x + r * p.x_stride;
  const T* ups = gates + p.cols;
  T* out = p.out + r * p.out_stride;
  const int begin = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  const int step = static_cast<int>(gridDim.y * blockDim.x) * N;
  for (int c = begin; c < p.cols; c += step)
    store<kWide>(out, c, p.cols,
                 gated<Act>(load<kWide, N>(gates, c, p.cols), load<kWide, N>(ups, c, p.cols)));
}

template <typename Act>
LaunchStatus launch_act_and_mul(const ActAndMulArgs& a, void* stream) {
  if (a.rows == 0 || a.cols == 0) return {};
  if (a.cols > kMaxCols) return {LaunchStatus::Kind::kTooLarge};
  return with_type(a.dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int N = kPerVector<T>;
    const ActAndMulParams<T> params{
        static_cast<T*>(a.out),  static_cast<const T*>(a.x), a.rows, a.out_stride, a.x_stride,
        static_cast<int>(a.cols)};
    // The ups begin `cols` elements into a row, so it is `cols` that must be a multiple of N.
    const bool wide = a.cols % N == 0 && wide_pointers({a.out, a.x}) &&
                      wide_strides({a.out_stride, a.x_stride}, a.rows, N);
    return launch(wide ? act_and_mul_kernel<true, Act, T> : act_and_mul_kernel<false, Act, T>,
                  params, gated_shape((a.cols + N - 1) / N), a.rows, stream);
  });
}

}  // namespace

LaunchStatus act_and_mul_cuda(const ActAndMulArgs& args, void* stream) {
  switch (args.activation) {
    case Activation::kSilu:
      return launch_act_and_mul<Silu>(args, stream);
    case Activation::kGelu:
      return launch_act_and_mul<Gelu>(args, stream);
    case Activation::kGeluTanh:
      return launch_act_and_mul<GeluTanh>(args, stream);
  }
  return {LaunchStatus::Kind::kInvalidArgument};
}

}  // namespace vllm_ir::kernels
