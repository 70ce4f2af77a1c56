// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "cli/selftest/matrices.h"
#include "cli/selftest/selftest.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/matmul_fp4.h"
#include "ops/gemm/matmul_fp8.h"
#include "ops/gemm/matmul_mxfp8.h"
#include "ops/gemm/native.h"
#include "quant/nvfp4.h"
#include "quant/swizzle.h"

namespace nibble::selftest {
namespace {

/// NVFP4 operands as integers: 2 x code value times 2^9 x scale value, so 2^-10 of it is the operand. Codes
/// and scales are decoded here by definition, apart from the codecs.
std::vector<std::int64_t> integers_of(const QuantizedMatrix& q) {
  constexpr std::int64_t kTwiceCode[] = {0, 1, 2, 3, 4, 6, 8, 12};
  std::vector<std::int64_t> out;
  out.reserve(q.values.size());
  for (std::int64_t r = 0; r < q.shape.rows; ++r) {
    for (std::int64_t c = 0; c < q.shape.cols; ++c) {
      const int code = code_at(q, r, c).code;
      const int scale = q.scales[static_cast<std::size_t>(r * q.shape.scale_cols + c / kNvfp4Block)];
      const std::int64_t mantissa = scale & 7;
      const int exponent = scale >> 3;
      const std::int64_t units = exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1);
      out.push_back((code & 8 ? -1 : 1) * kTwiceCode[code & 7] * units);
    }
  }
  return out;
}

/// The operands that the product reads must be these integers exactly.
void check_operands(const QuantizedMatrix& q, const std::vector<std::int64_t>& integers, const char* name) {
  for (std::size_t i = 0; i < integers.size(); ++i) {
    const double expected = std::ldexp(static_cast<double>(integers[i]), -10);
    check(static_cast<double>(q.values[i].value()) == expected,
          "operand {}: element {} is {}, code x scale is {}", name, i, q.values[i].value(), expected);
  }
}

/// Distance from x to the next BF16 number above |x|.
double bf16_ulp(double x) { return x == 0 ? 0x1p-133 : std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7); }

/// A matrix of integers from -4 to 4 in a format that tensor cores multiply as it is stored. The bytes are
/// written here by the formats' definitions: values -2 to 2, block scales 1 and 2.
struct CodedMatrix {
  std::int64_t rows, cols;
  std::vector<std::int64_t> integers;
  HostVector<std::uint8_t> codes, scales;  ///< scales in the tensor cores' order
  HostVector<float> number;                ///< the tensor's scale or amax

  CodedMatrix(Device& device, Format format, std::int64_t r, std::int64_t c, std::uint64_t seed, float n)
      : rows(r), cols(c), codes(device), scales(device), number(1, n, device) {
    const bool half_bytes = format == Format::Nvfp4;
    const int block = info(format).block;
    codes.resize(static_cast<std::size_t>(half_bytes ? rows * cols / 2 : rows * cols));
    if (block != 0)
      scales.resize(
          static_cast<std::size_t>(swizzle_padded_rows(rows) * swizzle_padded_columns(cols / block)));
    constexpr std::uint8_t kE2m1[] = {0x0, 0x2, 0x4}, kE4m3[] = {0x00, 0x38, 0x40};
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        const std::int64_t at = row * cols + col;
        const auto value =
            static_cast<std::int64_t>(initial_bits(seed, 1, static_cast<std::uint64_t>(at)).word[0] % 5) - 2;
        const auto magnitude = static_cast<std::size_t>(std::abs(value));
        const std::int64_t twice = block != 0 && (row + col / block) % 3 == 0 ? 1 : 0;
        integers.push_back(value << twice);
        if (half_bytes)
          codes[static_cast<std::size_t>(at / 2)] |=
              static_cast<std::uint8_t>((kE2m1[magnitude] | (value < 0 ? 0x8 : 0)) << (4 * (at % 2)));
        else
          codes[static_cast<std::size_t>(at)] =
              static_cast<std::uint8_t>(kE4m3[magnitude] | (value < 0 ? 0x80 : 0));
        if (block != 0 && col % block == 0)
          scales[static_cast<std::size_t>(swizzle_offset(row, col / block, cols / block))] =
              half_bytes ? kE4m3[1 + twice] : static_cast<std::uint8_t>(127 + twice);
      }
    }
  }
  View<const std::uint8_t> codes_view() const {
    return View<const std::uint8_t>(codes.data(), rows, static_cast<std::int64_t>(codes.size()) / rows);
  }
  View<const std::uint8_t> scales_view() const {
    return View<const std::uint8_t>(scales.data(), static_cast<std::int64_t>(scales.size()));
  }
};

