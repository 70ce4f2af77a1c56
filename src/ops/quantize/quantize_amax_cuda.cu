// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/quantize/quantize_matrix_cuda.cuh"
#include "ops/quantize/quantize_words_cuda.cuh"

/// The first pass: the largest magnitude as an integer, so that the order of the elements does not matter and
/// a NaN or an infinity comes through.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

/// Maxima while blocks arrive. Between kernels all of it is zero: the last block leaves it so.
struct Meeting {
  std::uint32_t bits[2];
  unsigned arrived;
};

class MeetingPlace {
 public:
  explicit MeetingPlace(CudaDevice& device) : memory_(device, sizeof(Meeting)) {}
  Meeting* get() const { return memory_.as<Meeting>(); }

 private:
  Buffer memory_;
};

__device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) { return a < b ? b : a; }

__device__ std::uint32_t block_largest(std::uint32_t bits) {
  __shared__ std::uint32_t parts[kThreads / kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    bits = larger(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, offset));
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = bits;
  __syncthreads();
  bits = 0;
#pragma unroll
  for (int i = 0; i < kThreads / kWarp; ++i) bits = larger(bits, parts[i]);
  __syncthreads();
  return bits;
}

/// Ends an amax kernel: every thread of every block comes here once, the last block publishes.
__device__ void meet(Meeting* place, std::uint32_t first_bits, std::uint32_t second_bits,
                     const Publish& first, const Publish& second) {
  first_bits = block_largest(first_bits);
  second_bits = block_largest(second_bits);
  if (threadIdx.x != 0) return;
  atomicMax(&place->bits[0], first_bits);
  atomicMax(&place->bits[1], second_bits);
  __threadfence();
  // Counts up to the number of blocks and starts again at 0 by itself.
  if (atomicInc(&place->arrived, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence();
  publish(first, bits_float(atomicExch(&place->bits[0], 0u)));
  publish(second, bits_float(atomicExch(&place->bits[1], 0u)));
}

/// Aligned rows under NonFinite::Detect; published for `other` too, where that asks for it. A thread reads 16
/// bytes of each of four rows at a time.
/// Floor: the source once, 268 MB = 64 us at 4.2 TB/s for BF16 [16384, 8192].
template <class T>
__global__ void __launch_bounds__(kThreads) amax_kernel(QuantizeJob job, Publish other, Meeting* place) {
  constexpr int kWide = 16 / sizeof(T);
  const auto across = static_cast<std::uint32_t>(job.x_cols / kWide);
  const auto items = static_cast<std::uint32_t>((job.x_rows + 3) / 4) * across;
  std::uint32_t most = 0;
  for (std::uint32_t w = blockIdx.x * kThreads + threadIdx.x; w < items; w += gridDim.x * kThreads) {
    const std::int64_t row = std::int64_t{w / across} * 4;
    const T* p = static_cast<const T*>(job.x) + row * job.x_stride + std::int64_t{w % across} * kWide;
    uint4 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = make_uint4(0, 0, 0, 0);
      if (row + i < job.x_rows) words[i] = *reinterpret_cast<const uint4*>(p + i * job.x_stride);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t all[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
      for (std::uint32_t word : all) {
        if constexpr (sizeof(T) == 4)
          most = larger(most, word & 0x7FFFFFFFu);
        else
          most = max_halves(most, word & kMagnitudes);
      }
    }
  }
  if constexpr (sizeof(T) == 2) most = largest_half(most) << 16;
  meet(place, most, most, job.publish, other);
}

/// Any source, rotation and policy, a thread a block of 16.
template <class T>
__global__ void __launch_bounds__(kThreads) any_amax_kernel(QuantizeJob job, Publish other, Meeting* place) {
  const DeviceMatrix<T> m(job);
  const std::int64_t blocks = (job.cols + 15) / 16, items = job.rows * blocks;
  float amax = 0;
  for (std::int64_t w = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; w < items;
       w += std::int64_t{gridDim.x} * kThreads) {
    // Neighbouring threads read neighbouring numbers of the source.
    const std::int64_t i = job.transpose ? w % job.rows : w / blocks;
    const std::int64_t b = job.transpose ? w / job.rows : w % blocks;
    float x[16];
    m.load(i, b * 16, x);
#pragma unroll
    for (int k = 0; k < 16; ++k) amax = amax_step(amax, x[k], job.spec.non_finite);
  }
  meet(place, float_bits(amax), float_bits(amax), job.publish, other);
}

/// Of one BF16 matrix as it lies and of its transpose after the rotation; a warp reads 16 tokens x 64
/// features at a time, a lane two columns. The factor 1/4 and the rounding to BF16 are monotonic, so they
/// wait until the maximum is known. Floor: the source once, as above.
__global__ void __launch_bounds__(kThreads)
    both_amaxes_kernel(QuantizeJob plain, QuantizeJob rotated, Meeting* place) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t across = (rotated.x_cols + 63) / 64, items = rotated.x_rows / 16 * across;
  std::uint32_t most = 0, most_rotated = 0;
  for (std::int64_t w = std::int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp; w < items;
       w += std::int64_t{gridDim.x} * (kThreads / kWarp)) {
    const std::int64_t col = w % across * 64 + 2 * lane;
    if (col >= rotated.x_cols) continue;
    const bf16* p = static_cast<const bf16*>(rotated.x) + w / across * 16 * rotated.x_stride + col;
    std::uint32_t word[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) word[k] = *reinterpret_cast<const std::uint32_t*>(p + k * rotated.x_stride);
#pragma unroll
    for (int k = 0; k < 16; ++k) most = max_halves(most, word[k] & kMagnitudes);
#pragma unroll
    for (int k = 0; k < 16; ++k) word[k] ^= (rotated.spec.sign_mask >> k & 1) != 0 ? kSigns : 0u;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[16];
#pragma unroll
      for (int k = 0; k < 16; ++k) x[k] = half_value(word[k], half);
      butterflies16<false>(x);
#pragma unroll
      for (int k = 0; k < 16; ++k) most_rotated = larger(most_rotated, magnitude_bits(x[k]));
    }
  }
  const float rounded = bf16::nearest(bits_float(most_rotated) * 0.25f).value();
  meet(place, largest_half(most) << 16, float_bits(rounded), plain.publish, rotated.publish);
}

