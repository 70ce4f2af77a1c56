// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <limits>

#include "base/simd.h"
#include "cli/selftest/matrices.h"
#include "cli/selftest/selftest.h"
#include "ops/quantize/rotate.h"
#include "quant/nvfp4.h"

namespace nibble::selftest {
namespace {

/// Puts the instruction set back that was in use.
class KeepSimdLevel {
 public:
  ~KeepSimdLevel() { set_simd_level(level_); }

 private:
  SimdLevel level_ = simd_level();
};

constexpr Format kQuantized[] = {Format::Nvfp4,     Format::Mxfp4,   Format::Mxfp8E4M3,
                                 Format::Mxfp8E5M2, Format::Fp8E4M3, Format::Fp8E5M2};

std::vector<QuantSpec> specs_to_compare() {
  std::vector<QuantSpec> specs;
  for (const Format f : kQuantized) specs.push_back({.format = f});
  for (const Rounding r : {Rounding::Stochastic, Rounding::StochasticExact}) {
    specs.push_back({.format = Format::Nvfp4, .rounding = r});
    specs.push_back({.format = Format::Nvfp4, .rounding = r, .rotation = 16});
    specs.push_back({.format = Format::Mxfp4, .rounding = r});
  }
  specs.push_back({.format = Format::Nvfp4, .tile = Tile::Square});
  specs.push_back({.format = Format::Nvfp4, .rotation = 16});
  specs.push_back({.format = Format::Nvfp4, .profile = Profile::Te213});
  return specs;
}

/// Rows whose magnitudes lie far apart, with zeros, ties and subnormal block scales among them.
std::vector<float> varied_matrix(std::int64_t rows, std::int64_t cols) {
  std::vector<float> x = normal_matrix(rows, cols, 11);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = x.data() + r * cols;
    for (std::int64_t c = 0; c < cols; ++c) {
      if (r % 5 == 1) row[c] = std::ldexp(row[c], -static_cast<int>(r % 31));
      if (r % 5 == 2) row[c] = 0.25f * static_cast<float>(c % 49 - 24);
      if (r % 5 == 3 && c % 32 < 16) row[c] = c % 2 == 0 ? 0.0f : -0.0f;
    }
  }
  return x;
}

void compare(const QuantizedMatrix& expected, const QuantizedMatrix& got, const std::string& what) {
  check(std::bit_cast<std::uint32_t>(expected.amax) == std::bit_cast<std::uint32_t>(got.amax) &&
            std::bit_cast<std::uint32_t>(expected.scale) == std::bit_cast<std::uint32_t>(got.scale),
        "{}: amax {:.9g} and scale {:.9g}, the reference has {:.9g} and {:.9g}", what, got.amax, got.scale,
        expected.amax, expected.scale);
  check(expected.scales == got.scales, "{}: block scales differ from the reference's", what);
  check(expected.codes == got.codes, "{}: codes differ from the reference's", what);
  check(expected.values == got.values, "{}: decoded values differ from the reference's", what);
}

constexpr const char* level_name(SimdLevel level) {
  return level == SimdLevel::Avx512 ? "avx512" : level == SimdLevel::Avx2 ? "avx2" : "baseline";
}

/// The reference itself has nothing to be compared with but the definition of one block of sixteen.
std::string compare_with_blocks(Stream& stream, ConstRealView x, bool fault) {
  QuantizedMatrix q = quantize_matrix(stream, x, {.spec = {.format = Format::Nvfp4}});
  if (fault) q.codes[3] ^= 1;
  const TensorScale scale = TensorScale::from_amax(q.amax);
  for (std::int64_t r = 0; r < q.shape.rows; ++r) {
    for (std::int64_t b = 0; b < q.shape.scale_cols; ++b) {
      float block[kNvfp4Block] = {};
      const std::int64_t size = std::min<std::int64_t>(kNvfp4Block, q.shape.cols - b * kNvfp4Block);
      for (std::int64_t j = 0; j < size; ++j) block[j] = x.get(r, b * kNvfp4Block + j);
      const Nvfp4Block expected = encode_block(block, scale, Profile::Te, NearestEven{});
      const auto at = static_cast<std::size_t>(r * q.shape.scale_cols + b);
      check(q.scales[at] == expected.scale.bits, "block {} of row {} has the scale 0x{:02X}, not 0x{:02X}", b,
            r, q.scales[at], expected.scale.bits);
      for (std::int64_t j = 0; j < size; ++j) {
        const int code = code_at(q, r, b * kNvfp4Block + j).code;
        check(code == unpack_code(expected.codes, static_cast<int>(j)).code,
              "element {} of block {} of row {} has code {}", j, b, r, code);
      }
    }
  }
  return fmt::format("{} blocks equal to their definition", q.scales.size());
}

/// The amax of `x` with one bad element, under every format, layout and rotation.
void check_bad_element(Stream& stream, float bad, bool fault) {
  const std::int64_t rows = 19, cols = 35;
  std::vector<float> x = normal_matrix(rows, cols, 5);
  x.back() = bad;
  for (const Format f : kQuantized) {
    for (const std::uint16_t rotation : {0, 16}) {
      for (const bool transpose : {false, true}) {
        QuantizedMatrix q =
            quantize_matrix(stream, View<const float>(x.data(), rows, cols),
                            {.spec = {.format = f, .rotation = rotation}, .transpose = transpose});
        if (fault) q.amax = 1;
        check(!is_finite(q.amax), "{}{}{}: a matrix with {} in it has amax {}, and nobody would notice",
              info(f).name, rotation != 0 ? " rotated" : "", transpose ? " transposed" : "", bad, q.amax);
      }
    }
  }
}

}  // namespace

