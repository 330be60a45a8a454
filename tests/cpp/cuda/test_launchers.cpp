// SPDX-License-Identifier: Apache-2.0
// The CUDA launchers as nvcc compiled them. Without a GPU: that they link, load, and say in a
// status why they can't run. With one: that they agree with the CPU's, on a stream and in a graph.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cpp/kernels/cuda/launchers.h"
#include "tests/cpp/kernels/act_and_mul_model.h"
#include "tests/cpp/kernels/matrix.h"
#include "tests/cpp/kernels/model.h"

namespace vllm_ir::kernels {
namespace {

bool has_device() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return found;
}

// A matrix with a copy in the device's memory. Its rows are dense, `offset` elements into it.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const Matrix<T>& m, int64_t offset = 0) : matrix_(m) {
    EXPECT_EQ(cudaMalloc(&memory_, bytes() + offset * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(memory_) + offset;
    EXPECT_EQ(cudaMemcpy(data_, matrix_.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return data_; }
  Matrix<T> copied_back() {
    EXPECT_EQ(cudaMemcpy(matrix_.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return matrix_;
  }

 private:
  size_t bytes() const { return matrix_.rows() * matrix_.cols() * sizeof(T); }

  Matrix<T> matrix_;
  void* memory_ = nullptr;
  T* data_ = nullptr;
};

template <typename T>
FusedAddRmsNormArgs in_place(T* x, T* residual, const T* weight, int64_t rows, int64_t cols) {
  FusedAddRmsNormArgs a{};
  a.out = x;
  a.residual_out = residual;
  a.x = x;
  a.x_residual = residual;
  a.weight = weight;
  a.dtype = a.weight_dtype = kDType<T>;
  a.rows = rows;
  a.cols = a.var_cols = cols;
  a.out_stride = a.residual_out_stride = a.x_stride = a.x_residual_stride = cols;
  a.epsilon = 1e-5;
  return a;
}

template <typename T>
void expect_close(const Matrix<T>& got, const Matrix<T>& want) {
  for (int64_t r = 0; r < got.rows(); ++r)
    for (int64_t c = 0; c < got.cols(); ++c) {
      const double w = value(want.row(r)[c]);
      ASSERT_NEAR(value(got.row(r)[c]), w, kTolerance<T> * std::fabs(w) + 1e-7)
          << "row " << r << " column " << c << " of " << got.cols();
    }
}

Matrix<float> activated_on_device(const std::vector<float>& gates, Activation activation,
                                  cudaStream_t stream) {
  const Matrix<float> x = with_ones(gates);
  Matrix<float> out(1, x.cols() / 2);
  OnDevice<float> dx(x), dout(out);
  ActAndMulArgs a = args_of(out, x, activation);
  a.out = dout.data();
  a.x = dx.data();
  const LaunchStatus status = act_and_mul_cuda(a, stream);
  EXPECT_TRUE(status.ok()) << text_of(status);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  return dout.copied_back();
}

// The norm against the CPU's; `with_stream` runs a launch on a stream of its choice.
template <typename T>
void check_norm(const std::function<void(const std::function<LaunchStatus(void*)>&)>& with_stream) {
  for (const int64_t cols : {1, 128, 3420, 4096, 8200, 20000})
    for (const int64_t offset : {0, 1}) {
      const int64_t rows = cols < 200 ? 1000 : 3;
      Matrix<T> x = Matrix<T>(rows, cols).randomise(1),
                residual = Matrix<T>(rows, cols).randomise(2);
      const Matrix<T> weight = Matrix<T>(1, cols).randomise(3);
      OnDevice<T> dx(x, offset), dresidual(residual, offset), dweight(weight, offset);
      const auto args =
          in_place(dx.data(), dresidual.data(), static_cast<const T*>(dweight.data()), rows, cols);
      with_stream([&](void* stream) { return fused_add_rms_norm_cuda(args, stream); });
      fused_add_rms_norm_cpu(in_place(x.data(), residual.data(), weight.data(), rows, cols), 0,
                             rows);
      expect_close(dx.copied_back(), x);
      EXPECT_EQ(count_different(dresidual.copied_back(), residual), 0);
    }
}

TEST(CudaLaunchers, WithoutADriverTheStatusSaysSo) {
  if (has_device()) GTEST_SKIP() << "there is a GPU";
  Matrix<float> x(1, 8), residual(1, 8);
  const LaunchStatus status =
      fused_add_rms_norm_cuda(in_place<float>(x.data(), residual.data(), nullptr, 1, 8), nullptr);
  EXPECT_EQ(status.kind, LaunchStatus::Kind::kCudaError);
  EXPECT_NE(status.cuda_error, 0);
  EXPECT_NE(std::string(text_of(status)).find("CUDA"), std::string::npos) << text_of(status);
  const FusedAddRmsNormArgs nothing = in_place<float>(nullptr, nullptr, nullptr, 0, 8);
  EXPECT_TRUE(fused_add_rms_norm_cuda(nothing, nullptr).ok());
}

template <typename T>
struct CudaDevice : testing::Test {
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "needs a GPU";
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  cudaStream_t stream = nullptr;
};
using Types = testing::Types<float, Half, BFloat>;
TYPED_TEST_SUITE(CudaDevice, Types);

TYPED_TEST(CudaDevice, AgreesWithTheCpuOnAStream) {
  check_norm<TypeParam>([&](const auto& launch) {
    const LaunchStatus status = launch(this->stream);
    ASSERT_TRUE(status.ok()) << text_of(status);
    ASSERT_EQ(cudaStreamSynchronize(this->stream), cudaSuccess);
  });
}

using CudaDeviceFloat = CudaDevice<float>;
TEST_F(CudaDeviceFloat, TheActivationIsWithinItsUlps) {
  const std::vector<float> gates = all_kinds_of_numbers();
  for (const auto& [activation, bound] : kCudaUlps) {
    const Matrix<float> got = activated_on_device(gates, activation, stream);
    for (size_t c = 0; c < gates.size(); ++c)
      ASSERT_LE(cuda_ulps(got.row(0)[c], gates[c], activation), bound)
          << std::hexfloat << gates[c] << " became " << got.row(0)[c];
    expect_torchs_values(activated_on_device(special_gates(), activation, stream).row(0));
  }
}

TYPED_TEST(CudaDevice, AgreesWithTheCpuInAGraph) {
  check_norm<TypeParam>([&](const auto& launch) {
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    ASSERT_EQ(cudaStreamBeginCapture(this->stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    const LaunchStatus status = launch(this->stream);
    ASSERT_EQ(cudaStreamEndCapture(this->stream, &graph), cudaSuccess);
    ASSERT_TRUE(status.ok()) << text_of(status);
    ASSERT_EQ(cudaGraphInstantiate(&runnable, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(runnable, this->stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(this->stream), cudaSuccess);
    cudaGraphExecDestroy(runnable);
    cudaGraphDestroy(graph);
  });
}

}  // namespace
}  // namespace vllm_ir::kernels
