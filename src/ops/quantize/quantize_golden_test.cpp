// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>

#include "../tests/support/golden_file.h"
#include "ops/quantize/quantize_device_testing.h"

namespace nibble {
namespace {

using testing::GoldenFile;
using testing::Quantized;
using testing::QuantizeOptions;
using testing::TestMatrix;

const GoldenFile& golden() {
  static const GoldenFile file(NIBBLE_SOURCE_DIR "/tests/golden/nvfp4_te.safetensors");
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

class QuantizeGolden : public ::testing::TestWithParam<BackendKind> {
 protected:
  /// Compares codes, scales and amax with the golden ones. Codes of -0 may differ in sign: the golden maker
  /// writes 0 for it where the hardware writes 8. Other codes, small negatives among them, must be equal.
  void expect_codes(const TestMatrix& x, const QuantizeOptions& o, const std::string& key,
                    const std::string& suffix) {
    if (!golden().has(key + "data" + suffix)) return;
    ++compared_;
    const Quantized q = testing::quantize_on(stream_, x.view(), o, testing::Outputs::Codes);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(golden().floats(key + "amax" + suffix)[0]),
              std::bit_cast<std::uint32_t>(q.amax))
        << key << suffix;
    EXPECT_EQ(golden().values<std::uint8_t>(key + "scale" + suffix), q.scales) << key << suffix;
    const auto codes = golden().values<std::uint8_t>(key + "data" + suffix);
    ASSERT_EQ(codes.size(), q.codes.size()) << key << suffix;
    const std::vector<float> source = what_is_quantized(x, o);
    for (std::int64_t i = 0; i < q.shape.rows * q.shape.cols; ++i) {
      const std::int64_t row = i / q.shape.cols, col = i % q.shape.cols;
      const auto at = static_cast<std::size_t>(row * q.shape.code_cols + col / 2);
      const int shift = 4 * static_cast<int>(col % 2);
      int ours = q.codes[at] >> shift & 15;
      const float before = source[static_cast<std::size_t>(i)];
      if (before == 0.0f && std::signbit(before)) {
        EXPECT_EQ(ours, 8) << key << suffix;
        ours = 0;
      }
      ASSERT_EQ(codes[at] >> shift & 15, ours) << key << "data" << suffix << " at " << row << ", " << col;
    }
    expect_decoded(q, key + "deq" + suffix);
  }

  /// The source in the layout of the result, after the rotation.
  std::vector<float> what_is_quantized(const TestMatrix& x, const QuantizeOptions& o) {
    const QuantizedShape s = quantized_shape(o.spec, x.rows, x.cols, o.transpose);
    std::vector<float> out(static_cast<std::size_t>(s.rows * s.cols));
    std::vector<bf16> rotated;
    if (o.spec.rotation != 0) rotated = testing::rotate_on(stream_, x.view(), o.transpose, o.spec.sign_mask);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / s.cols, col = static_cast<std::int64_t>(i) % s.cols;
      out[i] = o.spec.rotation != 0 ? rotated[i].value()
               : o.transpose        ? x.view().get(col, row)
                                    : x.view().get(row, col);
    }
    return out;
  }

  void expect_decoded(const Quantized& q, const std::string& key) {
    if (!golden().has(key)) return;
    ++decoded_;
    const std::vector<float> out = testing::dequantize_on(stream_, q, {.format = Format::Nvfp4});
    const std::vector<float> expected = golden().floats(key);
    for (std::size_t i = 0; i < out.size(); ++i) {
      // The decode factor of a huge amax is infinite, and infinity times the code 0 is NaN in both.
      if (std::isnan(expected[i]) && std::isnan(out[i])) continue;
      ASSERT_EQ(expected[i], out[i]) << key << " at " << i;
    }
  }

  Device& device() {
    if (GetParam() == BackendKind::Cuda) return *conformance::gpu();
    return host_;
  }

