// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/quantize/quantize.h"
#include "quant/amax.h"
#include "quant/fp8_tensor.h"
#include "quant/hadamard.h"
#include "quant/mxfp4.h"
#include "quant/mxfp8.h"
#include "quant/nvfp4.h"
#include "quant/operand.h"

/// The meaning of the op: the arithmetic of quant/ applied block by block, in the plainest order.
namespace nibble {
namespace {

/// The result matrix before it is quantised, one block at a time, and the places its quantised form goes to.
struct Matrix {
  const Quantize& q;
  QuantizedShape shape;

  explicit Matrix(const Quantize& args)
      : q(args), shape(quantized_shape(args.spec, args.x_RC.size(0), args.x_RC.size(1), args.transpose)) {}

  std::int64_t blocks(int size) const { return (shape.cols + size - 1) / size; }

  /// Block b of row i, padded with zeros, rotated where the spec says so.
  template <int N>
  void load(std::int64_t i, std::int64_t b, float (&x)[N]) const {
    const std::int64_t filled = q.x_RC.size(q.transpose ? 0 : 1);
    for (int k = 0; k < N; ++k) {
      const std::int64_t j = b * N + k;
      x[k] = j >= filled ? 0.0f : q.transpose ? q.x_RC.get(j, i) : q.x_RC.get(i, j);
    }
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
    if (q.spec.rounding == Rounding::Stochastic) {
      Stochastic<N> round;
      for (int k = 0; k < N; ++k) round.random[k] = random_byte(q.random, element(i, b * N + k));
      return f(round);
    }
    StochasticExact<N> round;
    for (int k = 0; k < N; ++k) round.random[k] = random_bits24(q.random, element(i, b * N + k));
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
};

float find_amax(const Matrix& m) {
  if (m.q.amax_given != nullptr) return *m.q.amax_given;
  float amax = 0;
  for (std::int64_t i = 0; i < m.shape.rows; ++i) {
    for (std::int64_t b = 0; b < m.blocks(16); ++b) {
      float x[16];
      m.load(i, b, x);
      for (float v : x) amax = amax_step(amax, v, m.q.spec.non_finite);
    }
  }
  return amax;
}

void quantize_nvfp4_rows(const Matrix& m, const TensorScale& g) {
  for (std::int64_t i = 0; i < m.shape.rows; ++i) {
    for (std::int64_t b = 0; b < m.blocks(16); ++b) {
      float x[16];
      m.load(i, b, x);
      m.with_rounder<16>(i, b, [&](auto round) {
        const Nvfp4Block block = encode_block(x, g, m.q.spec.profile, round);
        m.put<16>(i, b, block.codes, block.scale);
      });
    }
  }
}

void quantize_nvfp4_tiles(const Matrix& m, const TensorScale& g) {
  for (std::int64_t i0 = 0; i0 < m.shape.rows; i0 += 16) {
    const std::int64_t end = std::min(i0 + 16, m.shape.rows);
    for (std::int64_t b = 0; b < m.blocks(16); ++b) {
      float x[16], amax = 0;
      for (std::int64_t i = i0; i < end; ++i) {
        m.load(i, b, x);
        for (float v : x) amax = amax_dropping_nan(amax, v);
      }
      const E4M3 scale = block_scale(amax, g, m.q.spec.profile);
      for (std::int64_t i = i0; i < end; ++i) {
        m.load(i, b, x);
        m.with_rounder<16>(i, b, [&](auto round) {
          std::uint8_t codes[8];
          encode_codes(x, block_multiplier(scale, g), round, codes);
          m.put<16>(i, b, codes, scale);
        });
      }
    }
  }
}

void quantize_mxfp4(const Matrix& m) {
  for (std::int64_t i = 0; i < m.shape.rows; ++i) {
    for (std::int64_t b = 0; b < m.blocks(32); ++b) {
      float x[32];
      m.load(i, b, x);
      m.with_rounder<32>(i, b, [&](auto round) {
        const Mxfp4Block block = encode_mxfp4(x, round);
        m.put<32>(i, b, block.codes, block.scale);
      });
    }
  }
}

template <class Element>
void quantize_mxfp8(const Matrix& m) {
  for (std::int64_t i = 0; i < m.shape.rows; ++i) {
    for (std::int64_t b = 0; b < m.blocks(32); ++b) {
      float x[32];
      m.load(i, b, x);
      const Mxfp8Block<Element> block = encode_mxfp8<Element>(x);
      for (int k = 0; k < 32 && b * 32 + k < m.shape.cols; ++k) {
        if (!m.q.values.empty()) m.q.values(i, b * 32 + k) = exact_operand(block.codes[k], block.scale);
        if (!m.q.codes.empty()) m.q.codes(i, b * 32 + k) = block.codes[k].bits;
      }
      if (!m.q.scales.empty()) m.q.scales(i, b) = block.scale.bits;
    }
  }
}

template <class Element>
void quantize_fp8(const Matrix& m, float amax) {
  // The transform leaves BF16 values whatever the source's type was.
  const bool bf16_values = m.q.x_RC.dtype() == DType::BF16 || m.q.spec.rotation != 0;
  const auto scale = Fp8Scale::from_amax<Element>(amax, bf16_values ? kBf16Max : kFloatMax);
  *m.q.scale = scale.decode;
  for (std::int64_t i = 0; i < m.shape.rows; ++i) {
    for (std::int64_t b = 0; b < m.blocks(16); ++b) {
      float x[16];
      m.load(i, b, x);
      for (int k = 0; k < 16 && b * 16 + k < m.shape.cols; ++k) {
        const Element code = encode_fp8<Element>(x[k], scale);
        if (!m.q.values.empty()) m.q.values(i, b * 16 + k) = exact_operand(code);
        if (!m.q.codes.empty()) m.q.codes(i, b * 16 + k) = code.bits;
      }
    }
  }
}

void cast(const Matrix& m) {
  if (m.q.values.empty()) return;
  for (std::int64_t i = 0; i < m.shape.rows; ++i) {
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

void ref::run(Stream&, const Quantize& q) {
  const Matrix m(q);
  const float amax = find_amax(m);
  *q.amax = amax;
  *q.scale = q.spec.format == Format::Nvfp4 ? amax : 1.0f;
  const TensorScale g = TensorScale::from_amax(amax);
  switch (q.spec.format) {
    case Format::Fp32:
    case Format::Bf16:
      return cast(m);
    case Format::Nvfp4:
      return q.spec.tile == Tile::Row ? quantize_nvfp4_rows(m, g) : quantize_nvfp4_tiles(m, g);
    case Format::Mxfp4:
      return quantize_mxfp4(m);
    case Format::Mxfp8E4M3:
      return quantize_mxfp8<E4M3>(m);
    case Format::Mxfp8E5M2:
      return quantize_mxfp8<E5M2>(m);
    case Format::Fp8E4M3:
      return quantize_fp8<E4M3>(m, amax);
    case Format::Fp8E5M2:
      return quantize_fp8<E5M2>(m, amax);
  }
}

}  // namespace nibble
