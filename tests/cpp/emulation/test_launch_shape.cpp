// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cpp/kernels/cuda/launch_shape.h"

namespace vllm_ir::kernels {
namespace {

TEST(NormShape, RowsShareAWarpByPowersOfTwo) {
  for (int64_t vectors = 1; vectors <= 64; ++vectors) {
    const LaunchShape s = norm_shape(vectors);
    EXPECT_LE(s.lanes, kWarp);
    EXPECT_EQ(s.lanes & (s.lanes - 1), 0);
    EXPECT_EQ(s.lanes * s.rows, kNarrowBlock);
    EXPECT_GE(s.lanes * kKeptVectors, vectors);
    EXPECT_LT(s.lanes, vectors + 1);
  }
}

TEST(NormShape, AWideRowHasWholeWarpsThatKeepIt) {
  for (int64_t vectors = 65; vectors <= 2048; ++vectors) {
    const LaunchShape s = norm_shape(vectors);
    EXPECT_EQ(s.rows, 1);
    EXPECT_EQ(s.lanes % kWarp, 0);
    EXPECT_LE(s.lanes, kMaxRowThreads);
    EXPECT_GE(s.lanes * kKeptVectors, vectors);
    EXPECT_LT((s.lanes - kWarp) * kKeptVectors, vectors);
  }
}

TEST(NormShape, BeyondThatTheBlockStaysAsItIs) {
  EXPECT_EQ(norm_shape(2049).lanes, 1024);
  EXPECT_EQ(norm_shape(kMaxCols).lanes, 1024);
}

TEST(NormShape, HasTheShapesThatItsCommentNames) {
  const LaunchShape heads = norm_shape(128 * 2 / kVectorBytes);  // 128 elements of 16 bits
  EXPECT_EQ(heads.lanes, 8);
  EXPECT_EQ(heads.rows, 16);
  EXPECT_EQ(heads.blocks(100000), 6250);
  EXPECT_EQ(norm_shape(8192 * 2 / kVectorBytes).lanes, 16 * kWarp);
}

TEST(GatedShape, CoversARowByPieces) {
  for (int64_t vectors = 1; vectors <= 5000; ++vectors) {
    const LaunchShape s = gated_shape(vectors);
    EXPECT_EQ(s.lanes * s.rows, kPieceThreads);
    EXPECT_GE(s.lanes * s.pieces, vectors);
    EXPECT_LT(s.lanes * (s.pieces - 1), vectors);
  }
  EXPECT_EQ(gated_shape(14336 * 2 / kVectorBytes).pieces, 7);
  EXPECT_EQ(gated_shape(kMaxCols).pieces, kMaxGridY);
}

TEST(LaunchShape, TheLastBlockNeedNotBeFull) {
  const LaunchShape s{8, 16, 1};
  EXPECT_EQ(s.blocks(1), 1);
  EXPECT_EQ(s.blocks(16), 1);
  EXPECT_EQ(s.blocks(17), 2);
  EXPECT_EQ(s.blocks(int64_t{1} << 33), int64_t{1} << 29);
}

}  // namespace
}  // namespace vllm_ir::kernels