  HostDevice host_;
  Stream stream_{GetParam(), device(), 2};
  int compared_ = 0, decoded_ = 0;
};

TEST_P(QuantizeGolden, Nvfp4CodesScalesAndAmaxAreThoseOfTransformerEngine) {
  for (const std::string& name : golden().children("q/")) {
    if (name.starts_with("nan_")) continue;
    const std::string base = "q/" + name + "/";
    const TestMatrix x = matrix(base + "x");
    for (const char* variant : {"1d", "2d", "old1d", "old2d", "rht", "rhtns"}) {
      const std::string v = variant;
      QuantizeOptions o{.spec = {.format = Format::Nvfp4}};
      if (v.ends_with("2d")) o.spec.tile = Tile::Square;
      if (v.starts_with("old")) o.spec.profile = Profile::Te213;
      if (v.starts_with("rht")) o.spec.rotation = 16;
      if (v == "rhtns") o.spec.sign_mask = 0;
      if (name.starts_with("inf_")) o.spec.non_finite = NonFinite::AsTe;
      expect_codes(x, o, base + v + ".", "");
      o.transpose = true;
      expect_codes(x, o, base + v + ".", "_t");
    }
  }
  EXPECT_EQ(compared_, 238);
  EXPECT_EQ(decoded_, 49);
}

TEST_P(QuantizeGolden, RotatedMatricesAreThoseOfTransformerEngine) {
  int found = 0;
  for (const std::string& name : golden().children("q/")) {
    const std::string key = "q/" + name + "/rht.rht_x";
    if (!golden().has(key)) continue;
    ++found;
    const TestMatrix x = matrix("q/" + name + "/x");
    const std::vector<bf16> out = testing::rotate_on(stream_, x.view(), true);
    const std::vector<float> expected = golden().floats(key);
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(expected[i], out[i].value()) << key << " at " << i;
  }
  EXPECT_GE(found, 5);
}

TEST_P(QuantizeGolden, OperandsOfALinearAreThoseOfTransformerEngine) {
  for (const std::string& name : golden().children("lin/")) {
    const bool whole = name.starts_with("default");
    for (const char* operand : {"x", "w", "dy"}) {
      const TestMatrix x = matrix("lin/" + name + "/" + operand);
      const bool weight = std::string(operand) == "w";
      QuantizeOptions o{.spec = {.format = Format::Nvfp4}};
      if (whole && weight) o.spec.tile = Tile::Square;
      const std::string key = "lin/" + name + "/q" + operand + ".";
      expect_codes(x, o, key, "");
      o.transpose = true;
      if (whole && !weight) o.spec.rotation = 16;
      expect_codes(x, o, key, "_t");
    }
  }
  EXPECT_EQ(compared_, 18);
}

TEST_P(QuantizeGolden, Fp8AndMxfp8CodesAreThoseOfTransformerEngine) {
  for (const std::string& name : golden().children("fp8/")) {
    const std::string base = "fp8/" + name + "/";
    const TestMatrix x = matrix(base + "x");
    for (const Format format : {Format::Fp8E4M3, Format::Fp8E5M2}) {
      const std::string key = base + (format == Format::Fp8E4M3 ? "cs.e4m3." : "cs.e5m2.");
      const Quantized q = testing::quantize_on(stream_, x.view(), {.spec = {.format = format}});
      EXPECT_EQ(golden().values<std::uint8_t>(key + "data"), q.codes) << key;
      EXPECT_EQ(golden().floats(key + "scale_inv")[0], q.scale) << key;
    }
    const Quantized q = testing::quantize_on(stream_, x.view(), {.spec = {.format = Format::Mxfp8E4M3}});
    EXPECT_EQ(golden().values<std::uint8_t>(base + "mx.data"), q.codes) << base;
    EXPECT_EQ(golden().values<std::uint8_t>(base + "mx.scale_e8m0"), q.scales) << base;
  }
}

std::vector<BackendKind> backends() {
  std::vector<BackendKind> kinds = {BackendKind::Ref, BackendKind::Cpu};
  if (conformance::gpu() != nullptr) kinds.push_back(BackendKind::Cuda);
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantizeGolden, ::testing::ValuesIn(backends()),
                         [](const auto& i) { return std::string(name_of(i.param)); });

}  // namespace
}  // namespace nibble
