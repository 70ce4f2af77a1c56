// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "backend/device.h"
#include "io/json.h"
#include "ops/health/quant_stats.h"
#include "quant/format.h"
#include "tensor/dtype.h"

namespace nibble {

/// What the user asked for, in the words of the command line.
struct QuantizeChoices {
  std::string format = "nvfp4.te";
  std::string tile;                   ///< "1x16" or "16x16" (NVFP4 alone); empty: the format's own
  std::string layout = "row";         ///< "row", or "column": the transpose, blocks along the rows of x
  bool rht = false;                   ///< random Hadamard transform of 16 along the block axis
  std::string round = "rne";          ///< "rne", "sr" (8 random bits), "sr-exact" (24)
  std::string non_finite = "detect";  ///< "detect" or "as-te"
};

/// Names that QuantizeChoices::format takes: nvfp4.te, nvfp4.te213, mxfp4, mxfp8.e4m3, ...
std::vector<std::string> quantize_format_names();

/// Throws Error{Usage} for a word that is not known and for a combination that has no quantiser.
QuantSpec quantize_spec(const QuantizeChoices& choices);

/// One quantisation of a file. Every tensor of two or more axes in F32 or BF16 is read as a matrix
/// [product of the leading axes, last axis].
struct QuantizeFile {
  std::filesystem::path in;  ///< a .safetensors file, or a Hugging Face folder
  std::filesystem::path out = {};
  QuantizeChoices choices = {};
  std::uint64_t seed = 0;  ///< of stochastic rounding
  /// Shell patterns (* ? [..]) of names; empty: every tensor. What a tensor becomes does not depend on them.
  std::vector<std::string> tensors = {};
};

/// One tensor, as it was found and as it came out.
struct QuantizedTensor {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::string skipped;              ///< why it was left alone; empty: it was quantised
  std::int64_t rows = 0, cols = 0;  ///< of the result: after the transposition and the padding of a rotation
  float amax = 0;                   ///< of what was quantised: after the rotation
  std::int64_t non_finite = 0;      ///< NaN and infinities in the source; only as-te lets them pass
  QuantStats stats;

  double mse() const { return stats.count == 0 ? 0 : stats.sum_e2 / static_cast<double>(stats.count); }
};

struct QuantizeReport {
  QuantizeFile request;
  std::vector<QuantizedTensor> tensors;  ///< in the order of their names
};

/// Quantises tensor after tensor, so that memory holds one of them at a time.
///
/// With `out`, writes for each quantised tensor NAME
///   NAME.codes      4-bit formats: U8 [rows, ceil(cols / 2)], low nibble = even column
///                   8-bit formats: F8_E4M3 or F8_E5M2 [rows, cols]
///   NAME.scales     NVFP4: F8_E4M3 [rows, ceil(cols / 16)]; MX: F8_E8M0 [rows, ceil(cols / 32)]; linear
///                   layout. FP8 has none
///   NAME.amax       F32 [1], of what was quantised: the rotated, transposed matrix where it is one
///   NAME.scale_inv  F32 [1], FP8 alone: what a code is multiplied by
/// and as metadata everything needed to decode and to make it again. The file appears whole or not at all.
///
/// Random bits (docs/numerics.md): Philox with key `seed`, step 0, layer = the tensor's place among all names
/// of the source in byte order, role 0 for row and 1 for column, element = row * cols + col of the source.
///
/// Throws Error{Usage}: a pattern that matches nothing, an output that is the input, F16 or F64 input.
/// Throws Error{NonFinite}: a NaN or an infinity under `detect`, naming tensor and element.
QuantizeReport quantize_file(Stream& stream, const QuantizeFile& request);

/// The report for people: one line a tensor, then what was skipped, then what deserves a look.
std::string quantize_table(const QuantizeReport& report);

/// The same for programs.
Json quantize_json(const QuantizeReport& report);

}  // namespace nibble
