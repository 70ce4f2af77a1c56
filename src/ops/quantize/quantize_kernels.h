// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"
#include "numeric/bf16.h"
#include "numeric/random_key.h"
#include "quant/format.h"
#include "quant/fp8_tensor.h"
#include "quant/hadamard.h"
#include "quant/nvfp4.h"

/// What quantize_cpu.cpp and the kernels compiled per instruction set tell each other: raw pointers, because
/// a kernel must not contain inline functions that another translation unit might share (base/simd.h).
namespace nibble {

/// A source matrix and where it goes. Strides are in elements; rows are contiguous.
struct QuantizeJob {
  const void* x = nullptr;
  bool x_is_f32 = false;
  bool transpose = false;
  std::int64_t x_rows = 0, x_cols = 0, x_stride = 0;  ///< of the source
  std::int64_t rows = 0, cols = 0;                    ///< of the result, the padding of a rotation included
  QuantSpec spec;
  RandomKey random;
  std::int64_t row_elements = 0;
  TensorScale nvfp4;      ///< from the tensor's amax
  float amax_factor = 1;  ///< amax_factor(spec)
  Fp8Scale fp8;           ///< likewise
  bf16* values = nullptr;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  std::int64_t values_stride = 0, codes_stride = 0, scales_stride = 0;
};

/// A part of the result: rows [row, row + rows) and columns [col, col + cols). `row` is a multiple of 16 and
/// `col` of 32, so that no block is split.
struct QuantizePart {
  std::int64_t row = 0, rows = 0, col = 0, cols = 0;
};

/// A matrix to rotate into `out`, whose rows or columns are contiguous.
struct RotateJob {
  QuantizeJob source;  ///< x and how it lies; its spec has no rotation
  int size = 16;
  SignBits signs;
  bf16* out = nullptr;
  std::int64_t row_stride = 0, col_stride = 1;
};

/// Rows of codes to decode.
struct DequantizeJob {
  Format format = Format::Nvfp4;
  std::int64_t rows = 0, cols = 0;
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::int64_t codes_stride = 0, scales_stride = 0;
  float amax = 0, scale = 1;
  float* out = nullptr;
  std::int64_t out_stride = 0;
};

#define NIBBLE_QUANTIZE_KERNELS(level)                                                                     \
  namespace level {                                                                                        \
  /* Bits of the largest magnitude of part of the source, before any rotation. Any NaN gives bits above */ \
  /* infinity's; with drop_nan it counts as 0. */                                                          \
  std::uint32_t amax_bits(const void* x, bool x_is_f32, std::int64_t rows, std::int64_t cols,              \
                          std::int64_t stride, bool drop_nan);                                             \
  /* The same of the rotated result. */                                                                    \
  std::uint32_t rotated_amax_bits(const QuantizeJob& job, const QuantizePart& part);                       \
  /* Every format and option: tiles of 16 result rows, one row a lane. */                                  \
  void quantize_part(const QuantizeJob& job, const QuantizePart& part);                                    \
  /* NVFP4 of BF16 rows as they lie, no rotation, random bytes (if any) aligned to blocks. */              \
  void quantize_nvfp4_rows(const QuantizeJob& job, const QuantizePart& part);                              \
  /* Part of the rotated matrix, columns from a multiple of 128. */                                        \
  void rotate_part(const RotateJob& job, const QuantizePart& part);                                        \
  void dequantize_rows(const DequantizeJob& job);                                                          \
  }
namespace cpu {
NIBBLE_FOR_EACH_SIMD(NIBBLE_QUANTIZE_KERNELS)
}
#undef NIBBLE_QUANTIZE_KERNELS

}  // namespace nibble
