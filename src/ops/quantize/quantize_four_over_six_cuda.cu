// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_chunks_cuda.cuh"
#include "quant/four_over_six.h"

/// NVFP4 of aligned BF16 rows under four over six (quant/four_over_six.h), nearest even: a lane a chunk of
/// eight numbers, both candidates in registers. The amax is known when this starts.
///
/// The law's errors, rounded as it rounds them, are formed only where the choice could turn on a rounding.
/// Else, in units of a candidate's scale, an element's error is what its rounding to a code took off, which
/// two subtractions give exactly, and two lanes add the errors of the two halves of a block. How far that
/// may be from the law, in roundings of 2^-24: an element times its multiplier is 5 off, what a code decodes
/// to 2, both sums together round 29 times. Magnitudes are below 7, errors up to 1, of four up to 1.6 units
/// of six, elements sixteen: 5868 of the square of six's scale under Mse, 2710 of six's scale under Mae.
/// Where the sums are closer than 8192 or 4096, the block is in doubt: of normal numbers one block in 1400
/// under Mse, in 750 under Mae.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 4;  ///< on a processor at once

/// What a scale's byte stands for: `multiplier` block_multiplier, `pair` the bits of the scale, twice, as
/// BF16, `weight` what turns a sum of errors in units of the scale into one of the tensor's unit, `doubt` how
/// close two of those may come. Lies in shared memory.
template <FourOverSix kMeasure>
struct CandidateTable {
  struct alignas(16) Entry {
    float multiplier;
    std::uint32_t pair;
    float weight, doubt;
  };
  Entry entry[128];

  /// By all threads of a block; a barrier must follow.
  __device__ __forceinline__ void fill(const TensorScale& g) {
    for (int s = threadIdx.x; s < 128; s += kThreads) {
      const E4M3 scale{static_cast<std::uint8_t>(s)};
      const float value = scale.value();
      const float weight = kMeasure == FourOverSix::Mae ? value : value * value;
      entry[s] = {block_multiplier(scale, g), pack_exact(value, value), weight,
                  weight * (kMeasure == FourOverSix::Mae ? 0x1p-12f : 0x1p-11f)};
    }
  }
};

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

/// The law's choice for a block in doubt.
template <FourOverSix kMeasure>
__device__ __noinline__ std::uint32_t doubted_scale(const bf16* block, TensorScale g, float range,
                                                    const ScaleTable& table, const DecodedTable& decoded) {
  std::uint32_t sizes[8], most = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    sizes[k] = magnitudes(reinterpret_cast<const std::uint32_t*>(block)[k]);
    most = max_halves(most, sizes[k]);
  }
  const float block_amax = bits_float(largest_half(most) << 16);
  if (!decodes_by_two(g.amax)) {
    float x[16];
    for (int j = 0; j < 16; ++j) x[j] = block[j].value();
    return encode_four_over_six(x, block_amax, g, range, kMeasure, NearestEven{}).scale.bits;
  }
  const CandidateScales candidates = candidate_scales(block_amax, g);
  const float six = candidate_error<kMeasure>(sizes, candidates.six, table, decoded);
  const float four = candidate_error<kMeasure>(sizes, candidates.four, table, decoded);
  return four < six ? candidates.four.bits : candidates.six.bits;
}

/// Tensors of which no block decides by errors whose squares underflow or overflow: one whose scale is not 0
/// has a magnitude above 2^-60, one whose codes stay below 7 none above 2^62.
__device__ __forceinline__ bool is_moderate(float amax) { return amax >= 0x1p-40f && amax <= 0x1p60f; }

/// candidate_scales of a block of such a tensor, six in the low byte. The quotient is the division's for BF16
/// numbers that are no subnormals; of others both scales are 0.
__device__ __forceinline__ std::uint32_t both_scales(float block_amax, float encode) {
  const float near = block_amax * nvfp4::kOneSixth;
  const float base = fmaf(fmaf(-6.0f, near, block_amax), nvfp4::kOneSixth, near) * encode;
  const float four = base * 1.5f;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(four), "f"(base));
  return pair;
#else  // no FP8 conversions before Ada
  return std::uint32_t{E4M3::nearest(base).bits} | std::uint32_t{E4M3::nearest(four).bits} << 8;
#endif
}

/// A candidate's half of a block: values of codes as BF16 pairs, or the codes, both without signs.
template <bool kCodes>
struct Rounded {
  std::uint32_t word[kCodes ? 1 : 4];
};

/// Rounds x * multiplier, below 7; returns the errors' sum in units of the scale.
template <bool kCodes, FourOverSix kMeasure>
__device__ __forceinline__ float round_chunk(const float (&x)[8], float multiplier, Rounded<kCodes>& out) {
  float sums[8], values[8], error = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float y = x[j] * multiplier, shift = rounding_shift(y);
    sums[j] = fabsf(y) + shift;
    values[j] = sums[j] - shift;
    const float d = values[j] - fabsf(y);
    error = kMeasure == FourOverSix::Mae ? error + fabsf(d) : fmaf(d, d, error);
  }
  if constexpr (kCodes) {
    out.word[0] = code_word(sums);
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) out.word[k] = pack_exact(values[2 * k], values[2 * k + 1]);
  }
  return error;
}

