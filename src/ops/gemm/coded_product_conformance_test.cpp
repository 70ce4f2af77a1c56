// SPDX-License-Identifier: Apache-2.0
#include "numeric/e4m3.h"
#include "numeric/e5m2.h"
#include "ops/conformance.h"
#include "ops/gemm/matmul_fp4.h"
#include "ops/gemm/matmul_fp8.h"
#include "ops/gemm/matmul_mxfp8.h"
#include "ops/gemm/native.h"
#include "quant/swizzle.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;
using conformance::gpu;

struct Shape {
  std::int64_t M, N, K;
};
constexpr Shape kShapes[] = {{16, 16, 32}, {48, 32, 64}, {144, 160, 256}};

/// As for matmul: FP32 sums in another order.
Bound sum_bound(std::int64_t K) {
  return Bound::of(4e-6 * std::sqrt(std::max(1.0, static_cast<double>(K) / 64)));
}

/// The op without its cuda version where the card lacks the tensor cores: that it refuses there is a test of
/// its own.
template <class Args>
Op<Args> where_native(Op<Args> op, bool NativeGemm::*has) {
  if (gpu() != nullptr && !(native_gemm(*gpu()).*has)) op.cuda = nullptr;
  return op;
}

/// Bytes [rows, cols], each f of a random byte.
template <class F>
View<const std::uint8_t> bytes(Case& c, std::int64_t rows, std::int64_t cols, F&& f) {
  const View<const std::uint8_t> made = c.bytes(256, rows * cols);
  auto* p = const_cast<std::uint8_t*>(made.data());  // the case owns them and nobody has read them yet
  for (std::int64_t i = 0; i < rows * cols; ++i) p[i] = f(p[i]);
  return View<const std::uint8_t>(made.data(), rows, cols);
}

/// Random scales in the tensor cores' order, zeros in the padding.
template <class F>
View<const std::uint8_t> swizzled(Case& c, std::int64_t rows, std::int64_t cols, F&& f) {
  const std::int64_t count = swizzle_padded_rows(rows) * swizzle_padded_columns(cols);
  const View<const std::uint8_t> random = bytes(c, rows, cols, f);
  const View<const std::uint8_t> out = bytes(c, 1, count, [](std::uint8_t) { return std::uint8_t{0}; });
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < cols; ++j)
      const_cast<std::uint8_t*>(out.data())[swizzle_offset(r, j, cols)] = random(r, j);
  return View<const std::uint8_t>(out.data(), count);
}

const float* number(Case& c, float value) { return c.input_f32(0, value, 1).data(); }

/// The first N columns of a wider result: rows with a gap that keeps their alignment.
RealView result(Case& c, bool accumulate, Bound bound, std::int64_t M, std::int64_t N) {
  const RealView wide =
      accumulate ? RealView(c.output_f32("c", bound, M, N + 16)) : c.output("c", bound, M, N + 16);
  return wide.cols(0, N);
}

std::uint8_t integer_code(Format format, std::uint8_t random) {
  const auto value = static_cast<float>(random % 5 - 2);
  return format == Format::Fp8E4M3 ? E4M3::nearest(value).bits : E5M2::nearest(value).bits;
}
/// Either sign, magnitudes from 2^-3 to 2.
std::uint8_t usual_code(Format format, std::uint8_t random) {
  const bool e4m3 = format == Format::Fp8E4M3 || format == Format::Mxfp8E4M3;
  const int magnitude = e4m3 ? 0x20 + (random & 0x1F) : 0x30 + (random & 0x0F);
  return static_cast<std::uint8_t>((random & 0x80) | magnitude);
}

struct Fp8Form {
  Format a, b;
  bool accumulate, fast, bias = false;
};
constexpr Fp8Form kFp8Forms[] = {
    {Format::Fp8E4M3, Format::Fp8E4M3, false, false},      {Format::Fp8E4M3, Format::Fp8E4M3, false, true},
    {Format::Fp8E4M3, Format::Fp8E4M3, false, true, true}, {Format::Fp8E5M2, Format::Fp8E4M3, true, false},
    {Format::Fp8E5M2, Format::Fp8E4M3, true, false, true}, {Format::Fp8E4M3, Format::Fp8E5M2, true, false}};

View<const float> bias_of(Case& c, bool wanted, std::int64_t N) {
  return wanted ? View<const float>(c.input_f32(1, 0, N)) : View<const float>{};
}

template <class Code>
MatMulFp8 fp8_product(Case& c, const Shape& s, const Fp8Form& form, Bound bound, Code&& code) {
  return {.a_MK = bytes(c, s.M, s.K, [&](std::uint8_t r) { return code(form.a, r); }),
          .b_NK = bytes(c, s.N, s.K, [&](std::uint8_t r) { return code(form.b, r); }),
          .a_format = form.a,
          .b_format = form.b,
          .a_scale = number(c, 4),
          .b_scale = number(c, 0.5f),
          .c_MN = result(c, form.accumulate, bound, s.M, s.N),
          .beta = form.accumulate ? 1.0f : 0.0f,
          .fast_accumulation = form.fast,
          .bias_N = bias_of(c, form.bias, s.N)};
}

