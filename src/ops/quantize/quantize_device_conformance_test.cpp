// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "ops/quantize/quantize_device_testing.h"
#include "quant/format_names.h"

/// The quantisers of `cpu`, and of the GPU where there is one, against `ref` on shapes that choose between
/// their kernels: values or codes alone, aligned and odd sizes and strides.
namespace nibble {
namespace {

using testing::expect_same;
using testing::Outputs;
using testing::Quantized;
using testing::QuantizedPair;
using testing::QuantizeOptions;
using testing::TestMatrix;

/// A number of [low, high], the i-th of a seed.
std::int64_t pick(std::uint64_t seed, std::int64_t i, std::int64_t low, std::int64_t high) {
  return low +
         static_cast<std::int64_t>(testing::uniform(seed, -100 - i) * static_cast<double>(high - low + 1));
}

/// Heavy tails: products of normal numbers, rows of very different sizes, zeros of both signs, exact ties.
TestMatrix heavy_matrix(std::int64_t rows, std::int64_t cols, bool f32, std::int64_t gap,
                        std::uint64_t seed) {
  TestMatrix x(rows, cols, f32, gap);
  const double scale = std::pow(10.0, static_cast<double>(pick(seed, 0, -38, 28)));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t kind = pick(seed, 1000 + r, 0, 5);
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t i = r * cols + c;
      double v = testing::normal(seed, i);
      if (kind == 0) v = v * v * v * v * v;
      if (kind == 1) v = std::floor(v * 8) * 0.25;
      if (kind == 2) v *= std::pow(2.0, static_cast<double>(pick(seed, 2000 + r, -20, 8)));
      if (kind == 3) v = i % 3 == 0 ? 0.0 : i % 3 == 1 ? -0.0 : v;
      if (kind == 4 && i % 5 != 0) v = 0;
      x.set(r, c, static_cast<float>(v * scale));
    }
  }
  return x;
}

class QuantizeDeviceConformance : public ::testing::Test {
 protected:
  QuantizeDeviceConformance() {
    others_.push_back(std::make_unique<Stream>(BackendKind::Cpu, host_, 2));
    if (conformance::gpu() != nullptr)
      others_.push_back(std::make_unique<Stream>(BackendKind::Cuda, *conformance::gpu(), 1));
  }
  bool on_gpu() const { return others_.size() > 1; }

  void compare(const TestMatrix& x, const QuantizeOptions& o, Outputs outputs, std::int64_t gap,
               const std::string& what) {
    const Quantized expected = testing::quantize_on(ref_, x.view(), o, outputs, gap);
    for (const auto& stream : others_) {
      expect_same(expected, testing::quantize_on(*stream, x.view(), o, outputs, gap),
                  fmt::format("{} on {}", what, name_of(stream->kind())));
      if (HasFatalFailure()) return;
    }
  }

  void compare_pair(const TestMatrix& x, const QuantizeOptions& rows, const QuantizeOptions& transposed,
                    Outputs outputs, std::int64_t gap, const std::string& what) {
    const QuantizedPair expected = testing::quantize_pair_on(ref_, x.view(), rows, transposed, outputs, gap);
    for (const auto& stream : others_) {
      const QuantizedPair got = testing::quantize_pair_on(*stream, x.view(), rows, transposed, outputs, gap);
      const std::string at = fmt::format("{} on {}", what, name_of(stream->kind()));
      expect_same(expected.rows, got.rows, at + ", rows");
      if (HasFatalFailure()) return;
      expect_same(expected.transposed, got.transposed, at + ", transposed");
      if (HasFatalFailure()) return;
    }
  }

  HostDevice host_;
  Stream ref_{BackendKind::Ref, host_, 1};
  std::vector<std::unique_ptr<Stream>> others_;
};