template <FourOverSix kMeasure>
struct Tables {
  CandidateTable<kMeasure> candidates;
  ScaleTable scales;
  DecodedTable decoded;
};

/// Quantises a chunk and writes it if it is `present`; false, and nothing is written, where its block is in
/// doubt. All lanes of a warp call it.
template <bool kCodes, FourOverSix kMeasure>
__device__ __forceinline__ bool put_plain_chunk(const CandidateTable<kMeasure>& table, float encode,
                                                const uint4& chunk, bool present,
                                                const Destination<kCodes>& to) {
  const std::uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
  float x[8], most = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j] = half_value(words[j / 2], j % 2);
    most = fmaxf(most, fabsf(x[j]));
  }
  most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
  const std::uint32_t both = both_scales(most, encode), six_scale = both & 0xFFu, four_scale = both >> 8;
  const auto six = table.entry[six_scale], four = table.entry[four_scale];
  Rounded<kCodes> six_out, four_out;
  const float six_error = round_chunk<kCodes, kMeasure>(x, six.multiplier, six_out);
  const float four_error = round_chunk<kCodes, kMeasure>(x, four.multiplier, four_out);
  float loss = four_error * four.weight - six_error * six.weight;
  loss = loss + __shfl_xor_sync(0xFFFFFFFFu, loss, 1);
  const bool plain = six_scale == four_scale || fabsf(loss) > six.doubt;
  if (!(plain && most * six.multiplier < 7.0f)) return false;
  if (!present) return true;
  const bool four_wins = loss < 0;
  if constexpr (kCodes) {
    to.put_codes(with_signs(four_wins ? four_out.word[0] : six_out.word[0], chunk),
                 four_wins ? four_scale : six_scale);
  } else {
    const std::uint32_t pair = four_wins ? four.pair : six.pair;
    std::uint32_t out[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      out[k] = multiply_exact(four_wins ? four_out.word[k] : six_out.word[k], pair) | (words[k] & kSigns);
    store_words(to.values, out);
  }
  return true;
}

/// The chunk at (row, col) of a block in doubt.
template <bool kCodes, FourOverSix kMeasure>
__device__ __forceinline__ void put_doubted_chunk(const QuantizeJob& job, const TensorScale& g,
                                                  const Tables<kMeasure>& tables, std::int64_t row,
                                                  std::int64_t col) {
  const bf16* p = static_cast<const bf16*>(job.x) + row * job.x_stride + col;
  const std::uint32_t scale =
      doubted_scale<kMeasure>(p - col % 16, g, range_of(job.spec.scale_bound), tables.scales, tables.decoded);
  const uint4 x = *reinterpret_cast<const uint4*>(p);
  put_chunk<false>(Destination<kCodes>(job, row, col), x, scale, tables.scales, make_uint2(0, 0));
}

/// As rows_kernel, an item a thread at a time.
/// Floor, BF16 [16384, 8192]: 128 us for values and 82 us for codes at 4.2 TB/s; 27 instructions an element
/// (29 for codes), of them 9 that run at half rate, are 122 us (133 us).
template <bool kCodes, FourOverSix kMeasure>
__global__ void __launch_bounds__(kThreads, kBlocks) four_over_six_kernel(QuantizeJob job) {
  __shared__ Tables<kMeasure> tables;
  const TensorScale g = tensor_scale(job.spec, begin(job));
  tables.candidates.fill(g);
  tables.scales.fill(g);
  tables.decoded.fill(g.amax, range_of(job.spec.scale_bound));
  __syncthreads();
  const bool moderate = is_moderate(g.amax);
  const RowItems items(job);
  for (std::uint32_t first = blockIdx.x * kThreads; first < items.count; first += gridDim.x * kThreads) {
    // Lanes beyond the end stay for the exchange within their warp, with another's numbers.
    const bool present = first + threadIdx.x < items.count;
    const FourChunks at(job, items, present ? first + threadIdx.x : items.count - 1);
    Destination<kCodes> to(job, at.row, at.col);
    std::uint32_t doubted = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i, to.down(job, 1)) {
      const bool mine = present && i < at.rows_left;
      const bool plain = put_plain_chunk<kCodes>(tables.candidates, g.encode, at.x[i], mine, to);
      if (mine && !(plain && moderate)) doubted |= 1u << i;
    }
#pragma unroll 1
    for (; doubted != 0; doubted &= doubted - 1)
      put_doubted_chunk<kCodes>(job, g, tables, at.row + __ffs(static_cast<int>(doubted)) - 1, at.col);
  }
}

}  // namespace

bool four_over_six_fits(const QuantizeJob& job) {
  if (job.spec.four_over_six == FourOverSix::Off) return false;
  QuantizeJob plain = job;
  plain.spec.four_over_six = FourOverSix::Off;
  plain.spec.scale_bound = 448;
  return job.spec.rounding == Rounding::NearestEven && rows_fit(plain);
}

void quantize_four_over_six(Stream& stream, const QuantizeJob& job) {
  const auto with = [&](auto codes, auto measure) {
    launch(stream, "quantize", four_over_six_kernel<codes.value, measure.value>,
           looping_blocks(stream, row_items(job), kThreads, kBlocks), kThreads, 0, job);
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
