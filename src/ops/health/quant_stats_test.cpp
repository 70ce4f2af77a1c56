// SPDX-License-Identifier: Apache-2.0
#include "ops/health/quant_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/quantize/quantize_testing.h"

namespace nibble {
namespace {

using testing::Quantized;
using testing::TestMatrix;

class QuantStatsTest : public ::testing::TestWithParam<BackendKind> {
 protected:
  QuantStats measure(const TestMatrix& x, const QuantSpec& spec) {
    const Quantized q = testing::quantize_all(stream_, x.view(), {.spec = spec});
    QuantStats stats;
    MeasureQuant m{.x_RC = x.view(), .spec = spec, .amax = &q.amax, .scale = &q.scale, .out = &stats};
    m.values = View<const bf16>(reinterpret_cast<const bf16*>(q.values.data()), q.shape.rows, q.shape.cols);
    if (q.shape.code_cols)
      m.codes = View<const std::uint8_t>(q.codes.data(), q.shape.rows, q.shape.code_cols);
    if (q.shape.scale_cols)
      m.scales = View<const std::uint8_t>(q.scales.data(), q.shape.rows, q.shape.scale_cols);
    measure_quant(stream_, m);
    return stats;
  }

  HostDevice host_;
  Stream stream_{GetParam(), host_, 2};
};

TEST_P(QuantStatsTest, ABlockWhoseScaleVanishesCountsAsFlushedAlthoughItsCodesAreSix) {
  TestMatrix x(1, 48, true);
  for (int c = 0; c < 48; ++c) x.set(0, c, c < 16 ? 1.0f : c < 32 ? 1e-7f : 0.0f);
  const QuantStats s = measure(x, {.format = Format::Nvfp4});
  EXPECT_EQ(s.count, 48);
  EXPECT_EQ(s.nonzero, 32);
  EXPECT_EQ(s.flushed, 16);
  EXPECT_EQ(s.flushed_share(), 0.5);
  EXPECT_EQ(s.saturated, 32);
  EXPECT_EQ(s.blocks, 3);
  EXPECT_EQ(s.zero_blocks, 1);
  EXPECT_EQ(s.scale_max, 1);
  EXPECT_EQ(s.scale_zero, 1);
  EXPECT_EQ(s.scale_histogram[15], 1);
  EXPECT_EQ(s.scale_histogram[0], 1);
  EXPECT_EQ(s.amax, 1.0f);
}

TEST_P(QuantStatsTest, ASquareTileIsOneBlock) {
  TestMatrix x(33, 33, false);
  for (int i = 0; i < 33 * 33; ++i) x.set(i / 33, i % 33, 1.0f);
  EXPECT_EQ(measure(x, {.format = Format::Nvfp4, .tile = Tile::Square}).blocks, 9);
  EXPECT_EQ(measure(x, {.format = Format::Nvfp4}).blocks, 99);
  EXPECT_EQ(measure(x, {.format = Format::Mxfp4}).blocks, 66);
}

TEST_P(QuantStatsTest, AMatrixThatTheFormatHoldsHasNoErrorAndCosineOne) {
  TestMatrix x(4, 32, false);
  const float grid[8] = {0.5f, 1, 1.5f, 2, 3, 4, 6, -6};
  for (int i = 0; i < 128; ++i) x.set(i / 32, i % 32, grid[i % 8]);
  for (const Format f : {Format::Bf16, Format::Mxfp4, Format::Mxfp8E4M3, Format::Mxfp8E5M2}) {
    const QuantStats s = measure(x, {.format = f});
    EXPECT_EQ(s.sum_e2, 0) << info(f).name;
    EXPECT_EQ(s.bias(), 0) << info(f).name;
    EXPECT_NEAR(s.cosine(), 1, 1e-15) << info(f).name;
    EXPECT_TRUE(std::isinf(s.sqnr_db())) << info(f).name;
  }
}

TEST_P(QuantStatsTest, BiasIsNegativeWhenValuesShrinkWhateverTheirSign) {
  TestMatrix x(1, 16, true);
  for (int c = 0; c < 16; ++c) x.set(0, c, c == 0 ? 6.0f : c % 2 ? 0.2f : -0.2f);
  EXPECT_NEAR(measure(x, {.format = Format::Mxfp4}).bias(), -15 * 0.2 / (6 + 15 * 0.2), 1e-6);
}

TEST_P(QuantStatsTest, PartsMergeToTheWhole) {
  TestMatrix x(64, 48, false), top(32, 48, false), bottom(32, 48, false);
  for (int i = 0; i < 64 * 48; ++i) {
    const auto v = static_cast<float>(testing::normal(4, i));
    x.set(i / 48, i % 48, v);
    (i < 32 * 48 ? top : bottom).set(i / 48 % 32, i % 48, v);
  }
  const QuantSpec spec{.format = Format::Mxfp8E4M3};
  QuantStats parts = measure(top, spec);
  parts.merge(measure(bottom, spec));
  const QuantStats whole = measure(x, spec);
  EXPECT_EQ(parts.count, whole.count);
  EXPECT_EQ(parts.flushed, whole.flushed);
  EXPECT_EQ(parts.saturated, whole.saturated);
  EXPECT_EQ(parts.blocks, whole.blocks);
  EXPECT_EQ(parts.amax, whole.amax);
  EXPECT_NEAR(parts.sqnr_db(), whole.sqnr_db(), 1e-9);
  for (int b = 0; b < 16; ++b) EXPECT_EQ(parts.scale_histogram[b], whole.scale_histogram[b]);
}

TEST_P(QuantStatsTest, CodesRangesAndNormsAreThoseOfTheBlock) {
  TestMatrix x(1, 32, true);
  const float grid[8] = {0.5f, 1, 1.5f, 2, 3, 4, 6, -6};
  for (int c = 0; c < 32; ++c) x.set(0, c, c < 16 ? grid[c % 8] : 0.0f);
  const QuantStats s = measure(x, {.format = Format::Mxfp4});
  for (int code = 1; code < 8; ++code) EXPECT_EQ(s.code_histogram[code], 2) << code;
  EXPECT_EQ(s.code_histogram[15], 2);
  EXPECT_EQ(s.code_histogram[0], 16);
  EXPECT_NEAR(s.code_entropy(), 0.5 * 1 + 8 * (1.0 / 16) * 4, 1e-12);
  EXPECT_EQ(s.amin, 0.5f);
  EXPECT_NEAR(s.dynamic_range(), std::log2(12.0), 1e-12);
  EXPECT_NEAR(s.block_dynamic_range(), std::log2(12.0), 1e-6);
  EXPECT_NEAR(s.crest(), 6 / std::sqrt(s.sum_x2 / 32), 1e-12);
  EXPECT_EQ(s.scale_inv_min, s.scale_inv_max);
  EXPECT_GT(s.scale_inv_min, 0);
}

TEST_P(QuantStatsTest, MemoryOfZerosIsAnEmptySum) {
  TestMatrix x(2, 16, true);
  for (int i = 0; i < 32; ++i) x.set(i / 16, i % 16, 0.25f * static_cast<float>(i % 5));
  const QuantStats once = measure(x, {.format = Format::Nvfp4});
  QuantStats empty;
  std::memset(static_cast<void*>(&empty), 0, sizeof empty);
  empty.merge(once);
  EXPECT_EQ(empty.amin, once.amin);
  EXPECT_EQ(empty.scale_inv_min, once.scale_inv_min);
  EXPECT_EQ(empty.sum_x2, once.sum_x2);
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantStatsTest, ::testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& i) { return std::string(name_of(i.param)); });

}  // namespace
}  // namespace nibble
