// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/quantize/quantize.h"
#include "quant/fp8_block.h"
#include "quant/mxfp4.h"
#include "quant/mxfp8.h"
#include "quant/nvfp4.h"

/// What codes, block scales and the tensor's scale stand for, on the device: the host's decoder
/// (quantize_blocks.cpp) on raw pointers. Device code only.
namespace nibble::cuda {

struct Decoder {
  Format format;
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::int64_t codes_stride, scales_stride;
  const float* amax;
  const float* scale;
  const float* row_amax;
  std::int64_t row_amax_stride;
  float amax_factor, inverse_range;

  explicit Decoder(const Dequantize& d)
      : format(d.format),
        codes(d.codes.data()),
        scales(d.scales.data()),
        codes_stride(d.codes.empty() ? 0 : d.codes.stride(0)),
        scales_stride(d.scales.empty() ? 0 : d.scales.stride(0)),
        amax(d.amax),
        scale(d.scale),
        row_amax(d.row_amax.data()),
        row_amax_stride(d.row_amax.empty() ? 0 : d.row_amax.stride(0)),
        amax_factor(d.amax_factor),
        inverse_range(1.0f / (6.0f * static_cast<float>(d.scale_bound))) {}

  __device__ __forceinline__ std::uint8_t byte(std::int64_t i, std::int64_t j) const {
    return codes[i * codes_stride + j];
  }
  __device__ __forceinline__ E2M1 e2m1(std::int64_t i, std::int64_t j) const {
    return {static_cast<std::uint8_t>(byte(i, j / 2) >> (4 * (j % 2)) & 0xF)};
  }
  __device__ __forceinline__ std::uint8_t scale_byte(std::int64_t i, std::int64_t block) const {
    return scales[i * scales_stride + block];
  }
  /// An FP32 block scale; its address need not be aligned.
  __device__ __forceinline__ float wide_scale(std::int64_t i, std::int64_t block) const {
    std::uint32_t bits = 0;
    for (int k = 0; k < 4; ++k) bits |= std::uint32_t{scale_byte(i, 4 * block + k)} << (8 * k);
    return bits_float(bits);
  }

  __device__ __forceinline__ float operator()(std::int64_t i, std::int64_t j) const {
    switch (format) {
      case Format::Nvfp4: {
        const float of_row = row_amax != nullptr ? row_amax[i * row_amax_stride] : *amax;
        return decode(e2m1(i, j), E4M3{scale_byte(i, j / 16)}, of_row * amax_factor, inverse_range);
      }
      case Format::Mxfp4:
        return decode(e2m1(i, j), E8M0{scale_byte(i, j / 32)}) * (scale != nullptr ? *scale : 1.0f);
      case Format::Mxfp8E4M3:
        return decode(E4M3{byte(i, j)}, E8M0{scale_byte(i, j / 32)});
      case Format::Mxfp8E5M2:
        return decode(E5M2{byte(i, j)}, E8M0{scale_byte(i, j / 32)});
      case Format::Mxfp6E2M3:
        return decode(E2M3{byte(i, j)}, E8M0{scale_byte(i, j / 32)});
      case Format::Mxfp6E3M2:
        return decode(E3M2{byte(i, j)}, E8M0{scale_byte(i, j / 32)});
      case Format::Fp8E4M3:
        return E4M3{byte(i, j)}.value() * *scale;
      case Format::Fp8E5M2:
        return E5M2{byte(i, j)}.value() * *scale;
      case Format::Fp8BlockE4M3:
        return decode(E4M3{byte(i, j)}, E8M0{scale_byte(i, j / kFp8Block)});
      case Format::Fp8BlockFp32E4M3:
        return E4M3{byte(i, j)}.value() * wide_scale(i, j / kFp8Block);
      case Format::Fp32:
      case Format::Bf16:
        break;
    }
    return 0;  // has no codes: check() refused it
  }
};

}  // namespace nibble::cuda
