// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <limits>

#include "base/simd.h"
#include "cli/selftest/matrices.h"
#include "cli/selftest/selftest.h"
#include "ops/quantize/quantize_pair.h"
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
HostVector<float> varied_matrix(Device& device, std::int64_t rows, std::int64_t cols) {
  HostVector<float> x = normal_matrix(device, rows, cols, 11);
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
  const auto same_bits = [](float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  };
  check(same_bits(expected.amax(), got.amax()) && same_bits(expected.scale(), got.scale()),
        "{}: amax {:.9g} and scale {:.9g}, the reference has {:.9g} and {:.9g}", what, got.amax(),
        got.scale(), expected.amax(), expected.scale());
  check(expected.scales == got.scales, "{}: block scales differ from the reference's", what);
  check(expected.codes == got.codes, "{}: codes differ from the reference's", what);
  check(expected.values == got.values, "{}: decoded values differ from the reference's", what);
}

constexpr const char* level_name(SimdLevel level) {
  return level == SimdLevel::Avx512 ? "avx512" : level == SimdLevel::Avx2 ? "avx2" : "baseline";
}

/// The reference itself has nothing to be compared with but the definition of one block of sixteen.
std::string compare_with_blocks(Stream& stream, bool fault) {
  const HostVector<float> memory = varied_matrix(stream.device(), 67, 151);
  const View<const float> x(memory.data(), 67, 151);
  QuantizedMatrix q = quantize_matrix(stream, x, {.spec = {.format = Format::Nvfp4}});
  if (fault) q.codes[3] ^= 1;
  const TensorScale scale = TensorScale::from_amax(q.amax());
  for (std::int64_t r = 0; r < q.shape.rows; ++r) {
    for (std::int64_t b = 0; b < q.shape.scale_cols; ++b) {
      float block[kNvfp4Block] = {};
      const std::int64_t size = std::min<std::int64_t>(kNvfp4Block, q.shape.cols - b * kNvfp4Block);
      for (std::int64_t j = 0; j < size; ++j) block[j] = x(r, b * kNvfp4Block + j);
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

/// The stream's backend beside the reference, which has a device of its own: its scratch must be memory that
/// it can read. Both read the sources, which lie in host memory of the stream's device.
class Comparison {
 public:
  Comparison(Stream& stream, bool fault) : stream_(stream), fault_(fault) {}

  void quantize_both(ConstRealView x, const QuantizeCase& c, const std::string& what) {
    QuantizedMatrix got = quantize_matrix(stream_, x, c);
    judge(quantize_matrix(reference_, x, c), got,
          fmt::format("{} on {}{}", info(c.spec.format).name, what, c.transpose ? ", transposed" : ""));
  }
  void pair_both(ConstRealView x, const QuantSpec& rows, const QuantSpec& transposed, Outputs outputs) {
    auto got = quantize_two(stream_, x, rows, transposed, outputs);
    const auto expected = quantize_two(reference_, x, rows, transposed, outputs);
    judge(expected.first, got.first, "rows of a pair");
    judge(expected.second, got.second, "transposed copy of a pair");
  }
  int count() const { return count_; }

 private:
  static std::pair<QuantizedMatrix, QuantizedMatrix> quantize_two(Stream& stream, ConstRealView x,
                                                                  const QuantSpec& rows,
                                                                  const QuantSpec& transposed,
                                                                  Outputs outputs) {
    const auto memory = [&](const QuantSpec& spec, bool transpose) {
      return QuantizedMatrix(stream.device(), quantized_shape(spec, x.size(0), x.size(1), transpose));
    };
    std::pair<QuantizedMatrix, QuantizedMatrix> out{memory(rows, false), memory(transposed, true)};
    const auto copy = [&](const QuantSpec& spec, QuantizedMatrix& q, std::uint8_t role) {
      QuantizePair::Copy c{.spec = spec, .random = {.seed = 9, .step = 2, .layer = 3, .role = role}};
      c.amax = q.numbers.data();
      c.scale = q.numbers.data() + 1;
      if (outputs == Outputs::Values) {
        c.values = q.values_view();
      } else {
        c.codes = q.codes_view();
        c.scales = q.scales_view();
      }
      return c;
    };
    quantize_pair(
        stream, {.x_RC = x, .rows = copy(rows, out.first, 4), .transposed = copy(transposed, out.second, 5)});
    stream.device().synchronize();
    return out;
  }
  void judge(const QuantizedMatrix& expected, QuantizedMatrix& got, const std::string& what) {
    if (fault_ && count_ == 7) got.codes[3] ^= 1;
    compare(expected, got, what);
    ++count_;
  }

  Stream& stream_;
  bool fault_;
  HostDevice host_;
  Stream reference_{BackendKind::Ref, host_, 1};
  int count_ = 0;
};

/// Every format, rounding and layout, on a matrix whose sizes no block divides.
void compare_every_spec(Stream& stream, Comparison& both, const std::string& where) {
  const std::int64_t rows = 67, cols = 151;
  const HostVector<float> x = varied_matrix(stream.device(), rows, cols);
  const HostVector<bf16> narrow = narrowed(stream.device(), x);
  const ConstRealView sources[] = {View<const float>(x.data(), rows, cols),
                                   View<const bf16>(narrow.data(), rows, cols)};
  for (const QuantSpec& spec : specs_to_compare())
    for (const bool transpose : {false, true})
      for (const ConstRealView& source : sources)
        both.quantize_both(
            source, {.spec = spec, .transpose = transpose, .random = {.seed = 9, .step = 2, .layer = 3}},
            where);
}

/// What the layers of a run under NVFP4 ask for: BF16, whole blocks, values alone or codes alone. A GPU has
/// kernels for these that nothing else reaches.
void compare_training_operands(Stream& stream, Comparison& both, const std::string& where) {
  const std::int64_t rows = 80, cols = 208;
  const HostVector<bf16> x = narrowed(stream.device(), varied_matrix(stream.device(), rows, cols));
  const View<const bf16> source(x.data(), rows, cols);
  const QuantSpec nearest{.format = Format::Nvfp4}, square{.format = Format::Nvfp4, .tile = Tile::Square},
      stochastic{.format = Format::Nvfp4, .rounding = Rounding::Stochastic},
      rotated{.format = Format::Nvfp4, .rotation = 16},
      both_of_them{.format = Format::Nvfp4, .rounding = Rounding::Stochastic, .rotation = 16};
  for (const Outputs outputs : {Outputs::Values, Outputs::Codes}) {
    for (const QuantSpec& spec : {nearest, square, stochastic, rotated, both_of_them})
      for (const bool transpose : {false, true})
        both.quantize_both(source,
                           {.spec = spec,
                            .transpose = transpose,
                            .random = {.seed = 9, .step = 2, .layer = 3},
                            .outputs = outputs},
                           where);
    both.pair_both(source, nearest, rotated, outputs);
    both.pair_both(source, stochastic, both_of_them, outputs);
  }
}

/// One bad element must show in the amax and, for those who do not wait for it, in the fault number: under
/// every format, layout and rotation; in FP32 at any size, and in BF16 as layers have it.
void check_bad_element(Stream& stream, float bad, bool fault) {
  const std::int64_t rows = 32, cols = 48;
  HostVector<float> x = normal_matrix(stream.device(), rows, cols, 5);
  x[static_cast<std::size_t>(18 * cols + 34)] = bad;
  const HostVector<bf16> narrow = narrowed(stream.device(), x);
  HostVector<std::int64_t> noted(1, stream.device());
  const auto look = [&](ConstRealView source, const QuantSpec& spec, bool transpose, Outputs outputs) {
    noted[0] = -1;
    QuantizedMatrix q = quantize_matrix(
        stream, source, {.spec = spec, .transpose = transpose, .outputs = outputs, .fault = noted.data()});
    if (fault) q.numbers[0] = 1;
    check(!is_finite(q.amax()) && noted[0] == 0,
          "{}{}{}: a matrix with {} in it has amax {}{}, and nobody would notice", info(spec.format).name,
          spec.rotation != 0 ? " rotated" : "", transpose ? " transposed" : "", bad, q.amax(),
          noted[0] == 0 ? "" : " and no fault noted");
  };
  for (const Format f : kQuantized) {
    for (const std::uint16_t rotation : {0, 16}) {
      for (const bool transpose : {false, true}) {
        const QuantSpec spec{.format = f, .rotation = rotation};
        look(View<const float>(x.data(), rows, cols).slice(0, 0, 19).slice(1, 0, 35), spec, transpose,
             Outputs::All);
        look(View<const bf16>(narrow.data(), rows, cols), spec, transpose, Outputs::Values);
      }
    }
  }
}

}  // namespace

std::string nibble_order(Stream& stream, bool fault) {
  const HostVector<float> row({0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6, 6},
                              stream.device());
  const std::uint8_t expected[8] = {0x21, 0x43, 0x65, 0x07, 0xA9, 0xCB, 0xED, 0x7F};
  const HostVector<float> amax(1, 2688, stream.device());  // Scales of 1: the codes are the values.
  QuantizedMatrix q = quantize_matrix(stream, View<const float>(row.data(), 1, 16),
                                      {.spec = {.format = Format::Nvfp4}, .amax_given = amax.data()});
  if (fault) q.codes[0] = 0x12;
  check(q.scales[0] == 0x38, "the block scale is 0x{:02X}, not that of 1", q.scales[0]);
  for (std::size_t i = 0; i < 8; ++i)
    check(q.codes[i] == expected[i], "byte {} of 0.5, 1, 1.5, 2, ... is 0x{:02X}, not 0x{:02X}", i,
          q.codes[i], expected[i]);
  return "0.5, 1, 1.5, 2 is 21 43";
}

std::string quantiser_bytes(Stream& stream, bool fault) {
  if (stream.kind() == BackendKind::Ref) return compare_with_blocks(stream, fault);
  Comparison both(stream, fault);
  if (stream.kind() == BackendKind::Cuda) {
    compare_every_spec(stream, both, "cuda");
    compare_training_operands(stream, both, "cuda");
    return fmt::format("{} cases equal to the reference byte for byte", both.count());
  }
  const KeepSimdLevel keep;
  const SimdLevel best = simd_level();
  std::string levels;
  for (const SimdLevel level : {SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512}) {
    if (level > best) continue;
    set_simd_level(level);
    levels += fmt::format("{}{}", levels.empty() ? "" : ", ", level_name(level));
    const std::string where = fmt::format("{}, {}", name_of(stream.kind()), level_name(level));
    compare_every_spec(stream, both, where);
    compare_training_operands(stream, both, where);
  }
  return fmt::format("{} cases equal to the reference byte for byte ({})", both.count(), levels);
}

std::string stochastic_means(Stream& stream, bool fault) {
  constexpr double kSigmas = 5;
  // Every block holds a 6, so that with amax 2688 all scales are 1 and x is in units of the codes.
  const std::int64_t rows = 18, cols = 256, n = rows * cols / 16 * 15;
  const HostVector<float> amax(1, 2688, stream.device());
  HostVector<bf16> x(static_cast<std::size_t>(rows * cols), stream.device());
  double worst = 0;
  std::uint32_t layer = 0;
  for (const Rounding rounding : {Rounding::Stochastic, Rounding::StochasticExact}) {
    for (const float magnitude : {0.001f, 0.1f, 0.3f, 0.7f, 1.2f, 1.9f, 2.4f, 3.3f, 4.9f, 5.5f}) {
      for (const float sign : {1.0f, -1.0f}) {
        const bf16 element = bf16::nearest(sign * magnitude), six = bf16::nearest(6);
        const float value = element.value();
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 16 == 0 ? six : element;
        const QuantizedMatrix q = quantize_matrix(stream, View<const bf16>(x.data(), rows, cols),
                                                  {.spec = {.format = Format::Nvfp4, .rounding = rounding},
                                                   .random = {.seed = 1, .layer = ++layer},
                                                   .outputs = Outputs::Values,
                                                   .amax_given = amax.data()});
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
  HostVector<float> identity(256, stream.device());
  for (std::size_t i = 0; i < 16; ++i) identity[17 * i] = 1;
  for (const bool transpose : {false, true}) {
    HostVector<bf16> h(256, stream.device());
    rotate(stream, {.x_RC = View<const float>(identity.data(), 16, 16),
                    .transpose = transpose,
                    .sign_mask = kMask,
                    .out = View<bf16>(h.data(), 16, 16)});
    stream.device().synchronize();
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
  const HostVector<float> x = normal_matrix(stream.device(), rows, cols, 21);
  HostVector<bf16> y(x.size(), stream.device());
  rotate(stream, {.x_RC = View<const float>(x.data(), rows, cols),
                  .sign_mask = kMask,
                  .out = View<bf16>(y.data(), rows, cols)});
  stream.device().synchronize();
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
