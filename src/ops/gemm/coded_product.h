// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "ops/op.h"
#include "quant/format.h"
#include "quant/nvfp4.h"

/// What the products of stored codes share: matmul_fp8, matmul_fp4 and matmul_mxfp8 say their meaning. An
/// implementation detail of those three ops.
namespace nibble {

/// Codes along the summed axis: NVFP4 two a byte (low nibble = even index), 8-bit formats one a byte.
struct CodedOperand {
  Format format = Format::Fp8E4M3;
  View<const std::uint8_t> codes;   ///< rows contiguous
  View<const std::uint8_t> scales;  ///< blocks: the 128 x 4 swizzle of quant/swizzle.h; empty for FP8 tensors
  const float* scale = nullptr;     ///< FP8: 1 / encode scale; NVFP4: amax; MX: null. Null counts as 1.

  std::int64_t rows() const { return codes.size(0); }
  std::int64_t summed() const { return codes.size(1) * (format == Format::Nvfp4 ? 2 : 1); }
};

struct CodedProduct {
  std::string_view op;  ///< for messages
  CodedOperand a, b;
  RealView c_MN;
  float inverse_range = 1;  ///< factor of alpha beside the operands' scales
  float beta = 0;
  bool fast_accumulation = false;
  View<const float> bias_N{};
};

/// Whether the library's sums go to FP32 scratch and we finish them: it rounds a bias to BF16 before adding
/// it to a BF16 result, and has none for block scaled codes everywhere.
inline bool finished_by_us(const CodedProduct& g) { return !g.bias_N.empty(); }

/// Throws Error{Runtime} for what the tensor cores' layouts do not allow.
void check(const CodedProduct& g);

namespace ref {
void run(Stream& stream, const CodedProduct& g);
}
namespace cpu {
void run(Stream& stream, const CodedProduct& g);
}
namespace cuda {
void run(Stream& stream, const CodedProduct& g);
}

}  // namespace nibble
