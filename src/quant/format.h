// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble {

/// A number format as a value with a name. Code asks its descriptor; nothing infers a format from bit counts.
enum class Format : std::uint8_t {
  Fp32,
  Bf16,
  Nvfp4,             ///< E2M1 codes, blocks of 16, E4M3 block scale, FP32 tensor scale
  Mxfp4,             ///< E2M1 codes, blocks of 32, E8M0 block scale
  Mxfp8E4M3,         ///< E4M3 codes, blocks of 32, E8M0 block scale
  Mxfp8E5M2,         ///< E5M2 codes, blocks of 32, E8M0 block scale
  Fp8E4M3,           ///< E4M3 codes, one FP32 scale a tensor, computed from its current amax
  Fp8E5M2,           ///< E5M2 codes, one FP32 scale a tensor, computed from its current amax
  Mxfp6E2M3,         ///< E2M3 codes (one a byte), blocks of 32, E8M0 block scale
  Mxfp6E3M2,         ///< E3M2 codes (one a byte), blocks of 32, E8M0 block scale
  Fp8BlockE4M3,      ///< E4M3 codes, a power of two (E8M0) each 1 x 128 or 128 x 128 values
  Fp8BlockFp32E4M3,  ///< the same with FP32 block scales
};

/// Which elements share a block scale, in the layout the GEMM reads: along a row (1 x block) or square.
enum class Tile : std::uint8_t { Row, Square };

enum class Rounding : std::uint8_t {
  NearestEven,
  Stochastic,       ///< 8 random bits a value, as the hardware has: P(up) = floor(256 f) / 256
  StochasticExact,  ///< 24 random bits a value: P(up) = f to FP32 accuracy
  NearestAway,      ///< nearest, ties away from zero, as several emulators have it; E2M1 alone
};

constexpr bool is_stochastic(Rounding r) {
  return r == Rounding::Stochastic || r == Rounding::StochasticExact;
}

/// Whose arithmetic of NVFP4 (quant/nvfp4.h says it in full). In configurations: `nvfp4.te`, `nvfp4.exact`.
enum class Profile : std::uint8_t {
  Te,        ///< Transformer Engine from 2.14 on: block scale = amax * (S_enc * fl(1/6))
  Te213,     ///< Transformer Engine up to 2.13, and the paper's text: (amax / 6) * S_enc
  Exact,     ///< Te's block scales; x / (scale amax / 2688) is rounded once: what the others' roundings cost
  TorchAo,   ///< torchao's inference: scales in [2^-6, 448], multiplied by the reciprocal
  ModelOpt,  ///< NVIDIA Model-Optimizer's tensors: scales in [2^-9, 448], a division, zero blocks under 1
  Ct,        ///< compressed-tensors: 2688 / amax times (amax / 6), a division, zero scales become 1/8
};

/// How the shared exponent of an MX block follows from its largest magnitude (quant/mx_scale.h).
enum class MxScaleRule : std::uint8_t {
  RoundUp,  ///< the smallest 2^e >= amax / largest element: no value of the block is clipped. The default.
  Floor,    ///< floor(log2 amax) - max exponent, the rule of the OCP text: what is above is clipped
  Even,     ///< Floor of the amax rounded to the element's mantissa (half up in the bits)
  Ceil,     ///< ceil(log2 amax) - max exponent: nothing is clipped, up to a bit of range is lost
  Round,    ///< round(log2(amax / largest element)): about half of the blocks are clipped
  ThreeQuarters,  ///< MXFP4: Floor, and the values times 3/4 before, 4/3 after: nothing is clipped
};

/// Whether a block of NVFP4 may map its largest magnitude to 4 instead of 6, and by which error it chooses.
enum class FourOverSix : std::uint8_t { Off, Mae, Mse };

/// What the FP32 scale of NVFP4 and of FP8 tensors comes from. Quantisers know the first two; the others are
/// an amax that they are given (layers/amax_state.h).
enum class TensorScaling : std::uint8_t {
  Tensor,    ///< the tensor's own amax
  Row,       ///< NVFP4: that of each row of the result ("per token")
  Delayed,   ///< the largest amax of the steps before [TE]
  Previous,  ///< the amax of the step before
  Unit,      ///< none: the scale is 1
};

