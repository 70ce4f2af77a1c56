// SPDX-License-Identifier: Apache-2.0
#include "ops/health/quant_stats_cuda.cuh"

/// Statistics of operands whose rows are contiguous: nearly all of a step's. A thread takes a block of 16 or
/// 32 elements at a time, reads it, its codes and its scale once, and knows the block's own numbers from its
/// registers.
/// Floor, NVFP4 of BF16: 2.56 bytes an element, and about ten additions and products in double.
namespace nibble::cuda {
namespace {

/// Elements a thread counts before its byte-wide counters could overflow.
constexpr int kElements = 240;

struct RunJob {
  const void* x;
  const std::uint8_t *codes, *scales;
  std::int64_t x_stride, codes_stride, scales_stride;
  std::uint32_t across, runs;  ///< runs of a row, and in all
  const float *amax, *scale;
  float amax_factor, inverse_range;
};

/// kRun codes as they lie, four bits or a byte each.
template <Format kFormat, int kRun>
struct Codes {
  static constexpr bool kPacked = kFormat == Format::Nvfp4 || kFormat == Format::Mxfp4;
  static constexpr int kWords = kRun / (kPacked ? 8 : 4);
  std::uint32_t words[kWords];

  __device__ __forceinline__ explicit Codes(const std::uint8_t* p) {
    if constexpr (kWords == 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      words[0] = v.x;
      words[1] = v.y;
    } else {
#pragma unroll
      for (int w = 0; w < kWords; w += 4) {
        const uint4 v = *reinterpret_cast<const uint4*>(p + 4 * w);
        words[w] = v.x;
        words[w + 1] = v.y;
        words[w + 2] = v.z;
        words[w + 3] = v.w;
      }
    }
  }
  __device__ __forceinline__ std::uint8_t operator[](int i) const {
    if constexpr (kPacked) return static_cast<std::uint8_t>(words[i / 8] >> (4 * (i % 8)) & 0xF);
    return static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)) & 0xFF);
  }
};

/// As Decoder has it: code times `block`, times `tensor`.
struct Factors {
  float block, tensor;
};

template <Format kFormat>
__device__ __forceinline__ Factors factors_of(const RunJob& job, std::uint8_t scale) {
  if constexpr (kFormat == Format::Nvfp4)
    return {decode_factor(E4M3{scale}, *job.amax * job.amax_factor, job.inverse_range), 1.0f};
  else if constexpr (kFormat == Format::Mxfp4)
    return {E8M0{scale}.value(), job.scale != nullptr ? *job.scale : 1.0f};
  else if constexpr (kFormat == Format::Mxfp8E4M3 || kFormat == Format::Mxfp8E5M2)
    return {E8M0{scale}.value(), 1.0f};
  else
    return {*job.scale, 1.0f};
}

template <Format kFormat>
__device__ __forceinline__ float value_of(std::uint8_t code) {
  if constexpr (kFormat == Format::Nvfp4 || kFormat == Format::Mxfp4)
    return E2M1{code}.value();
  else if constexpr (kFormat == Format::Mxfp8E5M2 || kFormat == Format::Fp8E5M2)
    return E5M2{code}.value();
  else
    return E4M3{code}.value();
}

template <class T, Format kFormat, int kRun>
__global__ void __launch_bounds__(kMeasureThreads) runs_kernel(RunJob job, Partial* partials) {
  constexpr bool kPacked = Codes<kFormat, kRun>::kPacked;
  constexpr bool kBlocked = kFormat != Format::Fp8E4M3 && kFormat != Format::Fp8E5M2;
  constexpr int kRuns = kElements / kRun;
  __shared__ BlockCounts counts;
  counts.clear();
  __syncthreads();
  ElementSums sums;
  CodeCounts codes_met;
  unsigned saturated = 0;
  float block_range = 0;
  for (int k = 0; k < kRuns; ++k) {
    const std::uint32_t w = (blockIdx.x * kRuns + k) * kMeasureThreads + threadIdx.x;
    if (w >= job.runs) break;
    const std::uint32_t row = w / job.across, run = w % job.across;
    float x[kRun];
    load_pack<kRun>(static_cast<const T*>(job.x) + row * job.x_stride + std::int64_t{run} * kRun, x);
    const Codes<kFormat, kRun> codes(job.codes + row * job.codes_stride +
                                     std::int64_t{run} * (kPacked ? kRun / 2 : kRun));
    std::uint8_t scale = 0;
    if constexpr (kBlocked) scale = job.scales[row * job.scales_stride + run];
    const Factors factors = factors_of<kFormat>(job, scale);
    float largest = 0, smallest = 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const std::uint8_t code = codes[i];
      sums.add(x[i], value_of<kFormat>(code) * factors.block * factors.tensor);
      if constexpr (kPacked)
        codes_met.add(code);
      else
        saturated += is_largest(kFormat, code) ? 1 : 0;
      largest = larger_magnitude(largest, fabsf(x[i]));
      smallest = smaller_magnitude(smallest, fabsf(x[i]));
    }
    if constexpr (kBlocked) {
      counts.add_one(kBlocks);
      if (smallest == 0) {
        counts.add_one(kZeroBlocks);
      } else {
        block_range = larger_magnitude(block_range, largest / smallest);
        counts.count_scale(kFormat, scale);
      }
    }
  }
  __syncwarp();
  if constexpr (kPacked) {
    counts.add_codes(codes_met);
    saturated = codes_met.of(7) + codes_met.of(15);
  }
  counts.add_of_warp(kSaturated, saturated);
  counts.add_elements(sums);
  write_tile(counts, sums.sums, sums.amin, block_range, partials[blockIdx.x]);
}

