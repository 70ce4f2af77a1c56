// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/device.h"
#include "numeric/random_key.h"
#include "ops/quantize/quantize.h"
#include "quant/format.h"

/// What the quantisers' files for the GPU tell each other: plain data that kernels take as a parameter.
namespace nibble::cuda {

/// What is written once a tensor's amax is known: amax and scale, and the fault where it is not finite.
struct Publish {
  float* amax = nullptr;  ///< null: nobody asks for this one
  float* scale = nullptr;
  std::int64_t* fault = nullptr;
  std::int64_t fault_id = 0;
  QuantSpec spec;
  bool bf16_values = false;  ///< what is cast has BF16 values: FP8's largest encode scale depends on it
};

/// The ten keys of Philox's rounds, worked out once: a kernel takes them as operands from its parameters.
struct PhiloxKeys {
  std::uint32_t first[10] = {}, second[10] = {};

  static constexpr PhiloxKeys of(std::uint64_t seed) {
    PhiloxKeys keys;
    for (std::uint32_t round = 0; round < 10; ++round) {
      keys.first[round] = static_cast<std::uint32_t>(seed) + round * 0x9E3779B9u;
      keys.second[round] = static_cast<std::uint32_t>(seed >> 32) + round * 0xBB67AE85u;
    }
    return keys;
  }
};

/// One quantised copy of a matrix. Strides are in elements; rows are contiguous.
struct QuantizeJob {
  const void* x = nullptr;
  bool x_is_f32 = false;
  bool transpose = false;
  std::int64_t x_rows = 0, x_cols = 0, x_stride = 0;  ///< of the source
  std::int64_t rows = 0, cols = 0;                    ///< of the result, the padding of a rotation included
  std::int64_t row_elements = 0;
  QuantSpec spec;
  RandomKey random;
  PhiloxKeys philox;            ///< of random.seed
  const float* amax = nullptr;  ///< where kernels read it
  bool given = false;           ///< it was the caller's: a kernel still has to publish it
  Publish publish;
  bf16* values = nullptr;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  float* row_amax = nullptr;
  std::int64_t values_stride = 0, codes_stride = 0, scales_stride = 0, row_amax_stride = 0;
  /// Rows of BF16 source, of values and of codes begin at multiples of 16 bytes.
  bool wide_x = false, wide_values = false, wide_codes = false;

  bool writes() const { return (values != nullptr || codes != nullptr) && rows > 0 && cols > 0; }
};

QuantizeJob job_of(const Quantize& q);

/// Finds the amax of what `job` quantises and publishes it.
void find_amax(Stream& stream, const QuantizeJob& job);
/// The same for two jobs that quantise the same numbers, not rotated, under the same rule for NaN.
void find_common_amax(Stream& stream, const QuantizeJob& job, const QuantizeJob& other);
/// The same for the plain and the rotated transposed copy of one BF16 matrix, read once. tiles_fit(rotated).
void find_both_amaxes(Stream& stream, const QuantizeJob& plain, const QuantizeJob& rotated);
/// Publishes the caller's amax where no quantising kernel follows.
void publish_given(Stream& stream, const QuantizeJob& job);

/// Every format and option, a thread a block: what the fast paths are held to.
void quantize_general(Stream& stream, const QuantizeJob& job);

/// NVFP4 of aligned BF16 rows as they lie, 1x16 or 16x16, not rotated.
bool rows_fit(const QuantizeJob& job);
void quantize_rows(Stream& stream, const QuantizeJob& job);
bool squares_fit(const QuantizeJob& job);
void quantize_squares(Stream& stream, const QuantizeJob& job);

/// The rows under four over six, rounded to nearest.
bool four_over_six_fits(const QuantizeJob& job);
void quantize_four_over_six(Stream& stream, const QuantizeJob& job);

/// NVFP4 in 1x16 blocks of the transpose of an aligned BF16 matrix, rotated or not; `row_copy`, where it is
/// not null, is the copy of the rows of the same matrix and is made in the same pass.
bool tiles_fit(const QuantizeJob& transposed);
/// Whether both copies can be made in one pass.
bool pair_fits(const QuantizeJob& row_copy, const QuantizeJob& transposed);
void quantize_tiles(Stream& stream, const QuantizeJob* row_copy, const QuantizeJob& transposed);

/// FP8 with one scale a tensor, not rotated, of an aligned BF16 matrix: values or codes, of the rows or of
/// the transpose, or of both in one pass.
bool fp8_fits(const QuantizeJob& job);
void quantize_fp8(Stream& stream, const QuantizeJob& job);
bool fp8_pair_fits(const QuantizeJob& row_copy, const QuantizeJob& transposed);
void quantize_fp8_pair(Stream& stream, const QuantizeJob& row_copy, const QuantizeJob& transposed);
/// The codes of MXFP8's rows, of an aligned BF16 matrix whose rows end with a block.
bool mxfp8_fits(const QuantizeJob& job);
void quantize_mxfp8(Stream& stream, const QuantizeJob& job);

}  // namespace nibble::cuda