/// Sums of integers that every tensor core holds exactly: a wrong axis, scale or format cannot hide.
TEST(Conformance, matmul_fp8) {
  const auto op = where_native(matmul_fp8, &NativeGemm::fp8);
  for (const Shape& s : kShapes)
    for (const Fp8Form& form : kFp8Forms)
      compare<MatMulFp8>(op, fmt::format("integers M={} N={} K={} form={}", s.M, s.N, s.K, &form - kFp8Forms),
                         [&](Case& c) { return fp8_product(c, s, form, Bound::same_bytes(), integer_code); },
                         {.strided = false});
}

TEST(MatMulFp8Conformance, TheCpuIsWithinTheBoundOfFp32AndTheTensorCoresWithinOnePercent) {
  const auto native = where_native(matmul_fp8, &NativeGemm::fp8);
  auto host = matmul_fp8;
  host.cuda = nullptr;
  for (const Shape& s : kShapes)
    for (const Fp8Form& form : kFp8Forms) {
      const std::string shape = fmt::format("M={} N={} K={} form={}", s.M, s.N, s.K, &form - kFp8Forms);
      const conformance::Options options{.strided = false, .same_levels = false};
      compare<MatMulFp8>(
          host, shape, [&](Case& c) { return fp8_product(c, s, form, sum_bound(s.K), usual_code); }, options);
      compare<MatMulFp8>(
          native, shape, [&](Case& c) { return fp8_product(c, s, form, Bound::of(1e-2), usual_code); },
          options);
    }
}

MatMulFp4 fp4_product(Case& c, const Shape& s, bool accumulate, bool bias = false) {
  const auto any = [](std::uint8_t r) { return r; };
  const auto scale = [](std::uint8_t r) { return static_cast<std::uint8_t>(0x28 + (r & 0x1F)); };
  return {.a_codes = bytes(c, s.M, s.K / 2, any),
          .b_codes = bytes(c, s.N, s.K / 2, any),
          .a_scales = swizzled(c, s.M, s.K / 16, scale),
          .b_scales = swizzled(c, s.N, s.K / 16, scale),
          .a_amax = number(c, 3.5f),
          .b_amax = number(c, 0.3f),
          .c_MN = result(c, accumulate, sum_bound(s.K), s.M, s.N),
          .beta = accumulate ? 1.0f : 0.0f,
          .bias_N = bias_of(c, bias, s.N)};
}

TEST(Conformance, matmul_fp4) {
  const auto op = where_native(matmul_fp4, &NativeGemm::fp4);
  for (const Shape& s : kShapes)
    for (bool accumulate : {false, true})
      for (bool bias : {false, true})
        compare<MatMulFp4>(
            op, fmt::format("M={} N={} K={} accumulate={} bias={}", s.M, s.N, s.K, accumulate, bias),
            [&](Case& c) { return fp4_product(c, s, accumulate, bias); },
            {.strided = false, .same_levels = false});
}

MatMulMxfp8 mxfp8_product(Case& c, const Shape& s, Format a, Format b, bool accumulate, bool bias = false) {
  const auto scale = [](std::uint8_t r) { return static_cast<std::uint8_t>(125 + (r & 3)); };
  return {.a_codes = bytes(c, s.M, s.K, [&](std::uint8_t r) { return usual_code(a, r); }),
          .b_codes = bytes(c, s.N, s.K, [&](std::uint8_t r) { return usual_code(b, r); }),
          .a_scales = swizzled(c, s.M, s.K / 32, scale),
          .b_scales = swizzled(c, s.N, s.K / 32, scale),
          .a_format = a,
          .b_format = b,
          .c_MN = result(c, accumulate, sum_bound(s.K), s.M, s.N),
          .beta = accumulate ? 1.0f : 0.0f,
          .bias_N = bias_of(c, bias, s.N)};
}

TEST(Conformance, matmul_mxfp8) {
  const auto op = where_native(matmul_mxfp8, &NativeGemm::mxfp8);
  for (const Shape& s : kShapes)
    for (Format a : {Format::Mxfp8E4M3, Format::Mxfp8E5M2})
      for (bool accumulate : {false, true})
        compare<MatMulMxfp8>(
            op, fmt::format("M={} N={} K={} a={} accumulate={}", s.M, s.N, s.K, info(a).name, accumulate),
            [&](Case& c) { return mxfp8_product(c, s, a, Format::Mxfp8E4M3, accumulate, !accumulate); },
            {.strided = false, .same_levels = false});
}

/// On a card without those tensor cores the ops say so; nothing is emulated behind the caller's back. Where
/// there is no such card there is nothing to refuse.
TEST(MatMulFp4Conformance, ACardWithoutFp4Refuses) {
  if (gpu() == nullptr) return;
  const NativeGemm native = native_gemm(*gpu());
  Stream stream(BackendKind::Cuda, *gpu(), 1);
  Case c(*gpu(), 1, DType::F32, 0);
  const Shape s = kShapes[0];
  if (!native.fp4) {
    EXPECT_THROW(matmul_fp4(stream, fp4_product(c, s, false)), Error);
  }
  if (!native.mxfp8) {
    EXPECT_THROW(matmul_mxfp8(stream, mxfp8_product(c, s, Format::Mxfp8E4M3, Format::Mxfp8E4M3, false)),
                 Error);
  }
}

}  // namespace
}  // namespace nibble
