// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "base/error.h"
#include "ops/quantize/quantize_matrix_cuda.cuh"
#include "quant/eden.h"
#include "quant/four_over_six.h"
#include "quant/fp8_block.h"
#include "quant/mxfp8.h"

/// Every format, profile and option by the block code of quant/: a thread a block, or sixteen threads a
/// square tile, in whatever layout the source has. Floor: source and outputs once; it runs at a few times
/// that, because a thread's numbers lie side by side and not its neighbours'.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 128;

template <int N>
__device__ __forceinline__ float largest_of(const float (&x)[N]) {
  float amax = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) amax = amax_dropping_nan(amax, x[k]);
  return amax;
}

/// How a format codes the kBlock values from column j of row i.
struct Nvfp4Rows {
  static constexpr int kBlock = 16;
  template <class T>
  __device__ static void code(const DeviceMatrix<T>& m, std::int64_t i, std::int64_t j, const float (&x)[16],
                              float tensor_amax) {
    const QuantSpec& spec = m.job.spec;
    const bool row_scaled = spec.tensor_scaling == TensorScaling::Row;
    const TensorScale g =
        tensor_scale(spec, row_scaled ? m.job.row_amax[i * m.job.row_amax_stride] : tensor_amax);
    const float amax = counted_amax(spec, largest_of(x));
    m.template with_rounder<16>(i, j, [&](auto round) {
      Nvfp4Block block;
      if (spec.four_over_six != FourOverSix::Off) {
        block = encode_four_over_six(x, amax, g, range_of(spec.scale_bound), spec.four_over_six, round);
      } else {
        block.scale = block_scale(amax, g, spec.profile);
        encode_codes(x, block.scale, g, spec.profile, round, block.codes);
      }
      m.template put<16>(i, j, block.codes, block.scale);
    });
  }
};

struct Mxfp4Rows {
  static constexpr int kBlock = 32;
  template <class T>
  __device__ static void code(const DeviceMatrix<T>& m, std::int64_t i, std::int64_t j, const float (&x)[32],
                              float) {
    m.template with_rounder<32>(i, j, [&](auto round) {
      const Mxfp4Block block = encode_mxfp4(x, round, m.job.spec.scale_rule);
      m.template put<32>(i, j, block.codes, block.scale);
    });
  }
};

template <class Element>
struct MxRows {
  static constexpr int kBlock = 32;
  template <class T>
  __device__ static void code(const DeviceMatrix<T>& m, std::int64_t i, std::int64_t j, const float (&x)[32],
                              float) {
    const Mxfp8Block<Element> block = encode_mxfp8<Element>(x, m.job.spec.scale_rule);
    std::uint8_t codes[32];
    bf16 values[32];
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      codes[k] = block.codes[k].bits;
      values[k] = exact_operand(block.codes[k], block.scale);
    }
    m.put_bytes(i, j, codes, values);
    if (m.job.scales) m.job.scales[i * m.job.scales_stride + j / 32] = block.scale.bits;
  }
};

template <class Element>
struct Fp8Rows {
  static constexpr int kBlock = 16;
  template <class T>
  __device__ static void code(const DeviceMatrix<T>& m, std::int64_t i, std::int64_t j, const float (&x)[16],
                              float amax) {
    const Fp8Scale scale =
        Fp8Scale::from_amax<Element>(amax, m.job.publish.bf16_values ? kBf16Max : kFloatMax);
    std::uint8_t codes[16];
    bf16 values[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const Element code = encode_fp8<Element>(x[k], scale);
      codes[k] = code.bits;
      values[k] = exact_operand(code);
    }
    m.put_bytes(i, j, codes, values);
  }
};

struct Cast {
  static constexpr int kBlock = 16;
  template <class T>
  __device__ static void code(const DeviceMatrix<T>& m, std::int64_t i, std::int64_t j, const float (&x)[16],
                              float) {
    bf16 values[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) values[k] = bf16::nearest(x[k]);
    m.put_row(m.job.values + i * m.job.values_stride + j, m.job.wide_values, m.job.cols - j, values);
  }
};

template <class Coder, class T>
__global__ void __launch_bounds__(kThreads) blocks_kernel(QuantizeJob job) {
  constexpr int kBlock = Coder::kBlock;
  const float amax = begin(job);
  const DeviceMatrix<T> m(job);
  const std::int64_t blocks = (job.cols + kBlock - 1) / kBlock;
  const std::int64_t w = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (w >= job.rows * blocks) return;
  // Neighbouring threads read neighbouring numbers of the source.
  const std::int64_t i = job.transpose ? w % job.rows : w / blocks;
  const std::int64_t j = (job.transpose ? w / job.rows : w % blocks) * kBlock;
  float x[kBlock];
  m.load(i, j, x);
  Coder::code(m, i, j, x, amax);
}

