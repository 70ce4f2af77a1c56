// SPDX-License-Identifier: Apache-2.0
#include "cli/quantize_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "../tests/support/golden_file.h"
#include "io/safetensors.h"
#include "io/test_dir.h"
#include "ops/quantize/quantize.h"

namespace nibble {
namespace {

using nibble::testing::GoldenFile;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Named {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

void write_f32(const std::filesystem::path& path, const std::vector<Named>& tensors) {
  std::vector<SafetensorsDeclaration> declarations;
  for (const Named& t : tensors) declarations.push_back({t.name, DType::F32, t.shape});
  SafetensorsWriter w(path, declarations);
  for (const Named& t : tensors) w.write(t.name, std::span<const float>(t.values));
  w.finish();
}

std::vector<float> ramp(std::int64_t n) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(static_cast<float>(i * 37 % 101 - 50) / 16);
  return x;
}

class QuantizeAFile : public ::testing::Test {
 protected:
  QuantizeReport run(const QuantizeChoices& c, std::vector<std::string> tensors = {},
                     std::uint64_t seed = 0) {
    Stream stream(BackendKind::Cpu, host_, 2);
    return quantize_file(stream,
                         {.in = in_, .out = out_, .choices = c, .seed = seed, .tensors = std::move(tensors)});
  }
  /// The text and exit code of the error that a run gives.
  std::pair<std::string, int> error(const QuantizeChoices& c, std::vector<std::string> tensors = {}) {
    try {
      run(c, std::move(tensors));
    } catch (const Error& e) {
      return {e.what(), e.exit_code()};
    }
    return {"", 0};
  }
  std::vector<std::uint8_t> bytes(const std::string& name) {
    const Safetensors file = Safetensors::open_file(out_);
    return file.at(name).copy_as<std::uint8_t>();
  }

  HostDevice host_;
  TestDir dir_;
  std::filesystem::path in_ = dir_ / "in.safetensors", out_ = dir_ / "out.safetensors";
};

/// Codes with the sign of zeros removed: the golden maker writes 0 where the hardware writes -0.
std::vector<std::uint8_t> without_negative_zeros(std::vector<std::uint8_t> codes) {
  for (std::uint8_t& c : codes) {
    if ((c & 0x0F) == 0x08) c &= 0xF0;
    if ((c & 0xF0) == 0x80) c &= 0x0F;
  }
  return codes;
}

TEST_F(QuantizeAFile, WritesTheBytesOfTransformerEngine) {
  const std::string path = NIBBLE_SOURCE_DIR "/tests/golden/nvfp4_te.safetensors";
  const GoldenFile golden(path);
  struct Variant {
    const char* name;
    const char* suffix;
    QuantizeChoices choices;
  };
  const Variant variants[] = {
      {"1d", "", {}},
      {"1d", "_t", {.layout = "column"}},
      {"2d", "", {.tile = "16x16"}},
      {"2d", "_t", {.tile = "16x16", .layout = "column"}},
      {"old1d", "", {.format = "nvfp4.te213"}},
      {"rht", "_t", {.layout = "column", .rht = true}},
  };
  const std::vector<std::string> cases = {"ties_32x96.bf16",  "scaletie_64x256.f32", "zeromix_64x64.bf16",
                                          "tall_512x16.bf16", "zeros_32x64.f32",     "tiny1e-36_32x64.f32"};
  in_ = path;
  int compared = 0;
  for (const Variant& v : variants) {
    std::vector<std::string> tensors;
    for (const std::string& name : cases) tensors.push_back("q/" + name + "/x");
    run(v.choices, tensors);
    const Safetensors written = Safetensors::open_file(out_);
    for (const std::string& name : cases) {
      const std::string key = fmt::format("q/{}/{}.", name, v.name), x = "q/" + name + "/x";
      if (!golden.has(key + "data" + v.suffix)) continue;
      ++compared;
      const auto codes = golden.values<std::uint8_t>(key + "data" + v.suffix);
      EXPECT_EQ(without_negative_zeros(written.at(x + ".codes").copy_as<std::uint8_t>()),
                without_negative_zeros(codes))
          << key << v.suffix;
      EXPECT_EQ(written.at(x + ".scales").copy_as<std::uint8_t>(),
                golden.values<std::uint8_t>(key + "scale" + v.suffix))
          << key << v.suffix;
      EXPECT_EQ(written.at(x + ".amax").copy_as<float>(), golden.floats(key + "amax" + v.suffix)) << key;
      EXPECT_EQ(written.at(x + ".codes").dtype, DType::U8);
      EXPECT_EQ(written.at(x + ".scales").dtype, DType::F8E4M3);
      EXPECT_EQ(written.at(x + ".codes").shape, golden.tensor(key + "data" + v.suffix).shape);
    }
    EXPECT_EQ(written.entries().size(), 3 * cases.size());
  }
  EXPECT_GE(compared, 20);
}

TEST_F(QuantizeAFile, TheStatisticsAreThoseOfTheDecodedFile) {
  write_f32(in_, {{"w", {7, 50}, ramp(350)}});
  const QuantizeReport r = run({});
  const std::vector<std::uint8_t> codes = bytes("w.codes"), scales = bytes("w.scales");
  const Safetensors file = Safetensors::open_file(out_);
  const float amax = file.at("w.amax").copy_as<float>()[0];
  std::vector<float> decoded(350);
  Stream stream(BackendKind::Ref, host_, 1);
  dequantize(stream, {.format = Format::Nvfp4,
                      .codes = View<const std::uint8_t>(codes.data(), 7, 25),
                      .scales = View<const std::uint8_t>(scales.data(), 7, 4),
                      .amax = &amax,
                      .out_RC = View<float>(decoded.data(), 7, 50)});
  const std::vector<float> x = ramp(350);
  double error = 0;
  std::int64_t flushed = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(decoded[i]) - static_cast<double>(x[i]), 2);
    flushed += x[i] != 0 && decoded[i] == 0 ? 1 : 0;
  }
  ASSERT_EQ(r.tensors.size(), 1u);
  EXPECT_NEAR(r.tensors[0].mse(), error / 350, error / 350 * 1e-5);
  EXPECT_EQ(r.tensors[0].stats.flushed, flushed);
  EXPECT_EQ(r.tensors[0].amax, amax);
  EXPECT_EQ(r.tensors[0].stats.count, 350);
}

