// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "backend/cuda/kernel.cuh"
#include "ops/quantize/rotate.h"
#include "quant/hadamard.h"

/// A thread a group of `size` neighbours. The quantisers make RHT-16 under fixed signs in their own
/// registers; this is for the other rotations, and for telemetry.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 128;

struct RotateJob {
  bool transpose;
  std::uint16_t sign_mask;
  RotationSigns signs;
  RandomKey random;
  std::int64_t rows, groups, filled;  ///< of the result; values of a row before the padding
  std::int64_t row_stride, stride;    ///< of x in the result's axes
  bf16* out;
  std::int64_t out_row_stride, out_stride;
  bool wide_out;  ///< a group lies in one piece, aligned
};

/// Floor: x once, the result once.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rotate_kernel(RotateJob job, const T* x) {
  const std::int64_t w = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (w >= job.rows * job.groups) return;
  // Neighbouring threads read neighbouring numbers of the source.
  const std::int64_t i = job.transpose ? w % job.rows : w / job.groups;
  const std::int64_t j = (job.transpose ? w / job.rows : w % job.groups) * N;
  float group[N];
#pragma unroll
  for (int k = 0; k < N; ++k)
    group[k] = j + k < job.filled ? nibble::to_float(x[i * job.row_stride + (j + k) * job.stride]) : 0.0f;
  const SignBits signs = rotation_signs(N, job.signs, job.sign_mask, job.random.resolved());
#pragma unroll
  for (int k = 0; k < N; ++k) group[k] = signs.negative(k) ? -group[k] : group[k];
#pragma unroll
  for (int distance = 1; distance < N; distance *= 2) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (k & distance) continue;
      const float low = group[k], high = group[k + distance];
      group[k] = low + high;
      group[k + distance] = low - high;
    }
  }
  const float factor = hadamard_factor(N);
#pragma unroll
  for (int k = 0; k < N; ++k) group[k] *= factor;
  bf16* const out = job.out + i * job.out_row_stride + j * job.out_stride;
  if (job.wide_out) return store_pack<N>(out, group);
#pragma unroll
  for (int k = 0; k < N; ++k) out[k * job.out_stride] = bf16::nearest(group[k]);
}

template <class T>
void launch_rotate(Stream& stream, const Rotate& r, const RotateJob& job, const T* x) {
  const auto blocks = blocks_for(job.rows * job.groups, kThreads);
  const auto with = [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    RotateJob sized = job;
    sized.wide_out = job.out_stride == 1 && packs_fit<kSize>(job.out, job.out_row_stride);
    launch(stream, "rotate", rotate_kernel<T, kSize>, blocks, kThreads, 0, sized, x);
  };
  switch (r.size) {
    case 2:
      return with(std::integral_constant<int, 2>{});
    case 4:
      return with(std::integral_constant<int, 4>{});
    case 8:
      return with(std::integral_constant<int, 8>{});
    case 16:
      return with(std::integral_constant<int, 16>{});
    case 32:
      return with(std::integral_constant<int, 32>{});
    case 64:
      return with(std::integral_constant<int, 64>{});
    default:
      return with(std::integral_constant<int, 128>{});  // check() lets no other size pass
  }
}

}  // namespace

void run(Stream& stream, const Rotate& r) {
  const Layout& x = r.x_RC.layout();
  RotateJob job{};
  job.transpose = r.transpose;
  job.sign_mask = r.sign_mask;
  job.signs = r.signs;
  job.random = r.random;
  job.rows = r.out.size(0);
  job.groups = r.out.size(1) / r.size;
  job.filled = x.size[r.transpose ? 0 : 1];
  job.row_stride = x.stride[r.transpose ? 1 : 0];
  job.stride = x.stride[r.transpose ? 0 : 1];
  job.out = r.out.data();
  job.out_row_stride = r.out.stride(0);
  job.out_stride = r.out.stride(1);
  with_type(r.x_RC, [&](auto x_RC) {
    using T = std::remove_const_t<std::remove_reference_t<decltype(*x_RC.data())>>;
    launch_rotate<T>(stream, r, job, x_RC.data());
  });
}

}  // namespace nibble::cuda
