// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_blocks.h"

#include <algorithm>
#include <cstring>

#include "quant/amax.h"
#include "quant/eden.h"
#include "quant/four_over_six.h"
#include "quant/fp8_block.h"
#include "quant/hadamard.h"
#include "quant/mxfp4.h"
#include "quant/mxfp8.h"
#include "quant/operand.h"

namespace nibble {
namespace {

/// The result matrix before it is quantised, one block at a time, and the places its quantised form goes to.
struct Matrix {
  const Quantize& q;
  QuantizedShape shape;
  RandomKey key;

  explicit Matrix(const Quantize& args)
      : q(args),
        shape(quantized_shape(args.spec, args.x_RC.size(0), args.x_RC.size(1), args.transpose)),
        key(args.random.resolved()) {}

  std::int64_t blocks(int size) const { return (shape.cols + size - 1) / size; }
  const QuantSpec& spec() const { return q.spec; }

  /// Block b of row i, padded with zeros, rotated where the spec says so.
  template <int N>
  void load(std::int64_t i, std::int64_t b, float (&x)[N]) const {
    const std::int64_t left = q.x_RC.size(q.transpose ? 0 : 1) - b * N;
    const int filled = left < N ? static_cast<int>(std::max<std::int64_t>(left, 0)) : N;
    with_type(q.x_RC, [&](auto x_RC) {
      for (int k = 0; k < filled; ++k) {
        x[k] = to_float(q.transpose ? x_RC(b * N + k, i) : x_RC(i, b * N + k));
      }
    });
    std::fill(x + filled, x + N, 0.0f);
    if (q.spec.rotation == 0) return;
    for (int k = 0; k < N; k += 16) {
      float part[16];
      std::copy_n(x + k, 16, part);
      rotate_block(part, q.spec.sign_mask);
      std::copy_n(part, 16, x + k);
    }
  }

  /// Which element of the global batch lies at (i, j) of the result, from the tensor's first one.
  std::uint64_t element(std::int64_t i, std::int64_t j) const {
    const std::int64_t row = q.row_elements != 0 ? q.row_elements : q.x_RC.size(1);
    return static_cast<std::uint64_t>(q.transpose ? j * row + i : i * row + j);
  }

  /// Calls f with the rounder of block b of row i.
  template <int N, class F>
  void with_rounder(std::int64_t i, std::int64_t b, F f) const {
    if (q.spec.rounding == Rounding::NearestEven) return f(NearestEven{});
    if (q.spec.rounding == Rounding::NearestAway) return f(NearestAway{});
    if (q.spec.rounding == Rounding::Stochastic && q.spec.random_bits != 8) {
      StochasticBits<N> round{{}, q.spec.random_bits};
      for (int k = 0; k < N; ++k) round.random[k] = random_bits24(key, element(i, b * N + k));
      return f(round);
    }
    if (q.spec.rounding == Rounding::Stochastic) {
      Stochastic<N> round;
      for (int k = 0; k < N; ++k) round.random[k] = random_byte(key, element(i, b * N + k));
      return f(round);
    }
    StochasticExact<N> round;
    for (int k = 0; k < N; ++k) round.random[k] = random_bits24(key, element(i, b * N + k));
    f(round);
  }

  /// Writes a block of packed four-bit codes and its scale.
  template <int N, class Scale>
  void put(std::int64_t i, std::int64_t b, const std::uint8_t (&codes)[N / 2], Scale scale) const {
    for (int k = 0; k < N && b * N + k < shape.cols; ++k) {
      if (!q.values.empty()) q.values(i, b * N + k) = exact_operand(unpack_code(codes, k), scale);
      if (!q.codes.empty() && k % 2 == 0) q.codes(i, (b * N + k) / 2) = codes[k / 2];
    }
    if (!q.scales.empty()) q.scales(i, b) = scale.bits;
  }

