// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "cli/selftest/matrices.h"
#include "cli/selftest/selftest.h"
#include "ops/gemm/gemm.h"
#include "quant/nvfp4.h"

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

struct Comparison {
  std::int64_t count = 0, equal_bf16 = 0;
  double worst = 0;  ///< error of the FP32 product over its bound
};

}  // namespace

std::string integer_gemm(Stream& stream, bool fault) {
  // Integers whose sums stay below 2^24: FP32 accumulation in any order is exact, so the result is one
  // number.
  const std::int64_t M = 65, N = 80, K = 300;
  std::vector<float> a(static_cast<std::size_t>(M * K)), b(static_cast<std::size_t>(N * K));
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<float>(initial_bits(1, 1, i).word[0] % 201) - 100;
  for (std::size_t i = 0; i < b.size(); ++i)
    b[i] = static_cast<float>(initial_bits(1, 2, i).word[0] % 201) - 100;
  std::vector<bf16> a16, b16;
  for (const float v : a) a16.push_back(bf16::nearest(v));
  for (const float v : b) b16.push_back(bf16::nearest(v));
  for (const bool narrow : {false, true}) {
    std::vector<float> c(static_cast<std::size_t>(M * N), -1.0f);
    MatMul g{.a_MK = View<const float>(a.data(), M, K),
             .b_NK = View<const float>(b.data(), N, K),
             .c_MN = View<float>(c.data(), M, N)};
    if (narrow) {
      g.a_MK = View<const bf16>(a16.data(), M, K);
      g.b_NK = View<const bf16>(b16.data(), N, K);
    }
    matmul(stream, g);
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
  const std::vector<float> x = normal_matrix(M, K, 31, 0.7), w = normal_matrix(N, K, 32, 0.02);
  const QuantizedMatrix a =
      quantize_matrix(stream, View<const float>(x.data(), M, K), {.spec = {.format = Format::Nvfp4}});
  const QuantizedMatrix b = quantize_matrix(stream, View<const float>(w.data(), N, K),
                                            {.spec = {.format = Format::Nvfp4, .tile = Tile::Square}});
  const std::vector<std::int64_t> ia = integers_of(a), ib = integers_of(b);
  check_operands(a, ia, "a");
  check_operands(b, ib, "b");
  std::vector<bf16> c16(static_cast<std::size_t>(M * N));
  std::vector<float> c32(c16.size());
  MatMul g{.a_MK = View<const bf16>(a.values.data(), M, K),
           .b_NK = View<const bf16>(b.values.data(), N, K),
           .c_MN = View<bf16>(c16.data(), M, N),
           .a_scale = &a.scale,
           .b_scale = &b.scale,
           .inverse_range = gemm_inverse_range(Format::Nvfp4, Format::Nvfp4)};
  matmul(stream, g);
  g.c_MN = View<float>(c32.data(), M, N);
  matmul(stream, g);
  if (fault) c16[77] = bf16::nearest(c16[77].value() + 1.0f);
  const double alpha = static_cast<double>(gemm_alpha(a.amax, b.amax)) * 0x1p-20;
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

}  // namespace nibble::selftest