/// Where the signs of a random Hadamard transform come from (quant/hadamard.h).
enum class RotationSigns : std::uint8_t {
  Fixed,    ///< the same in every step: size 16 those of QuantSpec::sign_mask, other sizes a constant mask
  Redrawn,  ///< drawn anew for each step, layer and GEMM from the seed of stochastic rounding
  None,     ///< all positive
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
  std::uint16_t rotation = 0;  ///< 0, or the size of the random Hadamard transform: a power of two, 2 to 128
  /// Bit i set: element i of 16 changes sign before the transform [TE]. With other sizes or signs its
  /// difference from [TE]'s flips the signs of each sixteen: only a planted fault does that.
  std::uint16_t sign_mask = 0xD7E8;
  RotationSigns signs = RotationSigns::Fixed;
  Profile profile = Profile::Te;
  NonFinite non_finite = NonFinite::Detect;
  MxScaleRule scale_rule = MxScaleRule::RoundUp;
  FourOverSix four_over_six = FourOverSix::Off;
  TensorScaling tensor_scaling = TensorScaling::Tensor;
  std::uint16_t scale_bound = 448;  ///< NVFP4: the block scale of the largest block, 448 or 256
  bool headroom = false;            ///< NVFP4: amax counts 17/16 fold, so no block's maximum is clipped
  std::uint8_t random_bits = 8;     ///< Rounding::Stochastic: P(up) = floor(2^bits f) / 2^bits, 2 to 16
  std::uint16_t eden_group = 0;     ///< NVFP4: 0, or MS-EDEN over groups of 16 to 128 values (quant/eden.h)
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
  int multiple;           ///< N, K and T of a linear must be multiples of it; 1: any size
  bool square_tiles;      ///< blocks may also be square
  bool other_roundings;   ///< stochastic and ties away besides nearest even
};

const FormatInfo& info(Format format);

/// The format called `name`; throws Error{Usage} that lists the names when there is none.
Format format_from_name(std::string_view name);

/// Whether `spec` has none of the options that only the general code path knows: profiles beyond Te and
/// Te213, four-over-six, row scaling, another bound, headroom, MS-EDEN, other than 8 or 24 random bits, MX
/// rules other than RoundUp, ties away, and the formats Mxfp6 and Fp8Block. A fast path asks this before it
/// looks at format, tile, rounding and rotation.
constexpr bool is_common(const QuantSpec& s) {
  return s.format <= Format::Fp8E5M2 && s.rounding != Rounding::NearestAway &&
         (s.format != Format::Nvfp4 || s.profile <= Profile::Te213) && s.scale_rule == MxScaleRule::RoundUp &&
         s.four_over_six == FourOverSix::Off && s.tensor_scaling == TensorScaling::Tensor &&
         s.scale_bound == 448 && !s.headroom && s.eden_group == 0 &&
         (s.rounding != Rounding::Stochastic || s.random_bits == 8);
}

/// Whether the quantisers rotate in passing: RHT-16 under fixed signs. Another rotation is made first, by
/// Rotate, and its result quantised.
constexpr bool rotates_in_passing(const QuantSpec& s) {
  return s.rotation == 0 || (s.rotation == 16 && s.signs == RotationSigns::Fixed);
}

/// Sizes that a rotation may have: the powers of two from 2 to 128.
constexpr bool is_rotation_size(std::int64_t n) { return n >= 2 && n <= 128 && (n & (n - 1)) == 0; }

/// Whether quantising draws random numbers.
constexpr bool draws(const QuantSpec& s) { return is_stochastic(s.rounding) || s.eden_group != 0; }

/// Bits an element costs, block scales included: 4.5 for NVFP4.
double bits_per_element(Format format);

/// True for the formats that linear quantises (everything but FP32 and BF16).
constexpr bool is_quantized(Format format) { return format > Format::Bf16; }

}  // namespace nibble
