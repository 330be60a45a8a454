// SPDX-License-Identifier: Apache-2.0
// More than 2^31 elements: address space without memory behind it, of which a few rows are touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "cpp/kernels/cuda/launchers.h"
#include "tests/cpp/emulation/cuda_model.h"
#include "tests/cpp/emulation/emulation.h"
#include "tests/cpp/kernels/elements.h"

namespace vllm_ir::kernels {
namespace {

constexpr int64_t kTwoTo31 = int64_t{1} << 31;

// Reads as zero until it is written. Kernels may access nothing else.
class Sparse {
 public:
  explicit Sparse(int64_t elements) : bytes_(elements * sizeof(BFloat)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (there()) watch_.emplace(data(), data() + elements);
  }
  ~Sparse() {
    if (there()) munmap(memory_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;

  bool there() const { return memory_ != MAP_FAILED; }
  BFloat* data() const { return static_cast<BFloat*>(memory_); }

 private:
  size_t bytes_;
  void* memory_;
  std::optional<emulation::Watch> watch_;
};

std::vector<float> fill(BFloat* row, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c) row[c] = BFloat::of(static_cast<float>(c % 13) - 5.5f);
  return values(row, cols);
}

void expect_row(const BFloat* got, const std::vector<BFloat>& want) {
  for (size_t c = 0; c < want.size(); ++c) ASSERT_TRUE(same(got[c], want[c])) << "column " << c;
}

// The last of three rows begins beyond 2^31 elements; `unaligned` takes the narrow path.
struct FarRow {
  int64_t stride, begin;
};
FarRow far_row(bool unaligned) {
  const int64_t stride = kTwoTo31 / 2 + (unaligned ? 9 : 8);
  return {stride, 2 * stride};
}

TEST(CudaLarge, RmsNormReachesARowBeyondTwoToThe31) {
  for (const bool unaligned : {false, true}) {
    const FarRow far = far_row(unaligned);
    const Sparse x(far.begin + 64), out(far.begin + 64);
    if (!x.there() || !out.there()) GTEST_SKIP() << "no address space";
    const std::vector<float> row = fill(x.data() + far.begin, 64);
    RmsNormArgs a{};
    a.out = out.data();
    a.x = x.data();
    a.dtype = DType::kBFloat16;
    a.rows = 3;
    a.cols = a.var_cols = 64;
    a.out_stride = a.x_stride = far.stride;
    a.epsilon = 1e-5;
    const LaunchStatus status = rms_norm_cuda(a, nullptr);
    ASSERT_TRUE(status.ok()) << text_of(status);
    expect_row(out.data() + far.begin, cuda_model_norm<BFloat>(row, {}, 64, 1e-5));
  }
}

TEST(CudaLarge, FusedAddRmsNormReachesARowBeyondTwoToThe31) {
  for (const bool unaligned : {false, true}) {
    const FarRow far = far_row(unaligned);
    const Sparse x(far.begin + 64), residual(far.begin + 64);
    if (!x.there() || !residual.there()) GTEST_SKIP() << "no address space";
    std::vector<float> sum = fill(x.data() + far.begin, 64);
    const std::vector<float> added = fill(residual.data() + far.begin, 64);
    for (size_t c = 0; c < sum.size(); ++c) sum[c] += added[c];
    FusedAddRmsNormArgs a{};
    a.out = x.data();
    a.residual_out = residual.data();
    a.x = x.data();
    a.x_residual = residual.data();
    a.dtype = DType::kBFloat16;
    a.rows = 3;
    a.cols = a.var_cols = 64;
    a.out_stride = a.residual_out_stride = a.x_stride = a.x_residual_stride = far.stride;
    a.epsilon = 1e-5;
    const LaunchStatus status = fused_add_rms_norm_cuda(a, nullptr);
    ASSERT_TRUE(status.ok()) << text_of(status);
    expect_row(x.data() + far.begin, cuda_model_norm<BFloat>(sum, {}, 64, 1e-5));
    for (int64_t c = 0; c < 64; ++c)
      ASSERT_EQ(value(residual.data()[far.begin + c]), value(BFloat::of(sum[c])));
  }
}

TEST(CudaLarge, SiluAndMulReachesARowBeyondTwoToThe31) {
  for (const bool unaligned : {false, true}) {
    const FarRow far = far_row(unaligned);
    const Sparse x(far.begin + 64), out(far.begin + 32);
    if (!x.there() || !out.there()) GTEST_SKIP() << "no address space";
    for (int64_t c = 0; c < 64; ++c) x.data()[far.begin + c] = BFloat::of(c < 32 ? 50.f : 2.f);
    const ActAndMulArgs a{out.data(), x.data(), DType::kBFloat16, Activation::kSilu,
                          3,          32,       far.stride,       far.stride};
    const LaunchStatus status = act_and_mul_cuda(a, nullptr);
    ASSERT_TRUE(status.ok()) << text_of(status);
    expect_row(out.data() + far.begin, std::vector<BFloat>(32, BFloat::of(100.f)));
  }
}

// More rows than an int counts; only the last blocks run.
TEST(CudaLarge, TheLastOfMoreThanTwoToThe32RowsIsReached) {
  const int64_t rows = 2 * kTwoTo31 + 200;
  const Sparse x(rows), out(rows);
  if (!x.there() || !out.there()) GTEST_SKIP() << "no address space";
  x.data()[rows - 1] = BFloat::of(-3.f);
  RmsNormArgs a{};
  a.out = out.data();
  a.x = x.data();
  a.dtype = DType::kBFloat16;
  a.rows = rows;
  a.cols = a.var_cols = a.out_stride = a.x_stride = 1;
  emulation::settings().first_block = norm_shape(1).blocks(rows) - 3;
  const LaunchStatus status = rms_norm_cuda(a, nullptr);
  emulation::settings() = {};
  ASSERT_TRUE(status.ok()) << text_of(status);
  EXPECT_EQ(value(out.data()[rows - 1]), -1.f);
}

// One row whose ups begin at 2^30, the most columns there are. A grid has fewer blocks than the row
// has pieces, so each block takes several; only the one of the last column runs.
TEST(CudaLarge, TheLastColumnOfTheWidestRowIsReached) {
  const Sparse x(2 * kMaxCols), out(kMaxCols);
  if (!x.there() || !out.there()) GTEST_SKIP() << "no address space";
  x.data()[kMaxCols - 1] = BFloat::of(50.f);
  x.data()[2 * kMaxCols - 1] = BFloat::of(2.f);
  const ActAndMulArgs a{out.data(), x.data(), DType::kBFloat16, Activation::kSilu,
                        1,          kMaxCols, kMaxCols,         2 * kMaxCols};
  const int64_t last_vector = kMaxCols / 8 - 1;
  emulation::settings().first_block = last_vector / kPieceThreads % kMaxGridY;
  emulation::settings().block_count = 1;
  const LaunchStatus status = act_and_mul_cuda(a, nullptr);
  emulation::settings() = {};
  ASSERT_TRUE(status.ok()) << text_of(status);
  EXPECT_EQ(value(out.data()[kMaxCols - 1]), 100.f);
}

}  // namespace
}  // namespace vllm_ir::kernels