  /// One of the codes that have a byte each, with its operand.
  template <class Element>
  void put_element(std::int64_t i, std::int64_t j, Element code, bf16 operand) const {
    if (!q.values.empty()) q.values(i, j) = operand;
    if (!q.codes.empty()) q.codes(i, j) = code.bits;
  }
};

template <int N>
float largest_of(const float (&x)[N], float amax = 0) {
  for (float v : x) amax = amax_dropping_nan(amax, v);
  return amax;
}

void quantize_nvfp4_row(const Matrix& m, std::int64_t i, const TensorScale& g) {
  const QuantSpec& spec = m.spec();
  for (std::int64_t b = 0; b < m.blocks(16); ++b) {
    float x[16];
    m.load(i, b, x);
    const float amax = counted_amax(spec, largest_of(x));
    m.with_rounder<16>(i, b, [&](auto round) {
      Nvfp4Block block;
      if (spec.four_over_six != FourOverSix::Off) {
        block = encode_four_over_six(x, amax, g, range_of(spec.scale_bound), spec.four_over_six, round);
      } else {
        block.scale = block_scale(amax, g, spec.profile);
        encode_codes(x, block.scale, g, spec.profile, round, block.codes);
      }
      m.put<16>(i, b, block.codes, block.scale);
    });
  }
}

/// Group by group: the scales of its blocks wait for the group's sums.
void quantize_eden_row(const Matrix& m, std::int64_t i, const TensorScale& g) {
  const std::int64_t blocks = m.blocks(16), in_group = m.spec().eden_group / 16;
  for (std::int64_t first = 0; first < blocks; first += in_group) {
    const std::int64_t end = std::min(first + in_group, blocks);
    Nvfp4Block group[kLargestRotation / 16];
    EdenSums sums;
    for (std::int64_t b = first; b < end; ++b) {
      float x[16];
      m.load(i, b, x);
      group[b - first] = encode_eden_block(x, counted_amax(m.spec(), largest_of(x)), g, sums);
    }
    for (std::int64_t b = first; b < end; ++b) {
      const Nvfp4Block& block = group[b - first];
      const std::uint32_t random = random_scale_bits24(m.key, m.element(i, b * 16));
      m.put<16>(i, b, block.codes, eden_scale(block.scale, sums, random));
    }
  }
}

float row_amax(const Matrix& m, std::int64_t i, NonFinite policy) {
  float amax = 0;
  for (std::int64_t b = 0; b < m.blocks(16); ++b) {
    float x[16];
    m.load(i, b, x);
    for (float v : x) amax = amax_step(amax, v, policy);
  }
  return amax;
}

void quantize_nvfp4_rows(const Matrix& m, float amax, std::int64_t begin, std::int64_t end) {
  const TensorScale g = tensor_scale(m.spec(), amax);
  for (std::int64_t i = begin; i < end; ++i) {
    if (m.spec().eden_group != 0) {
      quantize_eden_row(m, i, g);
    } else if (m.spec().tensor_scaling == TensorScaling::Tensor) {
      quantize_nvfp4_row(m, i, g);
    } else {
      const float of_row = row_amax(m, i, m.spec().non_finite);
      m.q.row_amax(i) = of_row;
      quantize_nvfp4_row(m, i, tensor_scale(m.spec(), of_row));
    }
  }
}

/// The scale of a tile under four over six: the rows' errors under both candidates decide.
E4M3 four_over_six_scale(const Matrix& m, std::int64_t i0, std::int64_t end, std::int64_t b, float amax,
                         const TensorScale& g) {
  const QuantSpec& spec = m.spec();
  const CandidateScales scales = candidate_scales(amax, g);
  float six[16] = {}, four[16] = {};
  for (std::int64_t i = i0; i < end; ++i) {
    float x[16];
    m.load(i, b, x);
    m.with_rounder<16>(i, b, [&](auto round) {
      const auto error = [&](E4M3 scale) {
        std::uint8_t codes[8];
        encode_codes(x, block_multiplier(scale, g), round, codes);
        return coding_error(x, codes, scale, g.amax, range_of(spec.scale_bound), spec.four_over_six);
      };
      six[i - i0] = error(scales.six);
      four[i - i0] = error(scales.four);
    });
  }
  return sum_of_rows(four) < sum_of_rows(six) ? scales.four : scales.six;
}

void quantize_nvfp4_tiles(const Matrix& m, float tensor_amax, std::int64_t begin, std::int64_t rows_end) {
  const QuantSpec& spec = m.spec();
  const TensorScale g = tensor_scale(spec, tensor_amax);
  for (std::int64_t i0 = begin; i0 < rows_end; i0 += 16) {
    const std::int64_t end = std::min(i0 + 16, rows_end);
    for (std::int64_t b = 0; b < m.blocks(16); ++b) {
      float x[16], amax = 0;
      for (std::int64_t i = i0; i < end; ++i) {
        m.load(i, b, x);
        amax = largest_of(x, amax);
      }
      amax = counted_amax(spec, amax);
      const E4M3 scale = spec.four_over_six == FourOverSix::Off ? block_scale(amax, g, spec.profile)
                                                                : four_over_six_scale(m, i0, end, b, amax, g);
      for (std::int64_t i = i0; i < end; ++i) {
        m.load(i, b, x);
        m.with_rounder<16>(i, b, [&](auto round) {
          std::uint8_t codes[8];
          encode_codes(x, scale, g, spec.profile, round, codes);
          m.put<16>(i, b, codes, scale);
        });
      }
    }
  }
}

void quantize_mxfp4(const Matrix& m, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t b = 0; b < m.blocks(32); ++b) {
      float x[32];
      m.load(i, b, x);
      m.with_rounder<32>(i, b, [&](auto round) {
        const Mxfp4Block block = encode_mxfp4(x, round, m.spec().scale_rule);
        m.put<32>(i, b, block.codes, block.scale);
      });
    }
  }
}

