// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/gemm/truncating_step.h"
#include "quant/format.h"
#include "quant/rounders.h"

/// One sum of matmul_truncating, as every backend computes it.
namespace nibble {

/// One row of codes and scales along K.
struct CodedRow {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
};

/// Twice the value of a code: an integer.
NIBBLE_HD std::int32_t doubled(const std::uint8_t* codes, std::int64_t k) {
  return static_cast<std::int32_t>(2.0f * unpack_code(codes + k / 2, static_cast<int>(k % 2)).value());
}

NIBBLE_HD ScaleParts scale_parts(bool nvfp4, const CodedRow& row, std::int64_t k) {
  return nvfp4 ? parts_of(E4M3{row.scales[k / 16]}) : parts_of(E8M0{row.scales[k / 32]});
}

/// `bytes` of codes: 2 * bytes values.
NIBBLE_HD float truncating_sum(bool nvfp4, const CodedRow& a, const CodedRow& b, std::int64_t bytes) {
  float acc = 0;
  const std::int64_t K = 2 * bytes;
  for (std::int64_t first = 0; first < K; first += kTruncatingStep) {
    GroupSum groups[4];
    for (int g = 0; g < 4; ++g) {
      const std::int64_t k = first + g * kTruncatingGroup;
      if (k >= K) continue;
      std::int32_t products = 0;
      for (std::int64_t i = k; i < k + kTruncatingGroup && i < K; ++i)
        products += doubled(a.codes, i) * doubled(b.codes, i);
      groups[g] = group_sum(products, scale_parts(nvfp4, a, k), scale_parts(nvfp4, b, k));
    }
    acc = truncating_step(acc, groups);
  }
  return acc;
}

}  // namespace nibble