void multiply_codes(Stream& stream, Format format, const CodedMatrix& a, const CodedMatrix& b,
                    View<float> c_MN) {
  if (format == Format::Fp8E4M3)
    matmul_fp8(stream, {.a_MK = a.codes_view(),
                        .b_NK = b.codes_view(),
                        .a_scale = a.number.data(),
                        .b_scale = b.number.data(),
                        .c_MN = c_MN});
  else if (format == Format::Nvfp4)
    matmul_fp4(stream, {.a_codes = a.codes_view(),
                        .b_codes = b.codes_view(),
                        .a_scales = a.scales_view(),
                        .b_scales = b.scales_view(),
                        .a_amax = a.number.data(),
                        .b_amax = b.number.data(),
                        .c_MN = c_MN});
  else
    matmul_mxfp8(stream, {.a_codes = a.codes_view(),
                          .b_codes = b.codes_view(),
                          .a_scales = a.scales_view(),
                          .b_scales = b.scales_view(),
                          .c_MN = c_MN});
  stream.device().synchronize();
}

struct Comparison {
  std::int64_t count = 0, equal_bf16 = 0;
  double worst = 0;  ///< error of the FP32 product over its bound
};

}  // namespace

std::string integer_gemm(Stream& stream, bool fault) {
  // Integers whose sums stay below 2^24: FP32 accumulation in any order is exact, so the result is one
  // number.
  const std::int64_t M = 65, N = 80, K = 300;
  Device& device = stream.device();
  HostVector<float> a(static_cast<std::size_t>(M * K), device), b(static_cast<std::size_t>(N * K), device);
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<float>(initial_bits(1, 1, i).word[0] % 201) - 100;
  for (std::size_t i = 0; i < b.size(); ++i)
    b[i] = static_cast<float>(initial_bits(1, 2, i).word[0] % 201) - 100;
  const HostVector<bf16> a16 = narrowed(device, a), b16 = narrowed(device, b);
  for (const bool narrow : {false, true}) {
    HostVector<float> c(static_cast<std::size_t>(M * N), -1.0f, device);
    MatMul g{.a_MK = View<const float>(a.data(), M, K),
             .b_NK = View<const float>(b.data(), N, K),
             .c_MN = View<float>(c.data(), M, N)};
    if (narrow) {
      g.a_MK = View<const bf16>(a16.data(), M, K);
      g.b_NK = View<const bf16>(b16.data(), N, K);
    }
    matmul(stream, g);
    device.synchronize();
    if (fault) c[40] += 1;
    for (std::int64_t m = 0; m < M; ++m) {
      for (std::int64_t n = 0; n < N; ++n) {
        std::int64_t sum = 0;
        for (std::int64_t k = 0; k < K; ++k)
          sum += static_cast<std::int64_t>(a[static_cast<std::size_t>(m * K + k)]) *
                 static_cast<std::int64_t>(b[static_cast<std::size_t>(n * K + k)]);
        const float got = c[static_cast<std::size_t>(m * N + n)];
        check(got == static_cast<float>(sum), "{} product [{}, {}] is {}, the exact sum is {}",
              narrow ? "bf16" : "fp32", m, n, got, sum);
      }
    }
  }
  return fmt::format("fp32 and bf16 [{} x {}] x [{} x {}]^T exact", M, K, N, K);
}