/// MS-EDEN, a thread a group of up to 128 values: codes and base scales of its blocks wait in registers for
/// the group's sums.
template <class T>
__global__ void __launch_bounds__(kThreads) eden_kernel(QuantizeJob job) {
  constexpr int kBlocks = kLargestRotation / 16;
  const QuantSpec& spec = job.spec;
  const TensorScale g = tensor_scale(spec, begin(job));
  const DeviceMatrix<T> m(job);
  const std::int64_t groups = (job.cols + spec.eden_group - 1) / spec.eden_group;
  const std::int64_t w = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (w >= job.rows * groups) return;
  // Neighbouring threads read neighbouring numbers of the source.
  const std::int64_t i = job.transpose ? w % job.rows : w / groups;
  const std::int64_t first = (job.transpose ? w / job.rows : w % groups) * spec.eden_group;
  Nvfp4Block group[kBlocks];
  EdenSums sums;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const std::int64_t j = first + 16 * b;
    if (16 * b >= spec.eden_group || j >= job.cols) continue;
    float x[16];
    m.load(i, j, x);
    group[b] = encode_eden_block(x, counted_amax(spec, largest_of(x)), g, sums);
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const std::int64_t j = first + 16 * b;
    if (16 * b >= spec.eden_group || j >= job.cols) continue;
    const std::uint32_t random = random_scale_bits24(m.key, m.element(i, j));
    m.template put<16>(i, j, group[b].codes, eden_scale(group[b].scale, sums, random));
  }
}

/// NVFP4's square tiles: sixteen neighbouring lanes take the sixteen rows of a tile.
template <class T>
__global__ void __launch_bounds__(kThreads) tiles_kernel(QuantizeJob job) {
  const QuantSpec& spec = job.spec;
  const TensorScale g = tensor_scale(spec, begin(job));
  const DeviceMatrix<T> m(job);
  const std::int64_t down = (job.rows + 15) / 16, across = (job.cols + 15) / 16;
  const std::int64_t w = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 16;
  // All lanes stay, because they exchange maxima; those without a row of the matrix hold zeros.
  const std::int64_t i = (job.transpose ? w % down : w / across) * 16 + threadIdx.x % 16;
  const std::int64_t j = (job.transpose ? w / down : w % across) * 16;
  const bool present = w < down * across && i < job.rows;
  float x[16] = {};
  if (present) m.load(i, j, x);
  float amax = largest_of(x);
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2)
    amax = amax_dropping_nan(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, lane));
  amax = counted_amax(spec, amax);
  E4M3 scale = block_scale(amax, g, spec.profile);
  if (spec.four_over_six != FourOverSix::Off) {
    const CandidateScales scales = candidate_scales(amax, g);
    float six = 0, four = 0;
    if (present) {
      m.template with_rounder<16>(i, j, [&](auto round) {
        const auto error = [&](E4M3 candidate) {
          std::uint8_t codes[8];
          encode_codes(x, block_multiplier(candidate, g), round, codes);
          return coding_error(x, codes, candidate, g.amax, range_of(spec.scale_bound), spec.four_over_six);
        };
        six = error(scales.six);
        four = error(scales.four);
      });
    }
    // The tree of sum_of_rows: every lane ends with its sum, since a + b = b + a.
#pragma unroll
    for (int lane = 8; lane > 0; lane /= 2) {
      six = six + __shfl_xor_sync(0xFFFFFFFFu, six, lane);
      four = four + __shfl_xor_sync(0xFFFFFFFFu, four, lane);
    }
    scale = four < six ? scales.four : scales.six;
  }
  if (!present) return;
  m.template with_rounder<16>(i, j, [&](auto round) {
    std::uint8_t codes[8];
    encode_codes(x, scale, g, spec.profile, round, codes);
    m.template put<16>(i, j, codes, scale);
  });
}

/// FP8 in blocks of 128: a CUDA block of 128 threads takes a tile of 128 rows, a thread a row.
template <class T>
__global__ void __launch_bounds__(kFp8Block) fp8_blocks_kernel(QuantizeJob job) {
  static_assert(kThreads == kFp8Block);
  begin(job);
  const DeviceMatrix<T> m(job);
  const bool power_of_two = job.spec.format == Format::Fp8BlockE4M3;
  const std::int64_t down = (job.rows + kFp8Block - 1) / kFp8Block;
  const std::int64_t i = blockIdx.x % down * kFp8Block + threadIdx.x, b = blockIdx.x / down;
  const bool present = i < job.rows;
  // The padding of a rotated row may be less than a block: what lies beyond the result counts as 0, and its
  // transform is 0 too.
  float amax = 0;
  for (int k = 0; k < kFp8Block && present; k += 16) {
    float x[16];
    m.load(i, b * kFp8Block + k, x);
    amax = amax_dropping_nan(amax, largest_of(x));
  }
  if (job.spec.tile == Tile::Square) amax = block_max<kFp8Block>(amax);
  if (!present) return;
  const auto scale =
      Fp8Scale::from_amax<E4M3>(amax, job.publish.bf16_values ? kBf16Max : kFloatMax, power_of_two);
  for (int k = 0; k < kFp8Block; k += 16) {
    float x[16];
    m.load(i, b * kFp8Block + k, x);
    std::uint8_t codes[16];
    bf16 values[16];
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const E4M3 code = encode_fp8<E4M3>(x[n], scale);
      codes[n] = code.bits;
      values[n] = power_of_two ? exact_operand(code, power_of_two_scale(scale)) : exact_operand(code);
    }
    m.put_bytes(i, b * kFp8Block + k, codes, values);
  }
  if (job.scales == nullptr) return;
  if (power_of_two) {
    job.scales[i * job.scales_stride + b] = power_of_two_scale(scale).bits;
  } else {
    for (int byte = 0; byte < 4; ++byte)
      job.scales[i * job.scales_stride + 4 * b + byte] =
          static_cast<std::uint8_t>(float_bits(scale.decode) >> (8 * byte));
  }
}

