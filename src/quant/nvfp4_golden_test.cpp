// SPDX-License-Identifier: Apache-2.0
#include "quant/nvfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "../../tests/support/golden_file.h"
#include "numeric/bf16.h"
#include "quant/hadamard.h"
#include "quant/swizzle.h"

/// Every tensor of Transformer Engine's vectors, block by block with the plain headers. Bytes must be equal.
namespace nibble {
namespace {

const testing::GoldenFile& golden() {
  static const testing::GoldenFile file(NIBBLE_SOURCE_DIR "/tests/golden/nvfp4_te.safetensors");
  return file;
}

struct Matrix {
  std::size_t rows, columns;
  std::vector<float> data;
  float at(std::size_t r, std::size_t c) const { return data[r * columns + c]; }
};

Matrix load(const std::string& key) {
  const auto& shape = golden().tensor(key).shape;
  return {static_cast<std::size_t>(shape[0]), static_cast<std::size_t>(shape[1]), golden().floats(key)};
}

Matrix transposed(const Matrix& x) {
  Matrix t{x.columns, x.rows, std::vector<float>(x.data.size())};
  for (std::size_t r = 0; r < x.rows; ++r) {
    for (std::size_t c = 0; c < x.columns; ++c) t.data[c * x.rows + r] = x.at(r, c);
  }
  return t;
}

Matrix rotated(Matrix x, std::uint16_t mask) {
  for (std::size_t i = 0; i < x.data.size(); i += 16) {
    float block[16];
    std::copy_n(&x.data[i], 16, block);
    rotate_block(block, mask);
    std::copy_n(block, 16, &x.data[i]);
  }
  return x;
}

struct Quantized {
  float amax = 0;
  std::vector<std::uint8_t> data, scale;
  std::vector<float> enc, deq;
};

E4M3 tile_scale(const Matrix& x, std::size_t r, std::size_t c, Tile tile, const TensorScale& g, Profile p) {
  const std::size_t height = tile == Tile::Square ? 16 : 1, first = r / height * height;
  float amax = 0;
  for (std::size_t i = first; i < first + height; ++i) {
    for (std::size_t j = c; j < c + 16; ++j) amax = amax_dropping_nan(amax, x.at(i, j));
  }
  return block_scale(amax, g, p);
}

Quantized quantize(const Matrix& x, Tile tile, Profile profile) {
  Quantized q;
  for (float v : x.data) q.amax = amax_step(q.amax, v, NonFinite::AsTe);
  const TensorScale g = TensorScale::from_amax(q.amax);
  for (std::size_t r = 0; r < x.rows; ++r) {
    for (std::size_t c = 0; c < x.columns; c += 16) {
      float block[16];
      std::copy_n(&x.data[r * x.columns + c], 16, block);
      Nvfp4Block b;
      b.scale = tile_scale(x, r, c, tile, g, profile);
      encode_codes(block, block_multiplier(b.scale, g), NearestEven{}, b.codes);
      if (tile == Tile::Row) {
        const Nvfp4Block whole = encode_block(block, g, profile, NearestEven{});
        EXPECT_EQ(whole.scale, b.scale);
        EXPECT_TRUE(std::equal(b.codes, b.codes + 8, whole.codes));
      }
      q.scale.push_back(b.scale.bits);
      q.enc.push_back(block_multiplier(b.scale, g));
      q.data.insert(q.data.end(), b.codes, b.codes + 8);
      for (int j = 0; j < 16; ++j) q.deq.push_back(decode(unpack_code(b.codes, j), b.scale, q.amax));
    }
  }
  return q;
}

/// The reference gives -0.0 the code 0 where the hardware gives 8: compare without the sign of zero.
std::vector<std::uint8_t> without_negative_zero(std::vector<std::uint8_t> bytes) {
  for (std::uint8_t& b : bytes) {
    if ((b & 0x0F) == 0x08) b &= 0xF0;
    if ((b & 0xF0) == 0x80) b &= 0x0F;
  }
  return bytes;
}

template <class T, class U>
void expect_equal(const std::vector<T>& ours, const std::vector<U>& theirs, const std::string& what) {
  ASSERT_EQ(ours.size(), theirs.size()) << what;
  std::size_t differ = 0, first = 0;
  for (std::size_t i = ours.size(); i-- > 0;) {
    const bool both_nan = ours[i] != ours[i] && theirs[i] != theirs[i];  // decoded values that overflowed
    if (ours[i] != theirs[i] && !both_nan) ++differ, first = i;
  }
  EXPECT_EQ(differ, 0u) << what << ": first at " << first << ", ours " << +ours[first] << ", reference "
                        << +theirs[first];
}

/// Compares every field that the file has of one copy; `suffix` is "" or "_t".
int compare(const std::string& base, const std::string& suffix, const Quantized& q) {
  const auto key = [&](const char* field) { return base + "." + field + suffix; };
  if (!golden().has(key("data"))) return 0;
  expect_equal(std::vector<float>{q.amax}, golden().floats(key("amax")), key("amax"));
  expect_equal(q.scale, golden().values<std::uint8_t>(key("scale")), key("scale"));
  expect_equal(without_negative_zero(q.data),
               without_negative_zero(golden().values<std::uint8_t>(key("data"))), key("data"));
  if (golden().has(key("enc"))) expect_equal(q.enc, golden().floats(key("enc")), key("enc"));
  if (golden().has(key("deq"))) expect_equal(q.deq, golden().floats(key("deq")), key("deq"));
  return 1;
}

TEST(GoldenNvfp4, RowBlocksAndSquareTilesOfBothProfilesHaveTheReferencesBytes) {
  int copies = 0;
  for (const std::string& name : golden().children("q/")) {
    const Matrix x = load("q/" + name + "/x"), xt = transposed(x);
    for (const char* variant : {"1d", "2d", "old1d", "old2d"}) {
      const std::string base = "q/" + name + "/" + variant;
      if (!golden().has(base + ".data")) continue;
      const Tile tile = base.ends_with("2d") ? Tile::Square : Tile::Row;
      const Profile profile = std::string(variant).starts_with("old") ? Profile::Te213 : Profile::Te;
      copies += compare(base, "", quantize(x, tile, profile));
      copies += compare(base, "_t", quantize(xt, tile, profile));
    }
  }
  EXPECT_EQ(copies, 218) << "tensors compared";
}

TEST(GoldenNvfp4, RotatedTransposesHaveTheReferencesValuesAndBytes) {
  int copies = 0;
  for (const std::string& name : golden().children("q/")) {
    for (const auto& [variant, mask] : {std::pair{"rht", 0xD7E8}, {"rhtns", 0}}) {
      const std::string base = "q/" + name + "/" + variant;
      if (!golden().has(base + ".data_t")) continue;
      const Matrix y = rotated(transposed(load("q/" + name + "/x")), static_cast<std::uint16_t>(mask));
      if (golden().has(base + ".rht_x")) {
        expect_equal(y.data, golden().floats(base + ".rht_x"), base + ".rht_x");
      }
      copies += compare(base, "_t", quantize(y, Tile::Row, Profile::Te));
    }
  }
  EXPECT_EQ(copies, 20) << "tensors compared";
}

TEST(GoldenNvfp4, TheTwoProfilesReallyDifferOnTheirTestTensor) {
  const auto te = golden().values<std::uint8_t>("q/scaletie_64x256.f32/1d.scale");
  const auto te213 = golden().values<std::uint8_t>("q/scaletie_64x256.f32/old1d.scale");
  int differ = 0;
  for (std::size_t i = 0; i < te.size(); ++i) differ += te[i] != te213[i];
  EXPECT_EQ(differ, 74);
}

TEST(GoldenNvfp4, OperandsOfALinearLayerHaveTheReferencesBytesAndAlphas) {
  for (const std::string& name : golden().children("lin/")) {
    const std::string base = "lin/" + name + "/";
    const bool vanilla = name.starts_with("vanilla");
    const Matrix x = load(base + "x"), w = load(base + "w"), dy = load(base + "dy");
    const auto wgrad_operand = [&](const Matrix& m) {
      return vanilla ? transposed(m) : rotated(transposed(m), 0xD7E8);
    };
    const Tile w_tile = vanilla ? Tile::Row : Tile::Square;
    const Quantized qx = quantize(x, Tile::Row, Profile::Te), qw = quantize(w, w_tile, Profile::Te),
                    qdy = quantize(dy, Tile::Row, Profile::Te);
    const Quantized qx_t = quantize(wgrad_operand(x), Tile::Row, Profile::Te),
                    qdy_t = quantize(wgrad_operand(dy), Tile::Row, Profile::Te);
    EXPECT_EQ(compare(base + "qx", "", qx) + compare(base + "qw", "", qw) + compare(base + "qdy", "", qdy),
              3);
    EXPECT_EQ(compare(base + "qx", "_t", qx_t) + compare(base + "qdy", "_t", qdy_t), 2);
    EXPECT_EQ(compare(base + "qw", "_t", quantize(transposed(w), w_tile, Profile::Te)), 1);
    const std::vector<float> alphas = {gemm_alpha(qx.amax, qw.amax), gemm_alpha(qdy.amax, qw.amax),
                                       gemm_alpha(qdy_t.amax, qx_t.amax)};
    expect_equal(alphas, golden().floats(base + "alpha_te_kernel"), base + "alpha_te_kernel");
  }
}

TEST(GoldenUnits, TheRotationHasTheReferencesMatrixAndSigns) {
  const auto matrix = golden().floats("unit/rht.matrix_times_4");
  EXPECT_EQ(golden().values<std::int32_t>("unit/rht.sign_mask"),
            std::vector<std::int32_t>{QuantSpec{}.sign_mask});
  for (std::size_t r = 0; r < 16; ++r) {
    float x[16] = {};
    x[r] = 4.0f;
    rotate_block(x, QuantSpec{}.sign_mask);
    for (std::size_t c = 0; c < 16; ++c) EXPECT_EQ(x[c], matrix[r * 16 + c]);
  }
}

TEST(GoldenUnits, SwizzledScalesLieWhereTheReferenceHasThem) {
  for (const auto& [rows, columns] : {std::pair{128, 4}, {160, 10}, {256, 16}}) {
    const std::string base = "unit/swizzle." + std::to_string(rows) + "x" + std::to_string(columns);
    const auto linear = golden().values<std::uint8_t>(base + ".lin");
    const std::int64_t padded = std::int64_t{swizzle_padded_rows(rows)} * swizzle_padded_columns(columns);
    std::vector<std::uint8_t> ours(static_cast<std::size_t>(padded), 0);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        ours[static_cast<std::size_t>(swizzle_offset(r, c, columns))] =
            linear[static_cast<std::size_t>(r) * static_cast<std::size_t>(columns) +
                   static_cast<std::size_t>(c)];
      }
    }
    expect_equal(ours, golden().values<std::uint8_t>(base + ".swz"), base);
  }
}

}  // namespace
}  // namespace nibble
