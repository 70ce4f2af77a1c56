// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "ops/gemm/truncating_finish.h"
#include "ops/gemm/truncating_row.h"
#include "ops/rows.h"

namespace nibble::cpu {
namespace {

/// A matrix with its codes as integers and its scales taken apart, so that neither is done again for every
/// element of the result.
struct Operand {
  std::int64_t K;  ///< rounded up to whole steps with zeros
  std::vector<std::int8_t> values;
  std::vector<ScaleParts> scales;  ///< one a group

  Operand(const MatMulTruncating& g, const View<const std::uint8_t>& codes,
          const View<const std::uint8_t>& from)
      : K((2 * codes.size(1) + kTruncatingStep - 1) / kTruncatingStep * kTruncatingStep),
        values(static_cast<std::size_t>(codes.size(0) * K), 0),
        scales(static_cast<std::size_t>(codes.size(0) * K / kTruncatingGroup)) {
    const bool nvfp4 = g.format == Format::Nvfp4;
    for (std::int64_t r = 0; r < codes.size(0); ++r) {
      const CodedRow row{&codes(r, 0), &from(r, 0)};
      for (std::int64_t k = 0; k < 2 * codes.size(1); ++k) {
        values[r * K + k] = static_cast<std::int8_t>(doubled(row.codes, k));
        if (k % kTruncatingGroup == 0) scales[(r * K + k) / kTruncatingGroup] = scale_parts(nvfp4, row, k);
      }
    }
  }
};

float sum_of(const Operand& a, std::int64_t m, const Operand& b, std::int64_t n) {
  const std::int8_t *x = a.values.data() + m * a.K, *y = b.values.data() + n * b.K;
  const ScaleParts *p = a.scales.data() + m * a.K / kTruncatingGroup,
                   *q = b.scales.data() + n * b.K / kTruncatingGroup;
  float acc = 0;
  for (std::int64_t group = 0; group < a.K / kTruncatingGroup; group += 4) {
    GroupSum groups[4];
    for (int i = 0; i < 4; ++i) {
      std::int32_t products = 0;
      const std::int64_t k = (group + i) * kTruncatingGroup;
      for (int j = 0; j < kTruncatingGroup; ++j) products += x[k + j] * y[k + j];
      groups[i] = group_sum(products, p[group + i], q[group + i]);
    }
    acc = truncating_step(acc, groups);
  }
  return acc;
}

}  // namespace

void run(Stream& stream, const MatMulTruncating& g) {
  const Operand a(g, g.a_codes, g.a_scales), b(g, g.b_codes, g.b_scales);
  constexpr std::int64_t kRows = 16;
  const std::int64_t M = g.c_MN.size(0), N = g.c_MN.size(1);
  stream.pool().parallel_for((M + kRows - 1) / kRows, [&](std::int64_t tile) {
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t m = tile * kRows; m < std::min(M, (tile + 1) * kRows); ++m)
        finish(g, m, n, sum_of(a, m, b, n));
  });
}

}  // namespace nibble::cpu
