// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_kernels.h"
#include "quant/mxfp4.h"
#include "quant/mxfp8.h"

namespace nibble::cpu::NIBBLE_SIMD {
namespace {

/// Blocks of N columns under one byte of scale; `decode_at` decodes code j of a row under a scale byte.
template <int N, class Decode>
inline __attribute__((always_inline)) void decode_rows(const DequantizeJob& job, Decode decode_at) {
  for (std::int64_t i = 0; i < job.rows; ++i) {
    const std::uint8_t* codes = job.codes + i * job.codes_stride;
    float* out = job.out + i * job.out_stride;
    for (std::int64_t j0 = 0; j0 < job.cols; j0 += N) {
      const std::uint8_t scale = job.scales ? job.scales[i * job.scales_stride + j0 / N] : std::uint8_t{0};
      const std::int64_t end = j0 + N < job.cols ? j0 + N : job.cols;
      for (std::int64_t j = j0; j < end; ++j) out[j] = decode_at(codes, j, scale);
    }
  }
}

template <class Element>
void decode_mxfp8_rows(const DequantizeJob& job) {
  decode_rows<32>(job, [](const std::uint8_t* codes, std::int64_t j, std::uint8_t scale) {
    return decode(Element{codes[j]}, E8M0{scale});
  });
}

template <class Element>
void decode_fp8_rows(const DequantizeJob& job) {
  const float factor = job.scale;
  decode_rows<64>(job, [factor](const std::uint8_t* codes, std::int64_t j, std::uint8_t) {
    return Element{codes[j]}.value() * factor;
  });
}

}  // namespace

void dequantize_rows(const DequantizeJob& job) {
  const float amax = job.amax;
  switch (job.format) {
    case Format::Nvfp4:
      return decode_rows<16>(job, [amax](const std::uint8_t* codes, std::int64_t j, std::uint8_t scale) {
        return decode(E2M1{static_cast<std::uint8_t>(codes[j / 2] >> (4 * (j % 2)) & 0xF)}, E4M3{scale},
                      amax);
      });
    case Format::Mxfp4:
      return decode_rows<32>(job, [](const std::uint8_t* codes, std::int64_t j, std::uint8_t scale) {
        return decode(E2M1{static_cast<std::uint8_t>(codes[j / 2] >> (4 * (j % 2)) & 0xF)}, E8M0{scale});
      });
    case Format::Mxfp8E4M3:
      return decode_mxfp8_rows<E4M3>(job);
    case Format::Mxfp8E5M2:
      return decode_mxfp8_rows<E5M2>(job);
    case Format::Fp8E4M3:
      return decode_fp8_rows<E4M3>(job);
    case Format::Fp8E5M2:
      return decode_fp8_rows<E5M2>(job);
    default:
      return;  // check() has refused what has no codes, and quantize_cpu.cpp takes the other formats
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
