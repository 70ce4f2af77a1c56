// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "numeric/random_key.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/matmul_fp4.h"
#include "ops/gemm/matmul_fp8.h"
#include "ops/gemm/matmul_mxfp8.h"
#include "ops/quantize/quantize.h"
#include "quant/swizzle.h"

/// The product of what the quantiser stored is the product of the exact operands that it also writes, to the
/// bit: reading the codes is not a second rounding.
namespace nibble {
namespace {

constexpr std::int64_t kM = 48, kN = 160, kK = 192;

/// One operand as the quantiser writes it, its block scales also in the tensor cores' order.
struct Stored {
  std::vector<bf16> source, values;
  std::vector<std::uint8_t> codes, scales, swizzled;
  std::int64_t rows = 0, code_cols = 0;
  float amax = 0, scale = 0;

  Stored(Stream& stream, Format format, std::int64_t rows_, std::uint64_t seed) : rows(rows_) {
    for (std::int64_t i = 0; i < rows * kK; ++i)
      source.push_back(
          bf16::nearest(static_cast<float>(initial_normal(seed, 1, static_cast<std::uint64_t>(i)))));
    const QuantSpec spec{.format = format};
    const QuantizedShape s = quantized_shape(spec, rows, kK, false);
    code_cols = s.code_cols;
    values.resize(source.size());
    codes.resize(static_cast<std::size_t>(rows * s.code_cols) + 16);
    scales.resize(static_cast<std::size_t>(rows * s.scale_cols));
    quantize(stream, {.x_RC = View<const bf16>(source.data(), rows, kK),
                      .spec = spec,
                      .amax = &amax,
                      .scale = &scale,
                      .values = View<bf16>(values.data(), rows, kK),
                      .codes = View<std::uint8_t>(code_data(), rows, s.code_cols),
                      .scales = s.scale_cols == 0 ? View<std::uint8_t>()
                                                  : View<std::uint8_t>(scales.data(), rows, s.scale_cols)});
    if (s.scale_cols == 0) return;
    swizzled.resize(
        static_cast<std::size_t>(swizzle_padded_rows(rows) * swizzle_padded_columns(s.scale_cols)) + 16);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < s.scale_cols; ++j)
        aligned(swizzled)[swizzle_offset(r, j, s.scale_cols)] =
            scales[static_cast<std::size_t>(r * s.scale_cols + j)];
  }
  static std::uint8_t* aligned(std::vector<std::uint8_t>& bytes) {
    return bytes.data() + (16 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 16) % 16;
  }
  std::uint8_t* code_data() { return aligned(codes); }
  View<const std::uint8_t> code_view() { return View<const std::uint8_t>(code_data(), rows, code_cols); }
  View<const std::uint8_t> swizzled_view() {
    return View<const std::uint8_t>(aligned(swizzled), static_cast<std::int64_t>(swizzled.size()) - 16);
  }
  ConstRealView value_view() const { return View<const bf16>(values.data(), rows, kK); }
};

class StoredProduct : public ::testing::Test {
 protected:
  /// Expects `product(c)` to write what matmul writes for the values of a and b.
  template <class F>
  void expect_same(const Stored& a, const Stored& b, float inverse_range, F&& product) {
    std::vector<float> expected(kM * kN), got(kM * kN);
    matmul(stream_, {.a_MK = a.value_view(),
                     .b_NK = b.value_view(),
                     .c_MN = View<float>(expected.data(), kM, kN),
                     .a_scale = &a.scale,
                     .b_scale = &b.scale,
                     .inverse_range = inverse_range});
    product(View<float>(got.data(), kM, kN));
    EXPECT_EQ(got, expected);
    EXPECT_NE(got, std::vector<float>(kM * kN)) << "nothing was computed";
  }

  HostDevice device_;
  Stream stream_{BackendKind::Cpu, device_, 2};
};

TEST_F(StoredProduct, Fp8) {
  for (Format format : {Format::Fp8E4M3, Format::Fp8E5M2}) {
    Stored a(stream_, format, kM, 1), b(stream_, Format::Fp8E4M3, kN, 2);
    expect_same(a, b, 1, [&](const View<float>& c) {
      matmul_fp8(stream_, {.a_MK = a.code_view(),
                           .b_NK = b.code_view(),
                           .a_format = format,
                           .a_scale = &a.scale,
                           .b_scale = &b.scale,
                           .c_MN = c});
    });
  }
}

TEST_F(StoredProduct, Nvfp4) {
  Stored a(stream_, Format::Nvfp4, kM, 1), b(stream_, Format::Nvfp4, kN, 2);
  expect_same(a, b, gemm_inverse_range(Format::Nvfp4, Format::Nvfp4), [&](const View<float>& c) {
    matmul_fp4(stream_, {.a_codes = a.code_view(),
                         .b_codes = b.code_view(),
                         .a_scales = a.swizzled_view(),
                         .b_scales = b.swizzled_view(),
                         .a_amax = &a.amax,
                         .b_amax = &b.amax,
                         .c_MN = c});
  });
}

TEST_F(StoredProduct, Mxfp8) {
  for (Format format : {Format::Mxfp8E4M3, Format::Mxfp8E5M2}) {
    Stored a(stream_, format, kM, 1), b(stream_, Format::Mxfp8E4M3, kN, 2);
    expect_same(a, b, 1, [&](const View<float>& c) {
      matmul_mxfp8(stream_, {.a_codes = a.code_view(),
                             .b_codes = b.code_view(),
                             .a_scales = a.swizzled_view(),
                             .b_scales = b.swizzled_view(),
                             .a_format = format,
                             .c_MN = c});
    });
  }
}

TEST_F(StoredProduct, WhatNoTensorCoreMultipliesIsRefused) {
  alignas(16) static std::uint8_t codes[64 * 64];
  alignas(16) static float c[64 * 64];
  const auto product = [](std::int64_t M, std::int64_t N, std::int64_t K) {
    return MatMulFp8{.a_MK = View<const std::uint8_t>(codes, M, K),
                     .b_NK = View<const std::uint8_t>(codes, N, K),
                     .c_MN = View<float>(c, M, N)};
  };
  EXPECT_NO_THROW(check(product(16, 32, 48)));
  EXPECT_THROW(check(product(8, 32, 48)), Error);
  EXPECT_THROW(check(product(16, 31, 48)), Error);
  EXPECT_THROW(check(product(16, 32, 40)), Error);
  MatMulFp8 g = product(16, 32, 48);
  g.a_format = g.b_format = Format::Fp8E5M2;
  EXPECT_THROW(check(g), Error);
  g = product(16, 32, 48);
  g.a_format = Format::Nvfp4;
  EXPECT_THROW(check(g), Error);
  g = product(16, 32, 48);
  g.a_MK = View<const std::uint8_t>(codes + 1, 16, 48);
  EXPECT_THROW(check(g), Error);
  g = product(16, 32, 48);
  g.c_MN = View<float>(c + 1, 16, 32);
  EXPECT_THROW(check(g), Error);
  EXPECT_THROW(check(MatMulFp4{.a_codes = View<const std::uint8_t>(codes, 16, 32),
                               .b_codes = View<const std::uint8_t>(codes, 16, 32),
                               .a_scales = View<const std::uint8_t>(codes, 64),
                               .b_scales = View<const std::uint8_t>(codes, 512),
                               .c_MN = View<float>(c, 16, 16)}),
               Error)
      << "scales that are not padded";
}

}  // namespace
}  // namespace nibble