/// Calls f(integral_constant format, integral_constant run) for the formats that go this way; else false.
template <class F>
bool with_format(Format format, F&& f) {
  const auto call = [&]<Format kFormat, int kRun>() {
    f(std::integral_constant<Format, kFormat>{}, std::integral_constant<int, kRun>{});
    return true;
  };
  switch (format) {
    case Format::Nvfp4:
      return call.template operator()<Format::Nvfp4, 16>();
    case Format::Mxfp4:
      return call.template operator()<Format::Mxfp4, 32>();
    case Format::Mxfp8E4M3:
      return call.template operator()<Format::Mxfp8E4M3, 32>();
    case Format::Mxfp8E5M2:
      return call.template operator()<Format::Mxfp8E5M2, 32>();
    case Format::Fp8E4M3:
      return call.template operator()<Format::Fp8E4M3, 16>();
    case Format::Fp8E5M2:
      return call.template operator()<Format::Fp8E5M2, 16>();
    default:
      return false;
  }
}

RunJob job_of(const MeasureQuant& m, int run) {
  const Decoder d(decoding_of(m, {}));
  RunJob job{};
  job.codes = d.codes;
  job.scales = d.scales;
  job.x_stride = m.x_RC.stride(0);
  job.codes_stride = d.codes_stride;
  job.scales_stride = d.scales_stride;
  job.across = static_cast<std::uint32_t>(m.x_RC.size(1) / run);
  job.runs = static_cast<std::uint32_t>(m.x_RC.size(0)) * job.across;
  job.amax = d.amax;
  job.scale = d.scale;
  job.amax_factor = d.amax_factor;
  job.inverse_range = d.inverse_range;
  return job;
}

}  // namespace

bool runs_fit(const MeasureQuant& m) {
  bool fits = false;
  with_format(m.spec.format, [&](auto, auto run) {
    const std::int64_t rows = m.x_RC.size(0), cols = m.x_RC.size(1);
    const bool plain = m.spec.tile == Tile::Row && m.row_amax.empty() && m.x_RC.stride(1) == 1;
    const bool whole = cols > 0 && cols % run == 0 && rows * (cols / run) < (std::int64_t{1} << 31);
    const std::int64_t code_bytes = m.codes.empty() ? 0 : m.codes.stride(0);
    const bool x_wide = with_type(m.x_RC, [&](auto x) { return packs_fit<16>(x.data(), x.stride(0)); });
    // A run's codes are 8, 16 or 32 bytes.
    const bool codes_wide = info(m.spec.format).element_bits == 4 && run == 16
                                ? packs_fit<8>(m.codes.data(), code_bytes)
                                : packs_fit<16>(m.codes.data(), code_bytes);
    fits = plain && whole && !m.codes.empty() && x_wide && codes_wide;
  });
  return fits;
}

std::int64_t tiles_of_runs(const MeasureQuant& m) {
  std::int64_t tiles = 0;
  with_format(m.spec.format, [&](auto, auto run) {
    const std::int64_t runs = m.x_RC.size(0) * (m.x_RC.size(1) / run);
    tiles = blocks_for(runs, std::int64_t{kMeasureThreads} * (kElements / run));
  });
  return tiles;
}

void measure_runs(Stream& stream, const MeasureQuant& m, Partial* partials) {
  with_format(m.spec.format, [&](auto format, auto run) {
    RunJob job = job_of(m, run);
    with_type(m.x_RC, [&](auto x_RC) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(x_RC.data())>>;
      job.x = x_RC.data();
      launch(stream, "measure_quant", runs_kernel<T, format.value, run.value>,
             static_cast<unsigned>(tiles_of_runs(m)), kMeasureThreads, 0, job, partials);
    });
  });
}

}  // namespace nibble::cuda