std::string nvfp4_gemm(Stream& stream, bool fault) {
  constexpr double kEqualShare = 0.9999;
  const std::int64_t M = 256, N = 256, K = 256;
  Device& device = stream.device();
  const HostVector<float> x = normal_matrix(device, M, K, 31, 0.7), w = normal_matrix(device, N, K, 32, 0.02);
  const QuantizedMatrix a =
      quantize_matrix(stream, View<const float>(x.data(), M, K), {.spec = {.format = Format::Nvfp4}});
  const QuantizedMatrix b = quantize_matrix(stream, View<const float>(w.data(), N, K),
                                            {.spec = {.format = Format::Nvfp4, .tile = Tile::Square}});
  const std::vector<std::int64_t> ia = integers_of(a), ib = integers_of(b);
  check_operands(a, ia, "a");
  check_operands(b, ib, "b");
  HostVector<bf16> c16(static_cast<std::size_t>(M * N), device);
  HostVector<float> c32(c16.size(), device);
  MatMul g{.a_MK = a.values_view(),
           .b_NK = b.values_view(),
           .c_MN = View<bf16>(c16.data(), M, N),
           .a_scale = a.numbers.data() + 1,
           .b_scale = b.numbers.data() + 1,
           .inverse_range = gemm_inverse_range(Format::Nvfp4, Format::Nvfp4)};
  matmul(stream, g);
  g.c_MN = View<float>(c32.data(), M, N);
  matmul(stream, g);
  device.synchronize();
  if (fault) c16[77] = bf16::nearest(c16[77].value() + 1.0f);
  const double alpha = static_cast<double>(gemm_alpha(a.amax(), b.amax())) * 0x1p-20;
  Comparison seen;
  for (std::int64_t m = 0; m < M; ++m) {
    for (std::int64_t n = 0; n < N; ++n) {
      std::int64_t sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < K; ++k) {
        const std::int64_t p =
            ia[static_cast<std::size_t>(m * K + k)] * ib[static_cast<std::size_t>(n * K + k)];
        sum += p;
        magnitude += std::abs(p);
      }
      const auto at = static_cast<std::size_t>(m * N + n);
      const double exact = static_cast<double>(sum) * alpha;
      const double accumulation = static_cast<double>(K) * 0x1p-24 * static_cast<double>(magnitude) * alpha;
      const double error32 = std::abs(static_cast<double>(c32[at]) - exact);
      const double error16 = std::abs(static_cast<double>(c16[at].value()) - exact);
      check(error32 <= accumulation + std::ldexp(std::abs(exact), -23),
            "FP32 output [{}, {}] is {:.9g}, the exact product is {:.9g}", m, n, c32[at], exact);
      check(error16 <= std::max(bf16_ulp(exact), accumulation),
            "BF16 output [{}, {}] is {:.9g}, exact: {:.9g}", m, n, c16[at].value(), exact);
      if (accumulation > 0) seen.worst = std::max(seen.worst, error32 / accumulation);
      seen.equal_bf16 += c16[at] == bf16::nearest(static_cast<float>(exact)) ? 1 : 0;
      ++seen.count;
    }
  }
  const double share = static_cast<double>(seen.equal_bf16) / static_cast<double>(seen.count);
  check(share >= kEqualShare, "only {:.3f} % of the BF16 outputs equal the exact product, expected {:.2f} %",
        100 * share, 100 * kEqualShare);
  return fmt::format(
      "{:.4f} % of {} BF16 outputs equal the exact integer product; FP32 error {:.3f} of its bound",
      100 * share, seen.count, seen.worst);
}

std::string coded_products(Stream& stream, bool fault) {
  // Sums of integers below 2^12, which every tensor core holds exactly: the result is one number. More than
  // one tile of block scales in both directions.
  const std::int64_t M = 144, N = 160, K = 128;
  Device& device = stream.device();
  const bool host = stream.kind() != BackendKind::Cuda;
  const NativeGemm native = native_gemm(device);
  struct Product {
    const char* name;
    Format format;
    float a, b, alpha;  ///< the tensors' numbers, and what they make of a sum
    bool there;
  };
  // An amax of 2688 is a tensor scale of 1, but for the rounding of alpha.
  const Product products[] = {
      {"fp8", Format::Fp8E4M3, 4, 0.5f, 2, host || native.fp8},
      {"nvfp4", Format::Nvfp4, 2688, 2688, gemm_alpha(2688, 2688), host || native.fp4},
      {"mxfp8", Format::Mxfp8E4M3, 1, 1, 1, host || native.mxfp8}};
  std::string exact, missing;
  for (const Product& p : products) {
    if (!p.there) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", p.name);
      continue;
    }
    const CodedMatrix a(device, p.format, M, K, 41, p.a), b(device, p.format, N, K, 42, p.b);
    HostVector<float> c(static_cast<std::size_t>(M * N), -1.0f, device);
    multiply_codes(stream, p.format, a, b, View<float>(c.data(), M, N));
    if (fault) c[40] += 1;
    for (std::int64_t m = 0; m < M; ++m) {
      for (std::int64_t n = 0; n < N; ++n) {
        std::int64_t sum = 0;
        for (std::int64_t k = 0; k < K; ++k)
          sum += a.integers[static_cast<std::size_t>(m * K + k)] *
                 b.integers[static_cast<std::size_t>(n * K + k)];
        const float expected = static_cast<float>(sum) * p.alpha,
                    got = c[static_cast<std::size_t>(m * N + n)];
        check(std::abs(got - expected) <= 0x1p-22f * std::abs(expected),
              "{} product [{}, {}] is {}, the exact sum is {}", p.name, m, n, got, expected);
      }
    }
    exact += fmt::format("{}{}", exact.empty() ? "" : ", ", p.name);
  }
  check(!fault || !exact.empty(), "this card multiplies no codes: there is no product to falsify");
  return fmt::format("{}{}", exact.empty() ? "none" : exact + " exact",
                     missing.empty() ? "" : "; this card lacks " + missing);
}

}  // namespace nibble::selftest
