// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/any_rows.cuh"
#include "ops/attention/rope.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

struct Turn {
  void* x = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
  const float *cos = nullptr, *sin = nullptr;
  std::int64_t cos_stride = 0, sin_stride = 0;
  std::int64_t T = 0, seq_len = 1;
  int H = 0, half = 0;
  float sign = 1;
};

/// A block has blockDim.y tokens; the threads of one share its heads and pairs. In place: a thread reads both
/// halves of its pairs before it writes them.
///
/// Floor at T = 16384, 16 + 8 heads of 128 and 4.2 TB/s, BF16: 4 bytes an element of q and k, 201 MB, 48 us;
/// the table comes from the L2 cache.
template <class T, int kPack>
__global__ void __launch_bounds__(kThreads) rope_kernel(const Turn r) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (t >= r.T) return;
  const std::int64_t position = static_cast<std::uint32_t>(t) % static_cast<std::uint32_t>(r.seq_len);
  const float *cos = r.cos + position * r.cos_stride, *sin = r.sin + position * r.sin_stride;
  T* token = static_cast<T*>(r.x) + t * r.token_stride;
  const unsigned packs = static_cast<unsigned>(r.half / kPack), count = packs * static_cast<unsigned>(r.H);
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
    const unsigned head = i / packs, f = i % packs * kPack;
    T* at = token + head * r.head_stride + f;
    Stored<T, kPack> a, b;
    Stored<float, kPack> c, s;
    a.load(at);
    b.load(at + r.half);
    c.load(cos + f);
    s.load(sin + f);
    float x[kPack], y[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float turn = s[k] * r.sign;
      x[k] = a[k] * c[k] - b[k] * turn;
      y[k] = b[k] * c[k] + a[k] * turn;
    }
    store_pack(at, x);
    store_pack(at + r.half, y);
  }
}

template <class T, int kPack>
void launch_rope(Stream& stream, const Turn& r) {
  // Whole warps a token, as few as its packs ask for: 24 heads of 64 are three warps.
  const int warps = (r.half / kPack * r.H + kWarp - 1) / kWarp;
  const int width = std::min(warps * kWarp, kThreads), tokens = kThreads / width;
  launch(stream, "rope", rope_kernel<T, kPack>, dim3(blocks_for(r.T, tokens)),
         dim3(static_cast<unsigned>(width), static_cast<unsigned>(tokens)), 0, r);
}

}  // namespace

void run(Stream& stream, const Rope& a) {
  const RealView& x = a.x_THD;
  const int D = static_cast<int>(x.size(2));
  Turn r;
  r.x = x.data();
  r.token_stride = x.stride(0);
  r.head_stride = x.stride(1);
  r.cos = a.cos_SF.data();
  r.sin = a.sin_SF.data();
  r.cos_stride = a.cos_SF.stride(0);
  r.sin_stride = a.sin_SF.stride(0);
  r.T = x.size(0);
  r.seq_len = a.seq_len;
  r.H = static_cast<int>(x.size(1));
  r.half = D / 2;
  r.sign = a.inverse ? -1.0f : 1.0f;
  if (r.T == 0 || r.H == 0 || r.half == 0) return;
  const bool packs = r.half % 8 == 0 && aligned(x.data()) && r.token_stride % 8 == 0 &&
                     r.head_stride % 8 == 0 && in_packs<4>(ConstRealView(a.cos_SF), r.half) &&
                     in_packs<4>(ConstRealView(a.sin_SF), r.half);
  if (x.dtype() == DType::BF16)
    packs ? launch_rope<bf16, 8>(stream, r) : launch_rope<bf16, 1>(stream, r);
  else
    packs ? launch_rope<float, 4>(stream, r) : launch_rope<float, 1>(stream, r);
}

}  // namespace nibble::cuda