std::string nibble_order(Stream& stream, bool fault) {
  const float row[16] = {0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6, 6};
  const std::uint8_t expected[8] = {0x21, 0x43, 0x65, 0x07, 0xA9, 0xCB, 0xED, 0x7F};
  const float amax = 2688;  // Scales of 1: the codes are the values.
  QuantizedMatrix q = quantize_matrix(stream, View<const float>(row, 1, 16),
                                      {.spec = {.format = Format::Nvfp4}, .amax_given = &amax});
  if (fault) q.codes[0] = 0x12;
  check(q.scales[0] == 0x38, "the block scale is 0x{:02X}, not that of 1", q.scales[0]);
  for (std::size_t i = 0; i < 8; ++i)
    check(q.codes[i] == expected[i], "byte {} of 0.5, 1, 1.5, 2, ... is 0x{:02X}, not 0x{:02X}", i,
          q.codes[i], expected[i]);
  return "0.5, 1, 1.5, 2 is 21 43";
}

std::string quantiser_bytes(Stream& stream, bool fault) {
  const std::int64_t rows = 67, cols = 151;
  const std::vector<float> x = varied_matrix(rows, cols);
  std::vector<bf16> narrow;
  for (const float v : x) narrow.push_back(bf16::nearest(v));
  const ConstRealView sources[] = {View<const float>(x.data(), rows, cols),
                                   View<const bf16>(narrow.data(), rows, cols)};
  if (stream.kind() == BackendKind::Ref) return compare_with_blocks(stream, sources[0], fault);
  Stream reference(BackendKind::Ref, stream.device(), 1);
  const KeepSimdLevel keep;
  const SimdLevel best = simd_level();
  std::string levels;
  int compared = 0;
  for (const SimdLevel level : {SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512}) {
    if (level > best) continue;
    set_simd_level(level);
    levels += fmt::format("{}{}", levels.empty() ? "" : ", ", level_name(level));
    for (const QuantSpec& spec : specs_to_compare()) {
      for (const bool transpose : {false, true}) {
        for (const ConstRealView& source : sources) {
          const QuantizeCase c{
              .spec = spec, .transpose = transpose, .random = {.seed = 9, .step = 2, .layer = 3}};
          QuantizedMatrix got = quantize_matrix(stream, source, c);
          if (fault && compared == 7) got.codes[3] ^= 1;
          compare(quantize_matrix(reference, source, c), got,
                  fmt::format("{} on {}, {}{}", info(spec.format).name, name_of(stream.kind()),
                              level_name(level), transpose ? ", transposed" : ""));
          ++compared;
        }
      }
    }
  }
  return fmt::format("{} cases equal to the reference byte for byte ({})", compared, levels);
}

