// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "../tests/support/golden_file.h"
#include "numeric/e8m0.h"
#include "ops/quantize/quantize_testing.h"

/// The bytes of Transformer Engine's variants: row-scaled NVFP4, four over six, FP8 blocks.
namespace nibble {
namespace {

using testing::GoldenFile;
using testing::Quantized;
using testing::TestMatrix;

const GoldenFile& golden() {
  static const GoldenFile file(NIBBLE_SOURCE_DIR "/tests/golden/te_variants.safetensors");
  return file;
}

TestMatrix matrix(const std::string& key) {
  const auto& t = golden().tensor(key);
  TestMatrix x(t.shape.at(0), t.shape.at(1), t.dtype == "F32");
  const std::vector<float> v = golden().floats(key);
  for (std::int64_t i = 0; i < x.rows * x.cols; ++i)
    x.set(i / x.cols, i % x.cols, v[static_cast<std::size_t>(i)]);
  return x;
}

class VariantsGolden : public ::testing::TestWithParam<BackendKind> {
 protected:
  Quantized run(const TestMatrix& x, const QuantSpec& spec, bool transpose = false) {
    return testing::quantize_all(stream_, x.view(), {.spec = spec, .transpose = transpose});
  }

  /// Codes and scales of NVFP4. The golden maker writes 0 for -0 where the hardware and we write 8; a code 8
  /// of ours must then come from a source of -0.
  void expect_nvfp4(const TestMatrix& x, const Quantized& q, bool transpose, const std::string& data,
                    const std::string& scale) {
    ++compared_;
    EXPECT_EQ(golden().values<std::uint8_t>(scale), q.scales) << scale;
    const auto codes = golden().values<std::uint8_t>(data);
    ASSERT_EQ(codes.size(), q.codes.size()) << data;
    for (std::int64_t i = 0; i < q.shape.rows * q.shape.cols; ++i) {
      const std::int64_t row = i / q.shape.cols, col = i % q.shape.cols;
      const auto at = static_cast<std::size_t>(row * q.shape.code_cols + col / 2);
      const int shift = 4 * static_cast<int>(col % 2);
      int ours = q.codes[at] >> shift & 15;
      const float before = transpose ? x.view().get(col, row) : x.view().get(row, col);
      if (before == 0.0f && std::signbit(before) && ours == 8) ours = 0;
      ASSERT_EQ(codes[at] >> shift & 15, ours) << data << " at " << row << ", " << col;
    }
  }

  HostDevice host_;
  Stream stream_{GetParam(), host_, 2};
  int compared_ = 0;
};

TEST_P(VariantsGolden, RowScaledCodesScalesAndRowAmaxAreThoseOfTransformerEngine) {
  const QuantSpec spec{.format = Format::Nvfp4, .tensor_scaling = TensorScaling::Row};
  for (const std::string& name : golden().children("q/")) {
    const std::string base = "q/" + name + "/row.";
    if (!golden().has(base + "data")) continue;
    const TestMatrix x = matrix("q/" + name + "/x");
    for (const bool transpose : {false, true}) {
      const std::string suffix = transpose ? "_t" : "";
      const Quantized q = run(x, spec, transpose);
      EXPECT_EQ(golden().floats(fmt::format("{}amax{}", base, suffix)), q.row_amax) << base << suffix;
      expect_nvfp4(x, q, transpose, fmt::format("{}data{}", base, suffix),
                   fmt::format("{}scale{}", base, suffix));
    }
  }
  EXPECT_EQ(compared_, 24);
}

TEST_P(VariantsGolden, FourOverSixCodesScalesAndAmaxAreThoseOfTransformerEngine) {
  for (const std::string& name : golden().children("q/")) {
    for (const FourOverSix error : {FourOverSix::Mae, FourOverSix::Mse}) {
      for (const std::uint16_t bound : {448, 256}) {
        for (const Tile tile : {Tile::Row, Tile::Square}) {
          const std::string base =
              fmt::format("q/{}/46.{}.{}.{}.", name, error == FourOverSix::Mae ? "mae" : "mse", bound,
                          tile == Tile::Row ? "1d" : "2d");
          if (!golden().has(base + "data")) continue;
          const TestMatrix x = matrix("q/" + name + "/x");
          const Quantized q =
              run(x, {.format = Format::Nvfp4, .tile = tile, .four_over_six = error, .scale_bound = bound});
          EXPECT_EQ(golden().floats(base + "amax")[0], q.amax) << base;
          expect_nvfp4(x, q, false, base + "data", base + "scale");
        }
      }
    }
  }
  EXPECT_EQ(compared_, 48);
}

/// The power-of-two scales are bytes of E8M0 here and FP32 there: the same numbers.
std::vector<float> decode_scales(const Quantized& q, Format format) {
  std::vector<float> out;
  if (format == Format::Fp8BlockE4M3) {
    for (std::uint8_t byte : q.scales) out.push_back(E8M0{byte}.value());
  } else {
    out.resize(q.scales.size() / 4);
    std::memcpy(out.data(), q.scales.data(), q.scales.size());
  }
  return out;
}

/// One row for every 128 of a square tile's.
std::vector<float> one_of_128_rows(const std::vector<float>& scales, const QuantizedShape& s,
                                   std::size_t cols) {
  std::vector<float> out;
  for (std::size_t r = 0; r < static_cast<std::size_t>(s.rows); r += 128) {
    for (std::size_t c = 0; c < cols; ++c) out.push_back(scales[r * cols + c]);
  }
  return out;
}

TEST_P(VariantsGolden, Fp8BlocksAreThoseOfTransformerEngine) {
  for (const std::string& name : golden().children("fp8/")) {
    const TestMatrix x = matrix("fp8/" + name + "/x");
    for (const Format format : {Format::Fp8BlockE4M3, Format::Fp8BlockFp32E4M3}) {
      const std::string p2 = format == Format::Fp8BlockE4M3 ? ".p2" : "";
      const std::string rows = fmt::format("fp8/{}/blk1x128{}", name, p2),
                        tiles = fmt::format("fp8/{}/blk128x128{}", name, p2);
      for (const bool transpose : {false, true}) {
        const std::string suffix = transpose ? "_t" : "";
        const Quantized q = run(x, {.format = format}, transpose);
        EXPECT_EQ(golden().values<std::uint8_t>(fmt::format("{}.data{}", rows, suffix)), q.codes)
            << rows << suffix;
        EXPECT_EQ(golden().floats(fmt::format("{}.scale_inv{}", rows, suffix)), decode_scales(q, format))
            << rows << suffix;
        ++compared_;
      }
      const Quantized q = run(x, {.format = format, .tile = Tile::Square});
      const std::vector<float> scales = decode_scales(q, format);
      EXPECT_EQ(golden().values<std::uint8_t>(tiles + ".data"), q.codes) << tiles;
      EXPECT_EQ(golden().floats(tiles + ".scale_inv"),
                one_of_128_rows(scales, q.shape, scales.size() / static_cast<std::size_t>(q.shape.rows)))
          << tiles;
      ++compared_;
    }
  }
  EXPECT_EQ(compared_, 24);
}

INSTANTIATE_TEST_SUITE_P(Backends, VariantsGolden, ::testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& i) { return std::string(name_of(i.param)); });

}  // namespace
}  // namespace nibble