TEST_F(QuantizeAFile, TheEvenColumnIsTheLowNibble) {
  std::vector<float> row(16);
  for (std::size_t i = 0; i < 16; ++i) row[i] = i % 2 == 0 ? 1.0f : 6.0f;
  row[0] = 0.5f;
  write_f32(in_, {{"w", {1, 16}, row}});
  run({});
  EXPECT_EQ(bytes("w.codes")[0], 0x71);
  EXPECT_EQ(bytes("w.codes")[1], 0x72);
}

TEST_F(QuantizeAFile, BlocksThatVanishBesideAnOutlierAreCountedAndSaidSo) {
  std::vector<float> x(112);
  const float block_amax[7] = {1, 1e-5f, 7e-6f, 6.49e-6f, 3e-6f, 2.18e-6f, 2.17e-6f};
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = block_amax[i / 16] * (i % 2 == 0 ? 1.0f : -0.5f);
  write_f32(in_, {{"w", {1, 112}, x}});
  const QuantizeReport r = run({});
  EXPECT_EQ(bytes("w.scales"), (std::vector<std::uint8_t>{0x7E, 2, 2, 1, 1, 1, 0}));
  EXPECT_EQ(r.tensors[0].stats.scale_zero, 1);
  EXPECT_EQ(r.tensors[0].stats.scale_max, 1);
  EXPECT_EQ(r.tensors[0].stats.scale_subnormal, 5);
  EXPECT_EQ(r.tensors[0].stats.flushed, 16) << "codes of +-6 under a scale of 0 decode to 0";
  EXPECT_NE(quantize_table(r).find("warning: w: 1 of 7 blocks"), std::string::npos) << quantize_table(r);
}

TEST_F(QuantizeAFile, EveryFormatHasItsTypesAndShapes) {
  write_f32(in_, {{"w", {2, 3, 40}, ramp(240)}});
  struct Expected {
    const char* format;
    DType codes;
    std::int64_t code_cols;
    DType scales;
    std::int64_t scale_cols;
  };
  for (const Expected& e : {Expected{"nvfp4.te", DType::U8, 20, DType::F8E4M3, 3},
                            Expected{"nvfp4.te213", DType::U8, 20, DType::F8E4M3, 3},
                            Expected{"mxfp4", DType::U8, 20, DType::F8E8M0, 2},
                            Expected{"mxfp8.e4m3", DType::F8E4M3, 40, DType::F8E8M0, 2},
                            Expected{"mxfp8.e5m2", DType::F8E5M2, 40, DType::F8E8M0, 2},
                            Expected{"fp8.e4m3", DType::F8E4M3, 40, DType::F32, 0},
                            Expected{"fp8.e5m2", DType::F8E5M2, 40, DType::F32, 0}}) {
    run({.format = e.format});
    const Safetensors f = Safetensors::open_file(out_);
    using Shape = std::vector<std::int64_t>;
    EXPECT_EQ(f.at("w.codes").dtype, e.codes) << e.format;
    EXPECT_EQ(f.at("w.codes").shape, (Shape{6, e.code_cols})) << e.format;
    EXPECT_EQ(f.find("w.scales") != nullptr, e.scale_cols != 0) << e.format;
    EXPECT_EQ(f.find("w.scale_inv") != nullptr, e.scale_cols == 0) << e.format;
    if (e.scale_cols != 0) {
      EXPECT_EQ(f.at("w.scales").dtype, e.scales) << e.format;
      EXPECT_EQ(f.at("w.scales").shape, (Shape{6, e.scale_cols})) << e.format;
    }
    EXPECT_EQ(f.metadata().at("format"), e.format);
    EXPECT_EQ(f.metadata().at("shapes"), R"({"w":[2,3,40]})");
  }
}