/// The amax of each row of the result, a thread a row.
template <class T>
__global__ void __launch_bounds__(kThreads) row_amax_kernel(QuantizeJob job) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= job.rows) return;
  const DeviceMatrix<T> m(job);
  float amax = 0;
  for (std::int64_t j = 0; j < job.cols; j += 16) {
    float x[16];
    m.load(i, j, x);
#pragma unroll
    for (int k = 0; k < 16; ++k) amax = amax_step(amax, x[k], job.spec.non_finite);
  }
  job.row_amax[i * job.row_amax_stride] = amax;
}

void run_kernel(Stream& stream, void (*kernel)(QuantizeJob), std::int64_t blocks, const QuantizeJob& job) {
  check(blocks <= std::numeric_limits<int>::max(),
        "quantize: a matrix of [{}, {}] is too large for one launch", job.rows, job.cols);
  launch(stream, "quantize", kernel, static_cast<unsigned>(blocks), kThreads, 0, job);
}

template <class Coder>
void run_blocks(Stream& stream, const QuantizeJob& job) {
  const std::int64_t items = job.rows * ((job.cols + Coder::kBlock - 1) / Coder::kBlock);
  with_source(job, [&](auto t) {
    run_kernel(stream, blocks_kernel<Coder, decltype(t)>, (items + kThreads - 1) / kThreads, job);
  });
}

void run_nvfp4(Stream& stream, const QuantizeJob& job) {
  if (job.spec.tensor_scaling == TensorScaling::Row) {
    with_source(job, [&](auto t) {
      run_kernel(stream, row_amax_kernel<decltype(t)>, (job.rows + kThreads - 1) / kThreads, job);
    });
  }
  if (!job.writes()) return;
  if (job.spec.eden_group != 0) {
    const std::int64_t groups = job.rows * ((job.cols + job.spec.eden_group - 1) / job.spec.eden_group);
    with_source(job, [&](auto t) {
      run_kernel(stream, eden_kernel<decltype(t)>, (groups + kThreads - 1) / kThreads, job);
    });
    return;
  }
  if (job.spec.tile == Tile::Row) return run_blocks<Nvfp4Rows>(stream, job);
  const std::int64_t threads = (job.rows + 15) / 16 * ((job.cols + 15) / 16) * 16;
  with_source(job, [&](auto t) {
    run_kernel(stream, tiles_kernel<decltype(t)>, (threads + kThreads - 1) / kThreads, job);
  });
}

void run_fp8_blocks(Stream& stream, const QuantizeJob& job) {
  const std::int64_t tiles =
      (job.rows + kFp8Block - 1) / kFp8Block * ((job.cols + kFp8Block - 1) / kFp8Block);
  with_source(job, [&](auto t) { run_kernel(stream, fp8_blocks_kernel<decltype(t)>, tiles, job); });
}

}  // namespace

void quantize_general(Stream& stream, const QuantizeJob& job) {
  switch (job.spec.format) {
    case Format::Fp32:
    case Format::Bf16:
      return run_blocks<Cast>(stream, job);
    case Format::Nvfp4:
      return run_nvfp4(stream, job);
    case Format::Mxfp4:
      return run_blocks<Mxfp4Rows>(stream, job);
    case Format::Mxfp8E4M3:
      return run_blocks<MxRows<E4M3>>(stream, job);
    case Format::Mxfp8E5M2:
      return run_blocks<MxRows<E5M2>>(stream, job);
    case Format::Mxfp6E2M3:
      return run_blocks<MxRows<E2M3>>(stream, job);
    case Format::Mxfp6E3M2:
      return run_blocks<MxRows<E3M2>>(stream, job);
    case Format::Fp8E4M3:
      return run_blocks<Fp8Rows<E4M3>>(stream, job);
    case Format::Fp8E5M2:
      return run_blocks<Fp8Rows<E5M2>>(stream, job);
    case Format::Fp8BlockE4M3:
    case Format::Fp8BlockFp32E4M3:
      return run_fp8_blocks(stream, job);
  }
  fail("quantize: the cuda backend has no quantiser for {}; use --backend cpu", info(job.spec.format).name);
}

}  // namespace nibble::cuda