template <class Element>
void quantize_mx(const Matrix& m, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t b = 0; b < m.blocks(32); ++b) {
      float x[32];
      m.load(i, b, x);
      const Mxfp8Block<Element> block = encode_mxfp8<Element>(x, m.spec().scale_rule);
      for (int k = 0; k < 32 && b * 32 + k < m.shape.cols; ++k) {
        m.put_element(i, b * 32 + k, block.codes[k], exact_operand(block.codes[k], block.scale));
      }
      if (!m.q.scales.empty()) m.q.scales(i, b) = block.scale.bits;
    }
  }
}

/// What an infinite encode scale becomes: the largest finite value of the source's type. A rotation leaves
/// BF16 values whatever that type was.
float value_for_inf(const Quantize& q) {
  return q.x_RC.dtype() == DType::BF16 || q.spec.rotation != 0 ? kBf16Max : kFloatMax;
}

template <class Element>
void quantize_fp8(const Matrix& m, float amax, std::int64_t begin, std::int64_t end) {
  const auto scale = Fp8Scale::from_amax<Element>(amax, value_for_inf(m.q));
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t b = 0; b < m.blocks(16); ++b) {
      float x[16];
      m.load(i, b, x);
      for (int k = 0; k < 16 && b * 16 + k < m.shape.cols; ++k) {
        const Element code = encode_fp8<Element>(x[k], scale);
        m.put_element(i, b * 16 + k, code, exact_operand(code));
      }
    }
  }
}

void put_fp8_block(const Matrix& m, std::int64_t i, std::int64_t b, const Fp8Scale& scale) {
  const bool power_of_two = m.spec().format == Format::Fp8BlockE4M3;
  float x[kFp8Block];
  m.load(i, b, x);
  for (int k = 0; k < kFp8Block && b * kFp8Block + k < m.shape.cols; ++k) {
    const E4M3 code = encode_fp8<E4M3>(x[k], scale);
    m.put_element(i, b * kFp8Block + k, code,
                  power_of_two ? exact_operand(code, power_of_two_scale(scale)) : exact_operand(code));
  }
  if (m.q.scales.empty()) return;
  if (power_of_two) {
    m.q.scales(i, b) = power_of_two_scale(scale).bits;
  } else {
    std::memcpy(&m.q.scales(i, 4 * b), &scale.decode, 4);
  }
}

void quantize_fp8_blocks(const Matrix& m, std::int64_t begin, std::int64_t rows_end) {
  const bool power_of_two = m.spec().format == Format::Fp8BlockE4M3;
  const std::int64_t step = m.spec().tile == Tile::Square ? kFp8Block : 1;
  for (std::int64_t i0 = begin; i0 < rows_end; i0 += step) {
    const std::int64_t end = std::min(i0 + step, rows_end);
    for (std::int64_t b = 0; b < m.blocks(kFp8Block); ++b) {
      float amax = 0;
      for (std::int64_t i = i0; i < end; ++i) {
        float x[kFp8Block];
        m.load(i, b, x);
        amax = largest_of(x, amax);
      }
      const auto scale = Fp8Scale::from_amax<E4M3>(amax, value_for_inf(m.q), power_of_two);
      for (std::int64_t i = i0; i < end; ++i) put_fp8_block(m, i, b, scale);
    }
  }
}

void cast(const Matrix& m, std::int64_t begin, std::int64_t end) {
  if (m.q.values.empty()) return;
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t b = 0; b < m.blocks(16); ++b) {
      float x[16];
      m.load(i, b, x);
      for (int k = 0; k < 16 && b * 16 + k < m.shape.cols; ++k) {
        m.q.values(i, b * 16 + k) = bf16::nearest(x[k]);
      }
    }
  }
}

}  // namespace

float find_amax(const Quantize& q, std::int64_t begin, std::int64_t end) {
  const Matrix m(q);
  float amax = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    amax = amax_step(amax, row_amax(m, i, q.spec.non_finite), q.spec.non_finite);
  }
  return amax;
}