std::vector<QuantSpec> specs() {
  std::vector<QuantSpec> all = testing::uncommon_specs();
  for (std::uint16_t rotation : {0, 16}) {
    for (Format f : {Format::Fp32, Format::Bf16, Format::Nvfp4, Format::Mxfp4, Format::Mxfp8E4M3,
                     Format::Mxfp8E5M2, Format::Fp8E4M3, Format::Fp8E5M2})
      all.push_back({.format = f, .rotation = rotation});
    for (Rounding r : {Rounding::Stochastic, Rounding::StochasticExact}) {
      all.push_back({.format = Format::Mxfp4, .rounding = r, .rotation = rotation});
      all.push_back({.format = Format::Nvfp4, .rounding = r, .rotation = rotation});
      all.push_back({.format = Format::Nvfp4, .tile = Tile::Square, .rounding = r, .rotation = rotation});
    }
    all.push_back({.format = Format::Nvfp4, .tile = Tile::Square, .rotation = rotation});
    all.push_back({.format = Format::Nvfp4, .rotation = rotation, .profile = Profile::Te213});
    all.push_back({.format = Format::Nvfp4, .rotation = rotation, .non_finite = NonFinite::AsTe});
  }
  return all;
}

RandomKey key_of(std::uint64_t seed, bool aligned) {
  return {.seed = seed << 33 | seed,
          .step = static_cast<std::uint32_t>(seed * 7),
          .layer = static_cast<std::uint32_t>(seed % 1000),
          .role = static_cast<std::uint8_t>(seed % 6),
          .first_element = aligned ? (std::uint64_t{1} << 36) - 16 * seed : 77 * seed};
}

std::string describe(const QuantSpec& s, const TestMatrix& x, Outputs outputs) {
  return fmt::format("{} tile {} rounding {} rotation {} [{}, {}] stride {} {} outputs {}",
                     arithmetic_name(s), static_cast<int>(s.tile), static_cast<int>(s.rounding), s.rotation,
                     x.rows, x.cols, x.stride, x.f32 ? "f32" : "bf16", static_cast<int>(outputs));
}

TEST_F(QuantizeDeviceConformance, EveryOptionOnOddShapes) {
  std::uint64_t seed = 1;
  for (const QuantSpec& spec : specs()) {
    for (const bool transpose : {false, true}) {
      ++seed;
      const TestMatrix x =
          heavy_matrix(pick(seed, 1, 1, 60), pick(seed, 2, 1, 90), seed % 3 == 0, seed % 2 * 3, seed);
      QuantizeOptions o{.spec = spec, .transpose = transpose, .random = key_of(seed, false)};
      o.row_elements = seed % 4 == 0 ? x.cols + 5 : 0;
      const Outputs outputs = static_cast<Outputs>(seed % 3);
      compare(x, o, outputs, seed % 2, describe(spec, x, outputs));
      if (HasFatalFailure()) return;
    }
  }
}

