// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "numeric/e5m2.h"
#include "numeric/e8m0.h"
#include "ops/gemm/coded_product.h"
#include "ops/gemm/gemm.h"
#include "ops/rows.h"
#include "quant/rounders.h"
#include "quant/swizzle.h"

/// Products of codes where there are no tensor cores for them: decode, then matmul.
namespace nibble {

/// Calls f(k, number) for row r, where code(k) is the value of an element: times its block's scale, exact in
/// FP32 but for MX scales at the ends of their range.
template <class Scale, class Code, class F>
void for_scaled(const CodedOperand& x, std::int64_t r, Code&& code, F&& f) {
  const std::int64_t K = x.summed(), block = info(x.format).block;
  for (std::int64_t first = 0; first < K; first += block) {
    const float scale = Scale{x.scales.data()[swizzle_offset(r, first / block, K / block)]}.value();
    for (std::int64_t k = first; k < first + block; ++k) f(k, code(k) * scale);
  }
}

/// Calls f(k, number) for row r.
template <class F>
void for_decoded(const CodedOperand& x, std::int64_t r, F&& f) {
  const std::uint8_t* codes = x.codes.data() + r * x.codes.stride(0);
  const auto e2m1 = [codes](std::int64_t k) {
    return unpack_code(codes + k / 2, static_cast<int>(k % 2)).value();
  };
  const auto e4m3 = [codes](std::int64_t k) { return E4M3{codes[k]}.value(); };
  const auto e5m2 = [codes](std::int64_t k) { return E5M2{codes[k]}.value(); };
  const auto plain = [&](auto code) {
    for (std::int64_t k = 0; k < x.summed(); ++k) f(k, code(k));
  };
  switch (x.format) {
    case Format::Nvfp4:
      return for_scaled<E4M3>(x, r, e2m1, f);
    case Format::Mxfp8E4M3:
      return for_scaled<E8M0>(x, r, e4m3, f);
    case Format::Mxfp8E5M2:
      return for_scaled<E8M0>(x, r, e5m2, f);
    case Format::Fp8E5M2:
      return plain(e5m2);
    default:
      return plain(e4m3);
  }
}

/// The operand as numbers T, in scratch that the caller's ArenaScope gives back.
template <class T>
ConstRealView decoded(Stream& stream, const CodedOperand& x) {
  const View<T> out = stream.scratch().take<T>(x.rows(), x.summed());
  cpu::for_tiles(stream, x.rows(), cpu::kTileRows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* row = out.data() + r * x.summed();
      for_decoded(x, r, [row](std::int64_t k, float value) { row[k] = from_float<T>(value); });
    }
  });
  return View<const T>(out);
}

/// The product of the decoded operands.
inline MatMul decoded_product(const CodedProduct& g, const ConstRealView& a, const ConstRealView& b) {
  return {.a_MK = a,
          .b_NK = b,
          .c_MN = g.c_MN,
          .a_scale = g.a.scale,
          .b_scale = g.b.scale,
          .inverse_range = g.inverse_range,
          .beta = g.beta,
          .bias_N = g.bias_N};
}

}  // namespace nibble
