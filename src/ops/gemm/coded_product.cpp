// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/coded_product.h"

#include "ops/expect.h"
#include "ops/gemm/coded_forms.h"
#include "quant/swizzle.h"

namespace nibble {
namespace {

bool aligned(const void* p, std::int64_t row_bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && row_bytes % 16 == 0;
}

void expect_operand(std::string_view op, std::string_view name, const CodedOperand& x) {
  check(x.codes.rank() == 2, "{}: operand {} has {} axes, but needs 2", op, name, x.codes.rank());
  expect_contiguous_rows(op, name, x.codes.layout());
  const std::int64_t block = info(x.format).block;
  const std::int64_t multiple = block == 0 ? 16 : 32;
  check(x.rows() % 16 == 0 && x.summed() % multiple == 0 && x.summed() > 0,
        "{}: operand {} is [{}, {}], but rows must be a multiple of 16 and the summed axis of {}; pad it, or "
        "multiply exact BF16 operands with matmul",
        op, name, x.rows(), x.summed(), multiple);
  check(aligned(x.codes.data(), x.rows() > 1 ? x.codes.stride(0) : 0),
        "{}: address and row stride of operand {} must be multiples of 16 bytes", op, name);
  if (block == 0) return;
  const std::int64_t bytes = swizzle_padded_rows(x.rows()) * swizzle_padded_columns(x.summed() / block);
  check(x.scales.is_contiguous() && x.scales.numel() == bytes,
        "{}: operand {} needs {} bytes of swizzled scales in one piece, but has {}", op, name, bytes,
        x.scales.numel());
  check(aligned(x.scales.data(), 0), "{}: the scales of operand {} must lie at a multiple of 16", op, name);
}

}  // namespace

void check(const CodedProduct& g) {
  expect_operand(g.op, "a", g.a);
  expect_operand(g.op, "b", g.b);
  const auto e5m2 = [](Format f) { return f == Format::Fp8E5M2 || f == Format::Mxfp8E5M2; };
  check(!e5m2(g.a.format) || !e5m2(g.b.format),
        "{}: both operands are E5M2, which no tensor core multiplies; make one of them E4M3", g.op);
  check(g.a.summed() == g.b.summed(), "{}: operands reduce over {} and {} elements, but must agree", g.op,
        g.a.summed(), g.b.summed());
  expect_rows(g.op, "c", g.c_MN.layout(), {g.a.rows(), g.b.rows()});
  const auto row_bytes = g.c_MN.stride(0) * static_cast<std::int64_t>(size_of(g.c_MN.dtype()));
  check(aligned(g.c_MN.data(), row_bytes), "{}: address and row stride of c must be multiples of 16 bytes",
        g.op);
  if (!g.bias_N.empty())
    check(g.bias_N.rank() == 1 && g.bias_N.size(0) == g.b.rows() && g.bias_N.is_contiguous(),
          "{}: the bias must be {} numbers in one piece", g.op, g.b.rows());
  check(g.beta == 0 || g.beta == 1, "{}: beta is {}, but must be 0 or 1", g.op, g.beta);
  check(g.beta == 0 || g.c_MN.dtype() == DType::F32,
        "{}: accumulating (beta = 1) needs an FP32 result, but c is {}", g.op, name_of(g.c_MN.dtype()));
}

void check(const MatMulFp8& g) {
  for (Format f : {g.a_format, g.b_format})
    check(f == Format::Fp8E4M3 || f == Format::Fp8E5M2, "matmul_fp8: {} is not FP8 with a scale a tensor",
          info(f).name);
  check(coded(g));
}
void check(const MatMulFp4& g) { check(coded(g)); }
void check(const MatMulMxfp8& g) {
  for (Format f : {g.a_format, g.b_format})
    check(f == Format::Mxfp8E4M3 || f == Format::Mxfp8E5M2, "matmul_mxfp8: {} is not MXFP8", info(f).name);
  check(coded(g));
}

}  // namespace nibble