/// Four over six on aligned rows, of tensors of every size at which its errors are formed another way.
TEST_F(QuantizeDeviceConformance, FourOverSixInAlignedRows) {
  std::uint64_t seed = 900;
  for (const FourOverSix measure : {FourOverSix::Mae, FourOverSix::Mse}) {
    for (const std::uint16_t bound : {448, 256}) {
      for (const float given : {0.0f, 1e-37f, 1e-31f, 4e-30f, 1e-29f, 9e-13f, 1e-12f, 1.0f, 1e18f, 1.2e18f,
                                1e30f, 1.4e30f, 3e38f}) {
        const TestMatrix x = heavy_matrix(46, 80, false, 0, ++seed);
        QuantizeOptions o{.spec = {.format = Format::Nvfp4, .four_over_six = measure, .scale_bound = bound},
                          .random = key_of(seed, true)};
        if (given != 0) o.amax_given = given;
        const Outputs outputs = static_cast<Outputs>(seed % 3);
        compare(x, o, outputs, 0, fmt::format("{}, amax {}", describe(o.spec, x, outputs), given));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// The specs of training, on aligned matrices that end within and at the end of a kernel's tile.
TEST_F(QuantizeDeviceConformance, AlignedShapesOfTraining) {
  std::uint64_t seed = 500;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{16, 16}, {144, 80}, {128, 64}, {272, 208}}) {
    for (const Rounding rounding : {Rounding::NearestEven, Rounding::Stochastic}) {
      for (const std::uint16_t rotation : {0, 16}) {
        for (const Tile tile : {Tile::Row, Tile::Square}) {
          for (const bool transpose : {false, true}) {
            for (const Outputs outputs : {Outputs::Values, Outputs::Codes}) {
              ++seed;
              const QuantSpec spec{
                  .format = Format::Nvfp4, .tile = tile, .rounding = rounding, .rotation = rotation};
              const TestMatrix x = heavy_matrix(rows, cols, false, seed % 2 * 8, seed);
              QuantizeOptions o{.spec = spec, .transpose = transpose, .random = key_of(seed, true)};
              o.row_elements = seed % 3 == 0 ? cols + 32 : 0;
              compare(x, o, outputs, seed % 2 * 16, describe(spec, x, outputs));
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

/// Sizes that end within and at the end of tiles of 64 and 128, several tiles both ways, and the smallest.
constexpr std::pair<std::int64_t, std::int64_t> kFp8Shapes[] = {{16, 8},    {16, 128},  {128, 128}, {48, 136},
                                                                {144, 120}, {272, 264}, {33, 50},   {20, 64}};

TEST_F(QuantizeDeviceConformance, Fp8OfAlignedShapes) {
  std::uint64_t seed = 700;
  for (const auto& [rows, cols] : kFp8Shapes) {
    for (const Format format : {Format::Fp8E4M3, Format::Fp8E5M2}) {
      for (const bool transpose : {false, true}) {
        for (const Outputs outputs : {Outputs::Values, Outputs::Codes}) {
          ++seed;
          const QuantSpec spec{.format = format};
          const TestMatrix x = heavy_matrix(rows, cols, false, seed % 3 * 8, seed);
          compare(x, {.spec = spec, .transpose = transpose}, outputs, seed % 2 * 16,
                  describe(spec, x, outputs));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

/// Rows that end within a thread's four and within a warp's columns.
TEST_F(QuantizeDeviceConformance, Mxfp8OfAlignedRows) {
  std::uint64_t seed = 750;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 32}, {16, 32}, {33, 96}, {46, 160}, {144, 288}, {20, 48}}) {
    for (const Format format : {Format::Mxfp8E4M3, Format::Mxfp8E5M2}) {
      for (const Outputs outputs : {Outputs::Codes, Outputs::Both}) {
        for (int trial = 0; trial < 4; ++trial) {
          ++seed;
          const QuantSpec spec{.format = format};
          const TestMatrix x = heavy_matrix(rows, cols, false, seed % 3 * 8, seed);
          compare(x, {.spec = spec}, outputs, seed % 2 * 16, describe(spec, x, outputs));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(QuantizeDeviceConformance, Fp8PairsHaveAFormatAndAnAmaxForEachCopy) {
  std::uint64_t seed = 800;
  for (const auto& [rows, cols] : kFp8Shapes) {
    for (const Format row_format : {Format::Fp8E4M3, Format::Fp8E5M2}) {
      for (const Format format : {Format::Fp8E4M3, Format::Fp8E5M2}) {
        for (const Outputs outputs : {Outputs::Values, Outputs::Codes}) {
          ++seed;
          const TestMatrix x = heavy_matrix(rows, cols, false, seed % 3 * 8, seed);
          QuantizeOptions row{.spec = {.format = row_format}};
          QuantizeOptions transposed{.spec = {.format = format}, .transpose = true};
          if (seed / 2 % 4 == 1 || seed / 2 % 4 == 3) row.amax_given = 3.5f;
          if (seed / 2 % 4 >= 2) transposed.amax_given = 1e-3f;
          compare_pair(x, row, transposed, outputs, seed / 2 % 2 * 16, describe(transposed.spec, x, outputs));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(QuantizeDeviceConformance, APairNotesTheFaultOfItsRowsFirst) {
  for (const Format format : {Format::Fp8E4M3, Format::Fp8E5M2, Format::Nvfp4}) {
    for (const std::uint16_t rotation : {0, 16}) {
      TestMatrix x = heavy_matrix(64, 96, false, 0, 13);
      x.set(40, 50, INFINITY);
      for (const auto& stream : others_) {
        for (const int given : {0, 1, 2, 3}) {
          QuantizeOptions row{.spec = {.format = format}};
          QuantizeOptions transposed{.spec = {.format = format, .rotation = rotation}, .transpose = true};
          if (given % 2 != 0) row.amax_given = NAN;
          if (given / 2 != 0) transposed.amax_given = INFINITY;
          const testing::SharedMatrix source(stream->device(), x.view());
          const testing::SharedQuantized a(stream->device(), x.view(), row, Outputs::Codes, 0);
          const testing::SharedQuantized b(stream->device(), x.view(), transposed, Outputs::Codes, 0);
          const std::int64_t none = -1;
          const HostBuffer fault = testing::shared_copy(stream->device(), &none, 1);
          QuantizePair pair{.x_RC = source.view(), .fault = fault.as<std::int64_t>()};
          pair.rows.spec = row.spec;
          pair.transposed.spec = transposed.spec;
          pair.rows.fault_id = 7;
          pair.transposed.fault_id = 8;
          a.put_into(pair.rows);
          b.put_into(pair.transposed);
          quantize_pair(*stream, pair);
          stream->device().synchronize();
          EXPECT_FALSE(std::isfinite(a.collect().amax)) << given;
          EXPECT_FALSE(std::isfinite(b.collect().amax)) << given;
          EXPECT_EQ(*pair.fault, 7) << given << " on " << name_of(stream->kind());
        }
      }
    }
  }
}

TEST_F(QuantizeDeviceConformance, ManyRandomShapes) {
  const std::vector<QuantSpec> all = specs();
  const int trials = on_gpu() ? 1000 : 60;
  for (int t = 0; t < trials; ++t) {
    const std::uint64_t seed = 5000 + static_cast<std::uint64_t>(t);
    // Half of the trials are what training quantises; in half of both the sizes are multiples of 16.
    QuantSpec spec =
        all[static_cast<std::size_t>(pick(seed, 3, 0, static_cast<std::int64_t>(all.size()) - 1))];
    if (t % 2 == 0) {
      spec = {.format = Format::Nvfp4,
              .rounding = pick(seed, 4, 0, 1) != 0 ? Rounding::Stochastic : Rounding::NearestEven,
              .rotation = static_cast<std::uint16_t>(16 * pick(seed, 5, 0, 1))};
    }
    const std::int64_t unit = t % 4 < 2 ? 16 : 1;
    const TestMatrix x =
        heavy_matrix(pick(seed, 1, 1, 260 / unit) * unit, pick(seed, 2, 1, 200 / unit) * unit,
                     pick(seed, 6, 0, 3) == 0, t % 4 < 2 ? 0 : pick(seed, 7, 0, 3), seed);
    QuantizeOptions o{.spec = spec, .transpose = pick(seed, 8, 0, 1) != 0, .random = key_of(seed, t % 4 < 2)};
    const Outputs outputs = static_cast<Outputs>(pick(seed, 9, 0, 2));
    compare(x, o, outputs, 0, fmt::format("trial {}: {}", t, describe(spec, x, outputs)));
    if (HasFatalFailure()) return;
  }
}

TEST_F(QuantizeDeviceConformance, QuantizePair) {
  std::uint64_t seed = 9000;
  using R = Rounding;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{16, 16}, {144, 80}, {256, 192}, {33, 50}}) {
    for (const R row_rounding : {R::NearestEven, R::Stochastic}) {
      for (const R rounding : {R::NearestEven, R::Stochastic}) {
        for (const Outputs outputs : {Outputs::Values, Outputs::Codes, Outputs::Both}) {
          ++seed;
          const TestMatrix x = heavy_matrix(rows, cols, seed % 5 == 0, 0, seed);
          QuantizeOptions row{.spec = {.format = Format::Nvfp4, .rounding = row_rounding}};
          QuantizeOptions transposed{.spec = {.format = Format::Nvfp4,
                                              .rounding = rounding,
                                              .rotation = static_cast<std::uint16_t>(seed % 4 == 0 ? 0 : 16)},
                                     .transpose = true};
          row.random = key_of(seed, true);
          transposed.random = key_of(seed + 1, true);
          if (seed % 6 == 0) row.amax_given = 3.5f;
          if (seed % 7 == 0) transposed.amax_given = 1e-3f;
          compare_pair(x, row, transposed, outputs, seed % 2 * 16, describe(transposed.spec, x, outputs));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  const TestMatrix x = heavy_matrix(64, 96, false, 0, 3);
  compare_pair(x, {.spec = {.format = Format::Fp8E4M3}},
               {.spec = {.format = Format::Mxfp8E4M3}, .transpose = true}, Outputs::Both, 0, "two formats");
  for (const QuantSpec& spec : testing::uncommon_specs()) {
    if (rotates_in_passing(spec)) continue;
    QuantizeOptions turned{.spec = spec, .transpose = true, .random = key_of(++seed, false)};
    compare_pair(x, {.spec = {.format = Format::Nvfp4}}, turned, Outputs::Values, 0,
                 describe(spec, x, Outputs::Values));
    if (HasFatalFailure()) return;
  }
}

TEST_F(QuantizeDeviceConformance, AGivenAmaxIsUsedAndReportedAlsoWhereItIsFarOff) {
  const TestMatrix x = heavy_matrix(48, 80, false, 0, 5);
  for (const float amax : {0.5f, 1e-37f, 3e38f, 0.0f}) {
    for (const bool transpose : {false, true}) {
      for (const Outputs outputs : {Outputs::Values, Outputs::Codes}) {
        for (const Format format : {Format::Fp8E4M3, Format::Fp8E5M2}) {
          compare(x, {.spec = {.format = format}, .transpose = transpose, .amax_given = amax}, outputs, 0,
                  fmt::format("{}, given amax {}", info(format).name, amax));
          if (HasFatalFailure()) return;
        }
        for (const Rounding rounding : {Rounding::NearestEven, Rounding::Stochastic}) {
          compare(x,
                  {.spec = {.format = Format::Nvfp4, .rounding = rounding},
                   .transpose = transpose,
                   .amax_given = amax},
                  outputs, 0, fmt::format("given amax {}", amax));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(QuantizeDeviceConformance, NonFiniteNumbersAreNotedOnceAndComeOutInTheAmax) {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{64, 96}, {50, 70}}) {
      for (const std::uint16_t rotation : {0, 16}) {
        TestMatrix x = heavy_matrix(rows, cols, false, 0, 11);
        x.set(rows - 1, cols - 1, bad);
        for (const auto& stream : others_) {
          const testing::SharedMatrix source(stream->device(), x.view());
          const QuantizeOptions o{.spec = {.format = Format::Nvfp4, .rotation = rotation}, .transpose = true};
          const testing::SharedQuantized result(stream->device(), x.view(), o, Outputs::Values, 0);
          const std::int64_t none = -1;
          const HostBuffer fault = testing::shared_copy(stream->device(), &none, 1);
          Quantize q{.x_RC = source.view(), .spec = o.spec, .transpose = true};
          result.put_into(q);
          q.fault = fault.as<std::int64_t>();
          for (const std::int64_t id : {7, 8}) {
            q.fault_id = id;
            quantize(*stream, q);
            stream->device().synchronize();
            EXPECT_FALSE(std::isfinite(result.collect().amax)) << bad;
            EXPECT_EQ(*q.fault, 7) << "the first one keeps its name";
          }
        }
      }
    }
  }
}

TEST_F(QuantizeDeviceConformance, AStepReadFromMemoryDrawsTheBitsOfThatStep) {
  const TestMatrix x = heavy_matrix(64, 64, false, 0, 21);
  QuantizeOptions o{.spec = {.format = Format::Nvfp4, .rounding = Rounding::Stochastic}, .transpose = true};
  o.random = key_of(4, true);
  o.random.step = 12345;
  const Quantized expected = testing::quantize_on(ref_, x.view(), o, Outputs::Values);
  for (const auto& stream : others_) {
    const HostBuffer step = testing::shared_copy(stream->device(), &o.random.step, 1);
    QuantizeOptions read = o;
    read.random.step = 1;
    read.random.step_at = step.as<std::uint32_t>();
    expect_same(expected, testing::quantize_on(*stream, x.view(), read, Outputs::Values),
                std::string(name_of(stream->kind())));
  }
}

TEST_F(QuantizeDeviceConformance, RotatedAndDecodedNumbers) {
  std::uint64_t seed = 70;
  for (const QuantSpec& spec : specs()) {
    if (!is_quantized(spec.format) || spec.rotation != 0) continue;
    const TestMatrix x = heavy_matrix(35, 77, true, 1, ++seed);
    const Quantized q = testing::quantize_on(ref_, x.view(), {.spec = spec, .random = key_of(seed, false)});
    const std::vector<float> decoded = testing::dequantize_on(ref_, q, spec);
    const std::vector<bf16> rotated = testing::rotate_on(ref_, x.view(), seed % 2 == 0);
    for (const auto& stream : others_) {
      const std::vector<float> got = testing::dequantize_on(*stream, q, spec);
      for (std::size_t i = 0; i < got.size(); ++i)
        testing::expect_same_bits(decoded[i], got[i], fmt::format("{} at {}", arithmetic_name(spec), i));
      EXPECT_TRUE(rotated == testing::rotate_on(*stream, x.view(), seed % 2 == 0));
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace nibble