TEST_F(QuantizeAFile, TheSeedDecidesTheBytesAndTensorsWithEqualDataDiffer) {
  write_f32(in_, {{"a", {32, 64}, ramp(2048)}, {"b", {32, 64}, ramp(2048)}});
  run({.round = "sr"}, {}, 7);
  const auto a = bytes("a.codes"), b = bytes("b.codes");
  EXPECT_NE(a, b);
  EXPECT_EQ(bytes("a.scales"), bytes("b.scales"));
  run({.round = "sr"}, {"b"}, 7);
  EXPECT_EQ(bytes("b.codes"), b) << "choosing tensors changed what one becomes";
  run({.round = "sr"}, {}, 8);
  EXPECT_NE(bytes("a.codes"), a);
  const Safetensors file = Safetensors::open_file(out_);
  EXPECT_EQ(file.metadata().at("seed"), "8");
}

TEST_F(QuantizeAFile, VectorsAreSkippedAndSaidSo) {
  write_f32(in_, {{"norm", {16}, ramp(16)}, {"w", {1, 16}, ramp(16)}});
  const QuantizeReport r = run({});
  EXPECT_NE(quantize_table(r).find("skipped  norm  F32 16: fewer than two axes"), std::string::npos)
      << quantize_table(r);
  EXPECT_EQ(quantize_json(r)["skipped"][0]["name"], "norm");
  EXPECT_EQ(quantize_json(r)["tensors"][0]["name"], "w");
  const Safetensors file = Safetensors::open_file(out_);
  EXPECT_EQ(file.entries().size(), 3u);
}

TEST_F(QuantizeAFile, ANanNamesTensorAndElementAndLeavesNoFile) {
  std::vector<float> x = ramp(64);
  x[37] = kNan;
  write_f32(in_, {{"good", {4, 16}, ramp(64)}, {"w", {4, 16}, x}});
  const auto [text, code] = error({});
  EXPECT_EQ(code, 5);
  EXPECT_NE(text.find("tensor \"w\": element [2, 5] (number 37"), std::string::npos) << text;
  EXPECT_NE(text.find("--non-finite as-te"), std::string::npos) << text;
  for (const auto& f : std::filesystem::directory_iterator(dir_.path())) EXPECT_EQ(f.path(), in_);
  const QuantizeReport r = run({.non_finite = "as-te"});
  EXPECT_EQ(r.tensors[1].non_finite, 1);
  EXPECT_EQ(bytes("w.codes")[18] >> 4, 7) << "Transformer Engine makes +6 of NaN";
}

TEST_F(QuantizeAFile, TheInputIsNeverOverwritten) {
  write_f32(in_, {{"w", {1, 16}, ramp(16)}});
  const std::string before = read_file(in_);
  out_ = dir_.path() / "." / "in.safetensors";
  EXPECT_EQ(error({}).second, 2);
  EXPECT_EQ(read_file(in_), before);
}

TEST_F(QuantizeAFile, F16IsRefusedWithARemedyUnlessLeftOut) {
  SafetensorsWriter w(in_, {{"h", DType::F16, {1, 16}}, {"w", DType::F32, {1, 16}}});
  w.write("h", std::span<const std::uint16_t>(std::vector<std::uint16_t>(16)));
  w.write("w", std::span<const float>(ramp(16)));
  w.finish();
  const auto [text, code] = error({});
  EXPECT_EQ(code, 2);
  EXPECT_NE(text.find("tensor \"h\" is F16"), std::string::npos) << text;
  EXPECT_EQ(run({}, {"w"}).tensors.size(), 1u);
}

TEST_F(QuantizeAFile, WordsAndCombinationsThatMeanNothingAreUsageErrors) {
  write_f32(in_, {{"layer.w", {1, 16}, ramp(16)}});
  EXPECT_NE(error({.format = "nvfp4.t"}).first.find("did you mean \"nvfp4.te\""), std::string::npos);
  for (const QuantizeChoices& c :
       {QuantizeChoices{.format = "fp4"}, QuantizeChoices{.tile = "8x8"},
        QuantizeChoices{.format = "mxfp4", .tile = "16x16"}, QuantizeChoices{.layout = "col"},
        QuantizeChoices{.format = "fp8.e4m3", .round = "sr"}, QuantizeChoices{.non_finite = "ignore"}})
    EXPECT_EQ(error(c).second, 2) << error(c).first;
  EXPECT_NE(error({}, {"*mlp*"}).first.find("matches none of the 1 tensors"), std::string::npos);
}

}  // namespace
}  // namespace nibble
