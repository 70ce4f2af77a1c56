// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/conformance.h"
#include "ops/gemm/matmul_truncating.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;

struct Shape {
  std::int64_t M, N, bytes;  ///< bytes of codes a row: half of K
};

View<const std::uint8_t> matrix(Case& c, int high, std::int64_t rows, std::int64_t cols) {
  return {c.bytes(high, rows * cols).data(), Layout::contiguous(rows, cols)};
}

TEST(Conformance, matmul_truncating) {
  for (const Shape& s : {Shape{1, 1, 8}, Shape{17, 9, 32}, Shape{5, 33, 67}, Shape{20, 16, 160}})
    for (Format format : {Format::Nvfp4, Format::Mxfp4})
      for (bool rows : {false, true})
        conformance::compare<MatMulTruncating>(
            matmul_truncating,
            fmt::format("{}x{} bytes={} {} rows={}", s.M, s.N, s.bytes, info(format).name, rows),
            [&](Case& c) {
              const std::int64_t blocks = (s.bytes + info(format).block / 2 - 1) / (info(format).block / 2);
              // E8M0 up to 2^8 of each operand; E4M3 without NaN.
              const int high = format == Format::Nvfp4 ? 127 : 136;
              MatMulTruncating g{.format = format,
                                 .a_codes = matrix(c, 256, s.M, s.bytes),
                                 .b_codes = matrix(c, 256, s.N, s.bytes),
                                 .a_scales = matrix(c, high, s.M, blocks),
                                 .b_scales = matrix(c, high, s.N, blocks),
                                 .c_MN = c.output("c", Bound::same_bytes(), s.M, s.N),
                                 .a_scale = c.input_f32(1, 3, std::int64_t{1}).data(),
                                 .inverse_range = 0.25f,
                                 .bias_N = c.input_f32(1, 0, s.N)};
              if (c.storage() == DType::F32) g.beta = 1;
              if (rows) g.a_row_scale_M = c.input_f32(1, 2, s.M);
              return g;
            });
}

}  // namespace
}  // namespace nibble