void quantize_rows(const Quantize& q, float amax, std::int64_t begin, std::int64_t end) {
  const Matrix m(q);
  switch (q.spec.format) {
    case Format::Fp32:
    case Format::Bf16:
      return cast(m, begin, end);
    case Format::Nvfp4:
      return q.spec.tile == Tile::Row ? quantize_nvfp4_rows(m, amax, begin, end)
                                      : quantize_nvfp4_tiles(m, amax, begin, end);
    case Format::Mxfp4:
      return quantize_mxfp4(m, begin, end);
    case Format::Mxfp8E4M3:
      return quantize_mx<E4M3>(m, begin, end);
    case Format::Mxfp8E5M2:
      return quantize_mx<E5M2>(m, begin, end);
    case Format::Mxfp6E2M3:
      return quantize_mx<E2M3>(m, begin, end);
    case Format::Mxfp6E3M2:
      return quantize_mx<E3M2>(m, begin, end);
    case Format::Fp8E4M3:
      return quantize_fp8<E4M3>(m, amax, begin, end);
    case Format::Fp8E5M2:
      return quantize_fp8<E5M2>(m, amax, begin, end);
    case Format::Fp8BlockE4M3:
    case Format::Fp8BlockFp32E4M3:
      return quantize_fp8_blocks(m, begin, end);
  }
}

float operand_scale(const Quantize& q, float amax) {
  switch (q.spec.format) {
    case Format::Nvfp4: {
      // gemm_inverse_range divides by 448: another bound's quotient is part of the scale, 7/4 for 256.
      if (q.spec.tensor_scaling == TensorScaling::Row) return 1.0f;
      return counted_amax(q.spec, amax) * (448.0f / static_cast<float>(q.spec.scale_bound));
    }
    case Format::Mxfp4:
      return mxfp4_tensor_factor(q.spec.scale_rule);
    case Format::Fp8E4M3:
      return Fp8Scale::from_amax<E4M3>(amax, value_for_inf(q)).decode;
    case Format::Fp8E5M2:
      return Fp8Scale::from_amax<E5M2>(amax, value_for_inf(q)).decode;
    default:
      return 1.0f;
  }
}

namespace {

float decoded_nvfp4(const Dequantize& d, E2M1 code, std::int64_t i, std::int64_t j) {
  const float amax = d.row_amax.empty() ? *d.amax : d.row_amax(i);
  return decode(code, E4M3{d.scales(i, j / 16)}, amax * d.amax_factor, 1.0f / range_of(d.scale_bound));
}

float decoded_block(const Dequantize& d, E4M3 code, std::int64_t i, std::int64_t b) {
  if (d.format == Format::Fp8BlockE4M3) return decode(code, E8M0{d.scales(i, b)});
  float scale = 0;
  std::memcpy(&scale, &d.scales(i, 4 * b), 4);
  return code.value() * scale;
}

float decoded(const Dequantize& d, std::int64_t i, std::int64_t j) {
  const auto e2m1 = [&] { return E2M1{static_cast<std::uint8_t>(d.codes(i, j / 2) >> (4 * (j % 2)) & 0xF)}; };
  switch (d.format) {
    case Format::Nvfp4:
      return decoded_nvfp4(d, e2m1(), i, j);
    case Format::Mxfp4:
      return decode(e2m1(), E8M0{d.scales(i, j / 32)}) * (d.scale != nullptr ? *d.scale : 1.0f);
    case Format::Mxfp8E4M3:
      return decode(E4M3{d.codes(i, j)}, E8M0{d.scales(i, j / 32)});
    case Format::Mxfp8E5M2:
      return decode(E5M2{d.codes(i, j)}, E8M0{d.scales(i, j / 32)});
    case Format::Mxfp6E2M3:
      return decode(E2M3{d.codes(i, j)}, E8M0{d.scales(i, j / 32)});
    case Format::Mxfp6E3M2:
      return decode(E3M2{d.codes(i, j)}, E8M0{d.scales(i, j / 32)});
    case Format::Fp8E4M3:
      return E4M3{d.codes(i, j)}.value() * *d.scale;
    case Format::Fp8E5M2:
      return E5M2{d.codes(i, j)}.value() * *d.scale;
    case Format::Fp8BlockE4M3:
    case Format::Fp8BlockFp32E4M3:
      return decoded_block(d, E4M3{d.codes(i, j)}, i, j / kFp8Block);
    case Format::Fp32:
    case Format::Bf16:
      break;
  }
  fail("dequantize: {} has no codes", info(d.format).name);
}

}  // namespace

void dequantize_rows(const Dequantize& d, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t j = 0; j < d.out_RC.size(1); ++j) d.out_RC(i, j) = decoded(d, i, j);
  }
}

}  // namespace nibble