__global__ void publish_kernel(QuantizeJob job) { publish(job.publish, *job.amax); }

/// Enough blocks to fill the GPU, and no more: each loops.
unsigned blocks_of(Stream& stream, std::int64_t items, std::int64_t per_block) {
  const std::int64_t most = std::int64_t{8} * cuda_device(stream).multiprocessors();
  return static_cast<unsigned>(std::clamp<std::int64_t>((items + per_block - 1) / per_block, 1, most));
}

Meeting* meeting(Stream& stream) { return cuda_device(stream).attached<MeetingPlace>().get(); }

template <class T>
bool reads_wide(const QuantizeJob& job) {
  constexpr std::int64_t kWide = 16 / sizeof(T);
  return job.spec.rotation == 0 && job.spec.non_finite == NonFinite::Detect && job.x_cols % kWide == 0 &&
         (job.x_rows + 3) / 4 * (job.x_cols / kWide) < (std::int64_t{1} << 30) &&
         packs_fit<kWide>(static_cast<const T*>(job.x), job.x_stride);
}

void find_for(Stream& stream, const QuantizeJob& job, const Publish& other) {
  with_source(job, [&](auto t) {
    using T = decltype(t);
    if (reads_wide<T>(job)) {
      const std::int64_t items = (job.x_rows + 3) / 4 * (job.x_cols * std::int64_t{sizeof(T)} / 16);
      launch(stream, "quantize", amax_kernel<T>, blocks_of(stream, items, kThreads), kThreads, 0, job, other,
             meeting(stream));
    } else {
      const std::int64_t items = job.rows * ((job.cols + 15) / 16);
      launch(stream, "quantize", any_amax_kernel<T>, blocks_of(stream, items, kThreads), kThreads, 0, job,
             other, meeting(stream));
    }
  });
}

}  // namespace

void find_amax(Stream& stream, const QuantizeJob& job) {
  if (job.spec.rotation != 0 && tiles_fit(job)) {
    QuantizeJob plain = job;
    plain.publish = {};
    return find_both_amaxes(stream, plain, job);
  }
  find_for(stream, job, {});
}

void find_common_amax(Stream& stream, const QuantizeJob& job, const QuantizeJob& other) {
  find_for(stream, job, other.publish);
}

void find_both_amaxes(Stream& stream, const QuantizeJob& plain, const QuantizeJob& rotated) {
  const std::int64_t items = rotated.x_rows / 16 * ((rotated.x_cols + 63) / 64);
  launch(stream, "quantize", both_amaxes_kernel, blocks_of(stream, items, kThreads / kWarp), kThreads, 0,
         plain, rotated, meeting(stream));
}

void publish_given(Stream& stream, const QuantizeJob& job) {
  launch(stream, "quantize", publish_kernel, 1, 1, 0, job);
}

}  // namespace nibble::cuda
