// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/lt_product.h"

#include <algorithm>

namespace nibble {
namespace {

LtType lt_type(DType dtype) { return dtype == DType::F32 ? LtType::F32 : LtType::BF16; }

LtType lt_type(Format format) {
  if (format == Format::Nvfp4) return LtType::E2M1;
  return format == Format::Fp8E5M2 || format == Format::Mxfp8E5M2 ? LtType::E5M2 : LtType::E4M3;
}

/// The largest of 2, 4, 8, 16 that divides the address of every column; 1 where none does.
int alignment_of(const void* p, const LtMatrix& x) {
  const auto column_bytes = static_cast<std::uintptr_t>(x.cols > 1 ? x.ld * bits_of(x.type) / 8 : 0);
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(p) | column_bytes | 16u;
  return static_cast<int>(bits & (~bits + 1));
}

struct Operand {
  LtMatrix matrix;
  bool summed_first = false;  ///< the columns of the matrix run along the summed axis
};

/// Our x[R, K] as columns: [K, R] where rows are contiguous, else [R, K].
std::optional<Operand> operand(const ConstRealView& x) {
  const std::int64_t R = x.size(0), K = x.size(1);
  Operand o;
  o.summed_first = x.stride(1) == 1 || K <= 1;
  o.matrix = o.summed_first ? LtMatrix{lt_type(x.dtype()), K, R, R <= 1 ? K : x.stride(0)}
                            : LtMatrix{lt_type(x.dtype()), R, K, x.stride(1)};
  if (o.matrix.ld < o.matrix.rows) return std::nullopt;
  o.matrix.alignment = alignment_of(x.data(), o.matrix);
  return o;
}

LtMatrix operand(const CodedOperand& x) {
  const std::int64_t per_byte = x.format == Format::Nvfp4 ? 2 : 1;
  LtMatrix m{lt_type(x.format), x.summed(), x.rows(),
             x.rows() <= 1 ? x.summed() : x.codes.stride(0) * per_byte};
  m.alignment = alignment_of(x.codes.data(), m);
  return m;
}

LtMatrix result(const RealView& c) {
  LtMatrix m{lt_type(c.dtype()), c.size(1), c.size(0), c.size(0) <= 1 ? c.size(1) : c.stride(0)};
  m.alignment = alignment_of(c.data(), m);
  return m;
}

/// FP32 scratch for the sums of a result.
LtMatrix sums(const LtMatrix& d) {
  LtMatrix m{LtType::F32, d.rows, d.cols, d.rows};
  m.alignment = alignment_of(nullptr, m);
  return m;
}

}  // namespace

std::optional<LtProduct> lt_product(const MatMul& g) {
  const std::optional<Operand> a = operand(g.b_NK), b = operand(g.a_MK);
  if (!a || !b || (g.c_MN.size(0) > 1 && g.c_MN.stride(0) < g.c_MN.size(1))) return std::nullopt;
  LtProduct p{.a = a->matrix, .b = b->matrix, .d = result(g.c_MN)};
  p.transpose_a = a->summed_first;
  p.transpose_b = !b->summed_first;
  if (finished_by_us(g)) {
    p.d = sums(p.d);
    return p;
  }
  p.accumulate = g.beta != 0;
  p.bias = !g.bias_N.empty();
  p.alpha_on_device = g.a_scale != nullptr || g.b_scale != nullptr;
  return p;
}

LtProduct lt_product(const CodedProduct& g) {
  LtProduct p{.a = operand(g.b), .b = operand(g.a), .d = result(g.c_MN), .transpose_a = true};
  const std::int64_t block = info(g.a.format).block;
  p.scale = block == 0 ? LtScale::Tensor : block == 16 ? LtScale::Vec16E4M3 : LtScale::Vec32E8M0;
  if (finished_by_us(g)) p.d = sums(p.d);
  p.accumulate = g.beta != 0 && !finished_by_us(g);
  p.alpha_on_device = g.a.format == Format::Nvfp4 && (g.a.scale != nullptr || g.b.scale != nullptr);
  p.fast_accumulation = g.fast_accumulation;
  return p;
}

}  // namespace nibble