std::string stochastic_means(Stream& stream, bool fault) {
  constexpr double kSigmas = 5;
  // Every block holds a 6, so that with amax 2688 all scales are 1 and x is in units of the codes.
  const std::int64_t rows = 18, cols = 256, n = rows * cols / 16 * 15;
  const float amax = 2688;
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  double worst = 0;
  std::uint32_t layer = 0;
  for (const Rounding rounding : {Rounding::Stochastic, Rounding::StochasticExact}) {
    for (const float magnitude : {0.001f, 0.1f, 0.3f, 0.7f, 1.2f, 1.9f, 2.4f, 3.3f, 4.9f, 5.5f}) {
      for (const float value : {magnitude, -magnitude}) {
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 16 == 0 ? 6.0f : value;
        const QuantizedMatrix q = quantize_matrix(stream, View<const float>(x.data(), rows, cols),
                                                  {.spec = {.format = Format::Nvfp4, .rounding = rounding},
                                                   .random = {.seed = 1, .layer = ++layer},
                                                   .amax_given = &amax});
        double sum = 0;
        for (std::size_t i = 0; i < x.size(); ++i) sum += i % 16 == 0 ? 0 : q.values[i].value();
        const double mean = sum / static_cast<double>(n) + (fault ? 0.1 : 0);
        const double a = std::abs(static_cast<double>(value));
        const double step = a < 2 ? 0.5 : a < 4 ? 1 : 2, low = step * std::floor(a / step);
        const double f = (a - low) / step;
        // Eight bits round up floor(256 f) times of 256: the mean is that much nearer to zero.
        const double p = rounding == Rounding::Stochastic ? std::floor(256 * f) / 256 : f;
        const double expected = std::copysign(low + p * step, value);
        const double sigma = step * std::sqrt(p * (1 - p) / static_cast<double>(n));
        const double off = std::abs(mean - expected);
        check(off <= kSigmas * sigma + 1e-12,
              "{}: {} copies of {} have the mean {:.6f}, expected {:.6f} +- {:.6f}",
              rounding == Rounding::Stochastic ? "8 bits" : "24 bits", n, value, mean, expected, sigma);
        if (sigma > 0) worst = std::max(worst, off / sigma);
      }
    }
  }
  return fmt::format("40 means of {} elements within {:.1f} sigma, 8-bit floor included", n, worst);
}

std::string hadamard_orthogonality(Stream& stream, bool fault) {
  constexpr std::uint16_t kMask = QuantSpec{}.sign_mask;
  std::vector<float> identity(256);
  for (std::size_t i = 0; i < 16; ++i) identity[17 * i] = 1;
  for (const bool transpose : {false, true}) {
    std::vector<bf16> h(256);
    rotate(stream, {.x_RC = View<const float>(identity.data(), 16, 16),
                    .transpose = transpose,
                    .sign_mask = kMask,
                    .out = View<bf16>(h.data(), 16, 16)});
    if (fault) h[37] = bf16::nearest(-h[37].value());
    for (std::size_t r = 0; r < 16; ++r) {
      for (std::size_t c = 0; c < 16; ++c) {
        const bool negative = ((kMask >> r & 1) + std::popcount(r & c)) % 2 != 0;
        check(h[16 * r + c].value() == (negative ? -0.25f : 0.25f), "element [{}, {}] of the transform is {}",
              r, c, h[16 * r + c].value());
        double dot = 0;
        for (std::size_t k = 0; k < 16; ++k)
          dot += static_cast<double>(h[16 * r + k].value()) * static_cast<double>(h[16 * c + k].value());
        check(dot == (r == c ? 1.0 : 0.0), "rows {} and {} of the transform have the product {}", r, c, dot);
      }
    }
  }
  // The norm of rotated data stays, but for one rounding to BF16 (2^-9 relative a value).
  const std::int64_t rows = 32, cols = 256;
  const std::vector<float> x = normal_matrix(rows, cols, 21);
  std::vector<bf16> y(x.size());
  rotate(stream, {.x_RC = View<const float>(x.data(), rows, cols),
                  .sign_mask = kMask,
                  .out = View<bf16>(y.data(), rows, cols)});
  double before = 0, after = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    before += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    after += static_cast<double>(y[i].value()) * static_cast<double>(y[i].value());
  }
  const double change = std::abs(std::sqrt(after / before) - 1);
  check(change <= 0x1p-9, "the norm of rotated data changed by {:.3e}", change);
  return fmt::format("H H^T = 1 exactly; norm of {} rotated values kept to {:.1e}", x.size(), change);
}

std::string non_finite_detection(Stream& stream, bool fault) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf})
    check_bad_element(stream, bad, fault);
  return "NaN, +Inf and -Inf seen in every format, layout and rotation";
}

}  // namespace nibble::selftest
