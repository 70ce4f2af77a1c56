// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "base/simd.h"
#include "ops/quantize/quantize_testing.h"
#include "ops/quantize/rotate.h"
#include "quant/format_names.h"

namespace nibble {
namespace {

using testing::Quantized;
using testing::QuantizeOptions;
using testing::TestMatrix;

/// Numbers that meet every branch: whole rows of zeros, magnitudes from 1e-38 to 1e30, exact ties, signed
/// zeros.
TestMatrix hard_matrix(std::int64_t rows, std::int64_t cols, bool f32, std::int64_t gap, std::uint64_t seed) {
  TestMatrix x(rows, cols, f32, gap);
  const double scale = std::pow(10.0, std::floor(testing::uniform(seed, -1) * 7) * 11 - 38);
  for (std::int64_t r = 0; r < rows; ++r) {
    const int kind = static_cast<int>(testing::uniform(seed, -2 - r) * 6);
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t i = r * cols + c;
      const double u = testing::uniform(seed, i);
      double v = testing::normal(seed, i);
      if (kind == 0) v = 0;
      if (kind == 1) v = std::pow(2.0, std::floor(u * 40) - 30) * (v < 0 ? -1 : 1);
      if (kind == 2) v = (std::floor(u * 49) - 24) * 0.25;
      if (kind == 3) v = v * v * v;
      if (kind == 4 && u < 0.5) v = u < 0.25 ? 0.0 : -0.0;
      x.set(r, c, static_cast<float>(v * scale));
    }
  }
  return x;
}

void expect_same(const Quantized& ref, const Quantized& cpu, const std::string& what) {
  ASSERT_EQ(std::bit_cast<std::uint32_t>(ref.amax), std::bit_cast<std::uint32_t>(cpu.amax)) << what;
  ASSERT_EQ(std::bit_cast<std::uint32_t>(ref.scale), std::bit_cast<std::uint32_t>(cpu.scale)) << what;
  const auto differs = [&](const auto& a, const auto& b, const char* name, std::int64_t cols) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(+a[i], +b[i]) << what << ": " << name << " at row " << i / static_cast<std::size_t>(cols)
                              << ", column " << i % static_cast<std::size_t>(cols);
    }
  };
  differs(ref.scales, cpu.scales, "scales", ref.shape.scale_cols);
  differs(ref.codes, cpu.codes, "codes", ref.shape.code_cols);
  differs(ref.values, cpu.values, "values", ref.shape.cols);
  differs(ref.row_amax, cpu.row_amax, "row_amax", 1);
}

/// Compares the two backends at every instruction set and with one and two threads.
class QuantizeConformance : public ::testing::Test {
 protected:
  ~QuantizeConformance() override { set_simd_level(best_); }

  void compare(const TestMatrix& x, const QuantizeOptions& o, const std::string& what) {
    const Quantized expected = testing::quantize_all(ref_, x.view(), o);
    for (SimdLevel level : {SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512}) {
      if (level > best_) continue;
      set_simd_level(level);
      const std::string at = what + " level " + std::to_string(static_cast<int>(level));
      expect_same(expected, testing::quantize_all(one_, x.view(), o), at);
      if (HasFatalFailure()) return;
    }
    expect_same(expected, testing::quantize_all(two_, x.view(), o), what + " on two threads");
  }

  HostDevice host_;
  Stream ref_{BackendKind::Ref, host_, 1}, one_{BackendKind::Cpu, host_, 1}, two_{BackendKind::Cpu, host_, 2};
  SimdLevel best_ = simd_level();
};

std::vector<QuantSpec> all_specs() {
  std::vector<QuantSpec> specs;
  for (std::uint16_t rotation : {0, 16}) {
    for (Format f : {Format::Fp32, Format::Bf16, Format::Nvfp4, Format::Mxfp4, Format::Mxfp8E4M3,
                     Format::Mxfp8E5M2, Format::Fp8E4M3, Format::Fp8E5M2}) {
      specs.push_back({.format = f, .rotation = rotation});
    }
    for (Rounding r : {Rounding::Stochastic, Rounding::StochasticExact}) {
      specs.push_back({.format = Format::Mxfp4, .rounding = r, .rotation = rotation});
      specs.push_back({.format = Format::Nvfp4, .rounding = r, .rotation = rotation});
      specs.push_back({.format = Format::Nvfp4, .tile = Tile::Square, .rounding = r, .rotation = rotation});
    }
    specs.push_back({.format = Format::Nvfp4, .tile = Tile::Square, .rotation = rotation});
    specs.push_back({.format = Format::Nvfp4, .rotation = rotation, .sign_mask = 0});
    specs.push_back({.format = Format::Nvfp4, .rotation = rotation, .profile = Profile::Te213});
    specs.push_back({.format = Format::Nvfp4, .rotation = rotation, .non_finite = NonFinite::AsTe});
  }
  return specs;
}

