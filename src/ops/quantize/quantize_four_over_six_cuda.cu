// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_chunks_cuda.cuh"
#include "quant/four_over_six.h"

/// NVFP4 of aligned BF16 rows under four over six (quant/four_over_six.h), nearest even: a thread a block,
/// both candidates in registers. The amax is known when this starts.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 3;  ///< on a processor at once

/// What the values of a candidate's codes decode to, by its scale. ((v * scale) * amax) / range has the
/// significand of one of two numbers, those of v = 1 and v = 1.5, as long as nothing on the way is subnormal
/// or overflows: no division an element, and none a block. Lies in shared memory.
struct DecodedTable {
  float2 entry[128];

  /// By all threads of a block; a barrier must follow.
  __device__ __forceinline__ void fill(float amax, float range) {
    for (int s = threadIdx.x; s < 128; s += kThreads) {
      const float scale = E4M3{static_cast<std::uint8_t>(s)}.value();
      entry[s] = make_float2((scale * amax) / range, ((1.5f * scale) * amax) / range);
    }
  }
};
/// What v (0, 0.5, 1, 1.5, 2, 3, 4 or 6) decodes to, less `size`: the product with a power of two is exact,
/// so that one rounding is the law's.
__device__ __forceinline__ float decoded_less(float v, const float2& entry, float size) {
  const std::uint32_t bits = float_bits(v);
  return fmaf(bits_float(bits & kInfinityBits), (bits & 0x00400000u) != 0 ? entry.y : entry.x, -size);
}
/// Whether that holds for every scale of a tensor: between the smallest (2^-9, code 0.5, over 2688) and the
/// largest (448, code 6).
__device__ __forceinline__ bool decodes_by_two(float amax) { return amax >= 0x1p-100f && amax <= 0x1p100f; }

template <FourOverSix kMeasure>
__device__ __forceinline__ float candidate_error(const std::uint32_t (&sizes)[8], E4M3 scale,
                                                 const ScaleTable& table, const DecodedTable& decoded) {
  const float multiplier = table.entry[scale.bits].x;
  const float2 entry = decoded.entry[scale.bits];
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const float size = half_value(sizes[j / 2], j % 2);
    const float d = decoded_less(fminf(nearest_e2m1(size * multiplier), 6.0f), entry, size);
    sum = sum + (kMeasure == FourOverSix::Mae ? fabsf(d) : d * d);
  }
  return sum;
}

/// The same choice as the law writes it, for tensors of extreme size.
__device__ __noinline__ std::uint32_t scale_of_extreme(const bf16* p, float block_amax, TensorScale g,
                                                       float range, FourOverSix measure) {
  float x[16];
  for (int j = 0; j < 16; ++j) x[j] = p[j].value();
  return encode_four_over_six(x, block_amax, g, range, measure, NearestEven{}).scale.bits;
}

template <bool kCodes, FourOverSix kMeasure, bool kExtreme>
__device__ __forceinline__ void code_rows(const QuantizeJob& job, const TensorScale& g,
                                          const ScaleTable& table, const DecodedTable& decoded) {
  const auto across = static_cast<std::uint32_t>(job.x_cols / 16);
  const auto blocks = static_cast<std::uint32_t>(job.x_rows) * across;
  for (std::uint32_t w = blockIdx.x * kThreads + threadIdx.x; w < blocks; w += gridDim.x * kThreads) {
    const std::int64_t row = w / across, col = std::int64_t{w % across} * 16;
    const bf16* p = static_cast<const bf16*>(job.x) + row * job.x_stride + col;
    const uint4 low = reinterpret_cast<const uint4*>(p)[0], high = reinterpret_cast<const uint4*>(p)[1];
    const uint4 low_size = magnitudes(low), high_size = magnitudes(high);
    const float block_amax =
        bits_float(largest_half(max_halves(largest_of_chunk(low_size), largest_of_chunk(high_size))) << 16);
    std::uint32_t scale;
    if constexpr (kExtreme) {
      scale = scale_of_extreme(p, block_amax, g, range_of(job.spec.scale_bound), kMeasure);
    } else {
      const std::uint32_t sizes[8] = {low_size.x,  low_size.y,  low_size.z,  low_size.w,
                                      high_size.x, high_size.y, high_size.z, high_size.w};
      const CandidateScales candidates = candidate_scales(block_amax, g);
      const float six = candidate_error<kMeasure>(sizes, candidates.six, table, decoded);
      const float four = candidate_error<kMeasure>(sizes, candidates.four, table, decoded);
      scale = four < six ? candidates.four.bits : candidates.six.bits;
    }
    put_chunk<false, kCodes>(job, row, col, low, low_size, scale, table, make_uint2(0, 0));
    put_chunk<false, kCodes>(job, row, col + 8, high, high_size, scale, table, make_uint2(0, 0));
  }
}

/// Floor, BF16 [16384, 8192]: as rows_kernel, 82 us for codes at 4.2 TB/s; about 40 instructions an element
/// are 190 us.
template <bool kCodes, FourOverSix kMeasure>
__global__ void __launch_bounds__(kThreads, kBlocks) four_over_six_kernel(QuantizeJob job) {
  __shared__ ScaleTable table;
  __shared__ DecodedTable decoded;
  const TensorScale g = tensor_scale(job.spec, begin(job));
  table.fill(g);
  decoded.fill(g.amax, range_of(job.spec.scale_bound));
  __syncthreads();
  if (decodes_by_two(g.amax))
    code_rows<kCodes, kMeasure, false>(job, g, table, decoded);
  else
    code_rows<kCodes, kMeasure, true>(job, g, table, decoded);
}

}  // namespace

bool four_over_six_fits(const QuantizeJob& job) {
  if (job.spec.four_over_six == FourOverSix::Off) return false;
  QuantizeJob plain = job;
  plain.spec.four_over_six = FourOverSix::Off;
  plain.spec.scale_bound = 448;
  return job.spec.rounding == Rounding::NearestEven && rows_fit(plain) &&
         job.x_rows * (job.x_cols / 16) < (std::int64_t{1} << 31);
}

void quantize_four_over_six(Stream& stream, const QuantizeJob& job) {
  const std::int64_t blocks = job.x_rows * (job.x_cols / 16);
  const auto with = [&](auto codes, auto measure) {
    launch(stream, "quantize", four_over_six_kernel<codes.value, measure.value>,
           looping_blocks(stream, blocks, kThreads, kBlocks), kThreads, 0, job);
  };
  const auto with_measure = [&](auto codes) {
    if (job.spec.four_over_six == FourOverSix::Mae)
      with(codes, std::integral_constant<FourOverSix, FourOverSix::Mae>{});
    else
      with(codes, std::integral_constant<FourOverSix, FourOverSix::Mse>{});
  };
  if (job.codes != nullptr)
    with_measure(std::true_type{});
  else
    with_measure(std::false_type{});
}

}  // namespace nibble::cuda
