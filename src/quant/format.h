// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble {

/// A number format as a value with a name. Code asks its descriptor; nothing infers a format from bit counts.
enum class Format : std::uint8_t {
  Fp32,
  Bf16,
  Nvfp4,      ///< E2M1 codes, blocks of 16, E4M3 block scale, FP32 tensor scale
  Mxfp4,      ///< E2M1 codes, blocks of 32, E8M0 block scale
  Mxfp8E4M3,  ///< E4M3 codes, blocks of 32, E8M0 block scale
  Mxfp8E5M2,  ///< E5M2 codes, blocks of 32, E8M0 block scale
  Fp8E4M3,    ///< E4M3 codes, one FP32 scale a tensor, computed from its current amax
  Fp8E5M2,    ///< E5M2 codes, one FP32 scale a tensor, computed from its current amax
};

/// Which elements share a block scale, in the layout the GEMM reads: along a row (1 x block) or square.
enum class Tile : std::uint8_t { Row, Square };

enum class Rounding : std::uint8_t {
  NearestEven,
  Stochastic,       ///< 8 random bits a value, as the hardware has: P(up) = floor(256 f) / 256
  StochasticExact,  ///< 24 random bits a value: P(up) = f to FP32 accuracy
};

/// Whose arithmetic. The names are `nvfp4.te` and `nvfp4.te213` in configurations.
enum class Profile : std::uint8_t {
  Te,     ///< Transformer Engine from 2.14 on: block scale = amax * (S_enc * fl(1/6))
  Te213,  ///< Transformer Engine up to 2.13, and the paper's text: (amax / 6) * S_enc
};

/// What a NaN or an infinity in an operand does.
enum class NonFinite : std::uint8_t {
  Detect,  ///< the tensor's amax carries it out, and the caller stops with layer, GEMM and operand
  AsTe,    ///< what Transformer Engine's kernels compute: amax drops NaN, a NaN element becomes +6
};

/// How one operand of one GEMM is quantised: everything a quantiser needs to know but the data.
struct QuantSpec {
  Format format = Format::Bf16;
  Tile tile = Tile::Row;
  Rounding rounding = Rounding::NearestEven;
  std::uint16_t rotation = 0;        ///< 0, or the size of the random Hadamard transform: 16
  std::uint16_t sign_mask = 0xD7E8;  ///< bit i set: element i of 16 changes sign before the transform [TE]
  Profile profile = Profile::Te;
  NonFinite non_finite = NonFinite::Detect;
  friend bool operator==(const QuantSpec&, const QuantSpec&) = default;
};

/// What the planner, tensors and kernels need to know of a format.
struct FormatInfo {
  Format format;
  std::string_view name;  ///< "nvfp4", as configurations and reports say it
  int element_bits;       ///< 4 for E2M1
  int block;              ///< values under one block scale along the reduction axis; 0: none
  int block_scale_bits;   ///< 8, or 0
  bool tensor_scale;      ///< an FP32 scale a tensor
  float element_max;      ///< largest finite element value: 6 for E2M1
};

const FormatInfo& info(Format format);

/// The format called `name`; throws Error{Usage} that lists the names when there is none.
Format format_from_name(std::string_view name);

/// Bits an element costs, block scales included: 4.5 for NVFP4.
double bits_per_element(Format format);

/// True for the formats that linear quantises (everything but FP32 and BF16).
constexpr bool is_quantized(Format format) { return format > Format::Bf16; }

}  // namespace nibble