std::vector<QuantSpec> every_spec() {
  std::vector<QuantSpec> specs = all_specs();
  for (const QuantSpec& spec : testing::uncommon_specs()) specs.push_back(spec);
  return specs;
}

std::string describe(const QuantSpec& s, const TestMatrix& x, bool transpose) {
  return fmt::format("{} tile {} rounding {} rotation {} [{}, {}] {}{}", arithmetic_name(s),
                     static_cast<int>(s.tile), static_cast<int>(s.rounding), s.rotation, x.rows, x.cols,
                     x.f32 ? "f32" : "bf16", transpose ? " transposed" : "");
}

TEST_F(QuantizeConformance, CpuWritesTheBytesOfTheReferenceForEveryOptionAndOddShapes) {
  std::uint64_t seed = 1;
  for (const QuantSpec& spec : every_spec()) {
    for (const bool transpose : {false, true}) {
      for (int trial = 0; trial < (is_common(spec) ? 3 : 2); ++trial, ++seed) {
        const auto rows = static_cast<std::int64_t>(1 + testing::uniform(seed, -7) * (trial == 0 ? 260 : 70));
        const auto cols = static_cast<std::int64_t>(1 + testing::uniform(seed, -8) * (trial == 1 ? 560 : 70));
        const TestMatrix x = hard_matrix(rows, cols, trial == 2, trial == 1 ? 3 : 0, seed);
        QuantizeOptions o{.spec = spec, .transpose = transpose};
        o.random = {.seed = seed, .step = 7, .layer = 3, .role = 5, .first_element = seed * 77};
        o.row_elements = trial == 1 ? cols + 5 : 0;
        compare(x, o, describe(spec, x, transpose));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(QuantizeConformance, CpuWritesTheBytesOfTheReferenceForTheShapesOfTraining) {
  std::uint64_t seed = 1000;
  for (const QuantSpec& spec : all_specs()) {
    if (spec.format != Format::Nvfp4) continue;
    for (const bool transpose : {false, true}) {
      const TestMatrix x = hard_matrix(80, 288, false, 32, ++seed);
      QuantizeOptions o{.spec = spec, .transpose = transpose};
      o.random = {.seed = seed << 40,
                  .step = 1u << 31,
                  .layer = 0xABCDEF,
                  .role = 200,
                  .first_element = (std::uint64_t{1} << 36) - 320 * 16};
      o.row_elements = 320;
      compare(x, o, describe(spec, x, transpose));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(QuantizeConformance, PartsOfAMatrixWiderThanOnePartMeet) {
  for (const QuantSpec& spec :
       {QuantSpec{.format = Format::Nvfp4}, QuantSpec{.format = Format::Nvfp4, .rotation = 16},
        QuantSpec{.format = Format::Mxfp4, .rounding = Rounding::Stochastic}}) {
    for (const bool transpose : {false, true}) {
      const TestMatrix x =
          transpose ? hard_matrix(8210, 18, false, 0, 3) : hard_matrix(18, 8210, false, 0, 4);
      compare(x, {.spec = spec, .transpose = transpose}, describe(spec, x, transpose));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(QuantizeConformance, AGivenAmaxIsUsedAndReported) {
  const TestMatrix x = hard_matrix(33, 50, false, 0, 5);
  for (const float amax : {0.5f, 1e-37f, 3e38f, 0.0f}) {
    compare(x, {.spec = {.format = Format::Nvfp4}, .amax_given = amax}, fmt::format("given amax {}", amax));
    compare(x, {.spec = {.format = Format::Fp8E4M3}, .amax_given = amax}, fmt::format("given amax {}", amax));
  }
}

TEST_F(QuantizeConformance, UnderAsTeNanAndInfinityGiveTheSameBytesToo) {
  for (const std::uint16_t rotation : {0, 16}) {
    for (const bool transpose : {false, true}) {
      for (const Tile tile : {Tile::Row, Tile::Square}) {
        TestMatrix x = hard_matrix(40, 300, false, 0, 77);
        x.set(3, 4, NAN);
        x.set(5, 290, -NAN);
        if (rotation == 0) x.set(20, 33, -INFINITY);
        QuantizeOptions o{.spec = {.format = Format::Nvfp4, .tile = tile, .rotation = rotation},
                          .transpose = transpose};
        o.spec.non_finite = NonFinite::AsTe;
        compare(x, o, describe(o.spec, x, transpose));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(QuantizeConformance, UnderDetectANanOrAnInfinityComesOutInTheAmax) {
  for (const bool f32 : {false, true}) {
    for (const std::uint16_t rotation : {0, 16}) {
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        TestMatrix x = hard_matrix(50, 70, f32, 0, 9);
        x.set(49, 69, bad);
        for (Stream* stream : {&ref_, &one_, &two_}) {
          for (const bool transpose : {false, true}) {
            const Quantized q = testing::quantize_all(
                *stream, x.view(),
                {.spec = {.format = Format::Nvfp4, .rotation = rotation}, .transpose = transpose});
            EXPECT_FALSE(std::isfinite(q.amax));
          }
        }
      }
    }
  }
}

TEST_F(QuantizeConformance, Rotate) {
  for (std::uint16_t size : {2, 4, 8, 16, 32, 64, 128}) {
    for (const bool transpose : {false, true}) {
      for (const bool columns : {false, true}) {
        const TestMatrix x = hard_matrix(37, 190, transpose, 1, 31);
        const std::int64_t rows = transpose ? 190 : 37, length = transpose ? 37 : 190;
        const std::int64_t cols = (length + size - 1) / size * size;
        std::vector<bf16> ref(static_cast<std::size_t>(rows * cols)), cpu(ref.size());
        const auto into = [&](std::vector<bf16>& out) {
          return Rotate{.x_RC = x.view(),
                        .transpose = transpose,
                        .out = columns ? View<bf16>(out.data(), cols, rows).transposed()
                                       : View<bf16>(out.data(), rows, cols),
                        .size = size,
                        .signs = size % 3 == 1 ? RotationSigns::Redrawn : RotationSigns::Fixed,
                        .random = {.seed = 5, .step = size, .layer = 3, .role = 4}};
        };
        rotate(ref_, into(ref));
        for (SimdLevel level : {SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512}) {
          if (level > best_) continue;
          set_simd_level(level);
          rotate(two_, into(cpu));
          for (std::size_t i = 0; i < ref.size(); ++i)
            ASSERT_EQ(ref[i].bits, cpu[i].bits) << size << " " << i;
        }
      }
    }
  }
}

/// Redrawn signs depend on seed, step, layer and GEMM, and on nothing that the two operands do not share.
TEST_F(QuantizeConformance, OperandsRotatedUnderRedrawnSignsKeepTheirProduct) {
  TestMatrix a(16, 128, true), b(16, 128, true);
  for (std::int64_t i = 0; i < 16 * 128; ++i) {
    a.set(i / 128, i % 128, static_cast<float>(testing::normal(1, i)));
    b.set(i / 128, i % 128, static_cast<float>(testing::normal(2, i)));
  }
  const auto rotated = [&](const TestMatrix& x, RandomKey key) {
    std::vector<bf16> out(16 * 128);
    rotate(one_, {.x_RC = x.view(),
                  .out = View<bf16>(out.data(), 16, 128),
                  .size = 128,
                  .signs = RotationSigns::Redrawn,
                  .random = key});
    return out;
  };
  const auto products = [](const std::vector<bf16>& x, const std::vector<bf16>& y) {
    std::array<double, 16> sums{};
    for (std::size_t i = 0; i < x.size(); ++i)
      sums[i / 128] += static_cast<double>(x[i].value()) * y[i].value();
    return sums;
  };
  const auto distance = [](const std::array<double, 16>& x, const std::array<double, 16>& y) {
    double sum = 0;
    for (std::size_t i = 0; i < 16; ++i) sum += (x[i] - y[i]) * (x[i] - y[i]);
    return std::sqrt(sum / 16);
  };
  std::vector<bf16> plain_a, plain_b;
  for (std::int64_t i = 0; i < 16 * 128; ++i) {
    plain_a.push_back(bf16::nearest(a.wide[static_cast<std::size_t>(i)]));
    plain_b.push_back(bf16::nearest(b.wide[static_cast<std::size_t>(i)]));
  }
  const RandomKey of_a{.seed = 3, .step = 8, .layer = 2, .role = 4, .first_element = 640};
  RandomKey of_b = of_a;
  of_b.role = 5;
  of_b.first_element = 128;
  const auto expected = products(plain_a, plain_b);  // of size 11, the root of 128
  EXPECT_LT(distance(products(rotated(a, of_a), rotated(b, of_b)), expected), 0.1);
  for (int change : {0, 1, 2, 3}) {
    RandomKey other = of_b;
    if (change == 0) ++other.seed;
    if (change == 1) ++other.step;
    if (change == 2) ++other.layer;
    if (change == 3) other.role = 3;
    EXPECT_GT(distance(products(rotated(a, of_a), rotated(b, other)), expected), 5) << change;
  }
}

TEST_F(QuantizeConformance, Dequantize) {
  for (const QuantSpec& spec : every_spec()) {
    if (!is_quantized(spec.format) || spec.rotation != 0) continue;
    const TestMatrix x = hard_matrix(65, 77, true, 0, 13);
    const Quantized q = testing::quantize_all(ref_, x.view(), {.spec = spec});
    std::vector<float> ref, cpu;
    dequantize(ref_, testing::decoding_of(q, spec, ref));
    for (SimdLevel level : {SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512}) {
      if (level > best_) continue;
      set_simd_level(level);
      dequantize(two_, testing::decoding_of(q, spec, cpu));
      for (std::size_t i = 0; i < ref.size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(ref[i]), std::bit_cast<std::uint32_t>(cpu[i]))
            << arithmetic_name(spec) << " at " << i;
      }
    }
  }
}

/// What a GEMM multiplies, times the scales that it applies, is what the codes decode to, but for the order
/// of the factors: at most three roundings.
TEST_F(QuantizeConformance, OperandsTimesTheirScalesAreTheDecodedValues) {
  for (const QuantSpec& spec : every_spec()) {
    if (!is_quantized(spec.format) || spec.format == Format::Fp8BlockFp32E4M3) continue;
    TestMatrix x(40, 144, true);
    for (std::int64_t i = 0; i < 40 * 144; ++i)
      x.set(i / 144, i % 144, static_cast<float>(testing::normal(7, i)));
    const Quantized q = testing::quantize_all(two_, x.view(), {.spec = spec});
    std::vector<float> decoded;
    dequantize(two_, testing::decoding_of(q, spec, decoded));
    const float inverse_range = gemm_inverse_range(spec.format, Format::Bf16);
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      const float row = q.row_amax.empty() ? 1.0f : q.row_amax[i / static_cast<std::size_t>(q.shape.cols)];
      const float product = bf16{q.values[i]}.value() * (q.scale * row * inverse_range);
      ASSERT_NEAR(product, decoded[i], std::abs(decoded[i]) * 0x3p-23f) << arithmetic_name(spec) << " " << i;
    }
  }
}

TEST_F(QuantizeConformance, AnOptionOfAnotherFormatIsRefused) {
  const TestMatrix x = hard_matrix(16, 32, true, 0, 3);
  for (const QuantSpec& spec :
       {QuantSpec{.format = Format::Mxfp4, .four_over_six = FourOverSix::Mse},
        {.format = Format::Mxfp8E4M3, .tensor_scaling = TensorScaling::Row},
        {.format = Format::Nvfp4, .scale_rule = MxScaleRule::Floor},
        {.format = Format::Mxfp8E4M3, .scale_rule = MxScaleRule::ThreeQuarters},
        {.format = Format::Nvfp4, .scale_bound = 300},
        {.format = Format::Nvfp4, .tile = Tile::Square, .tensor_scaling = TensorScaling::Row},
        {.format = Format::Nvfp4, .profile = Profile::Ct, .four_over_six = FourOverSix::Mse},
        {.format = Format::Nvfp4,
        .tile = Tile::Square,
        .rounding = Rounding::Stochastic,
        .four_over_six = FourOverSix::Mse},
        {.format = Format::Nvfp4, .rotation = 48},
        {.format = Format::Nvfp4, .rotation = 256},
        {.format = Format::Nvfp4, .rounding = Rounding::Stochastic, .random_bits = 17},
        {.format = Format::Nvfp4, .eden_group = 128},
        {.format = Format::Nvfp4, .scale_bound = 256, .eden_group = 24},
        {.format = Format::Nvfp4, .rounding = Rounding::Stochastic, .scale_bound = 256, .eden_group = 128},
        {.format = Format::Mxfp4, .eden_group = 128},
        {.format = Format::Fp8E4M3, .rounding = Rounding::NearestAway},
        {.format = Format::Mxfp6E2M3, .rounding = Rounding::Stochastic}}) {
    EXPECT_THROW(testing::quantize_all(ref_, x.view(), {.spec = spec}), Error) << arithmetic_name(spec);
  }
}

}  // namespace
}  // namespace nibble
