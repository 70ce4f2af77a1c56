// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw.h"
#include "ops/any_rows.cuh"

namespace nibble::cuda {
namespace {

__global__ void gate_update_kernel(StepRecord* record, float clip) {
  StepRecord& r = *record;
  const double norm = sqrt(r.grad_squares);
  r.grad_scale = clip > 0 ? static_cast<float>(fmin(1.0, clip / (norm + 1e-6))) : 1.0f;
  const bool finite = isfinite(r.loss_sum) && isfinite(r.grad_squares);
  if (!finite || r.fault >= 0) r.halted = 1;
}

constexpr int kThreads = 256;

/// The same for every element of a step.
struct Update {
  float *w = nullptr, *m = nullptr, *v = nullptr;
  const float* grad = nullptr;
  bf16* copy = nullptr;
  const StepRecord* record = nullptr;
  const std::uint8_t* decays = nullptr;
  const std::int32_t* starts = nullptr;
  float* amaxes = nullptr;
  int tensors = 0;
  std::int64_t first = 0;  ///< of these elements in the flat buffer
  std::int64_t N = 0;
  float beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};

template <int N>
__device__ __forceinline__ std::uint32_t largest_bits(const float (&x)[N]) {
  std::uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) most = max(most, magnitude_bits(x[k]));
  return most;
}

/// kEach elements, which share a decay flag. Every operation is rounded as the cpu rounds it, so that the
/// bits agree.
template <int kEach>
struct Elements {
  Stored<float, kEach> grad, m, v, w;

  __device__ __forceinline__ Elements(const Update& u, std::int64_t i) {
    grad.load(u.grad + i);
    m.load(u.m + i);
    v.load(u.v + i);
    w.load(u.w + i);
  }

  /// Gives the largest magnitude of the weights as they are afterwards.
  __device__ __forceinline__ std::uint32_t update(const Update& u, std::int64_t i) const {
    const float decay = u.decays == nullptr || u.decays[i / kDecayGroup] != 0 ? u.weight_decay : 0.0f;
    const StepRecord& r = *u.record;
    float new_m[kEach], new_v[kEach], new_w[kEach];
    if (r.halted != 0) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) new_w[k] = w[k];
      return largest_bits(new_w);
    }
    const float lr = r.lr, scale = r.grad_scale, inverse1 = r.inverse_correction1,
                inverse2 = r.inverse_correction2;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const float g = grad[k] * scale;
      new_m[k] = u.beta1 * m[k] + (1.0f - u.beta1) * g;
      new_v[k] = u.beta2 * v[k] + (1.0f - u.beta2) * g * g;
      const float mhat = new_m[k] * inverse1, vhat = new_v[k] * inverse2;
      new_w[k] = w[k] - lr * (mhat / (sqrtf(vhat) + u.eps) + decay * w[k]);
    }
    store_pack(u.m + i, new_m);
    store_pack(u.v + i, new_v);
    store_pack(u.w + i, new_w);
    if (u.copy != nullptr) store_pack(u.copy + i, new_w);
    return largest_bits(new_w);
  }
};

/// amaxes[tensor] becomes at least `bits`, rounded to BF16: the largest of rounded values is the rounded
/// largest value. Nobody waits for it: a look before, which would spare most of these, costs the block a
/// journey to the second cache.
__device__ __forceinline__ void raise(float* amaxes, std::int32_t tensor, std::uint32_t bits) {
  if (tensor < 0) return;
  const std::uint32_t rounded = float_bits(bf16::nearest(bits_float(bits)).value());
  atomicMax(reinterpret_cast<std::uint32_t*>(amaxes + tensor), rounded);
}

/// The tensor of this group: the last one that begins there or before. All lanes of a warp mostly read the
/// same few numbers of the first cache, while the weights are on their way.
__device__ __forceinline__ std::int32_t tensor_of(const Update& u, std::int64_t group) {
  int low = 0, high = u.tensors;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (u.starts[middle] <= group ? low : high) = middle;
  }
  return low;
}

/// Needs all threads of the block; those without elements have tensor -1. A block's elements may lie in any
/// number of tensors: a warp that is of one has one maximum, and the block one for each run of such warps; in
/// other warps each group of kDecayGroup elements raises its own.
template <int kEach>
__device__ __forceinline__ void raise_amaxes(float* amaxes, std::int32_t tensor, std::uint32_t bits) {
  constexpr std::uint32_t kAll = 0xFFFFFFFFu;
  constexpr int kWarps = kThreads / kWarp, kGroupThreads = kDecayGroup / kEach;
  __shared__ std::int32_t tensors[kWarps];
  __shared__ std::uint32_t largest[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (__all_sync(kAll, tensor == __shfl_sync(kAll, tensor, 0))) {
    bits = __reduce_max_sync(kAll, bits);
  } else {
#pragma unroll
    for (int offset = kGroupThreads / 2; offset > 0; offset /= 2)
      bits = max(bits, __shfl_xor_sync(kAll, bits, offset));
    if (lane % kGroupThreads == 0) raise(amaxes, tensor, bits);
    tensor = -1;
  }
  if (lane == 0) {
    tensors[warp] = tensor;
    largest[warp] = bits;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 1; i < kWarps; ++i) {
    if (tensors[i] == tensor) {
      bits = max(bits, largest[i]);
    } else {
      raise(amaxes, tensor, bits);
      tensor = tensors[i];
      bits = largest[i];
    }
  }
  raise(amaxes, tensor, bits);
}

/// Floor at 4.2 TB/s: reads grad, w, m, v, writes w, m, v and the copy: 30 bytes an element, 7.1 us a million
/// parameters; 1.2 G parameters: 8.6 ms. Amaxes add an atomic a block, 1.2 million of them in these 8.6 ms.
template <int kEach, bool kFindsAmaxes>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const Update u) {
  static_assert(kDecayGroup % kEach == 0);
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach;
  if constexpr (kFindsAmaxes) {
    std::int32_t tensor = -1;
    std::uint32_t most = 0;
    if (i < u.N) {
      const Elements<kEach> elements(u, i);
      tensor = tensor_of(u, (u.first + i) / kDecayGroup);  // while these are on their way
      most = elements.update(u, i);
    }
    raise_amaxes<kEach>(u.amaxes, tensor, most);
  } else {
    if (i < u.N) Elements<kEach>(u, i).update(u, i);
  }
}

template <int kEach>
void launch_adamw(Stream& stream, Update u, std::int64_t begin, std::int64_t end) {
  u.w += begin;
  u.m += begin;
  u.v += begin;
  u.grad += begin;
  if (u.copy != nullptr) u.copy += begin;
  if (u.decays != nullptr) u.decays += begin / kDecayGroup;
  u.first = begin;
  u.N = end - begin;
  launch(stream, "adamw", u.amaxes != nullptr ? adamw_kernel<kEach, true> : adamw_kernel<kEach, false>,
         dim3(blocks_for(u.N, kThreads * kEach)), dim3(kThreads), 0, u);
}

constexpr int kTile = 16384;  ///< elements of a partial sum: part of its meaning

struct Square {
  __device__ static double of(double x) { return x * x; }
};
struct Itself {
  __device__ static double of(double x) { return x; }
};

/// One block a tile. Thread i adds packs i, i + 256, ... in that order; then the threads are added pairwise.
/// Floor: 4 bytes an element, 0.95 us a million.
template <class F, int kPack>
__global__ void __launch_bounds__(kThreads) tile_sum_kernel(const float* x, std::int64_t N, double* partial) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int count = static_cast<int>(min(static_cast<std::int64_t>(kTile), N - begin));
  double sum = 0;
  const int whole = count / kPack * kPack;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x) * kPack; i < whole; i += kThreads * kPack) {
    Stored<float, kPack> v;
    v.load(x + begin + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum += F::of(v[k]);
  }
  const int rest = whole + static_cast<int>(threadIdx.x);
  if (rest < count) sum += F::of(x[begin + rest]);
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

constexpr int kTotalThreads = 1024;

__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(const double* partial, std::int64_t count, double* total) {
  double sum = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += kTotalThreads) sum += partial[i];
  sum = block_sum<kTotalThreads>(sum);
  if (threadIdx.x == 0) *total = sum;
}

template <class F>
void sum_of_tiles(Stream& stream, std::string_view op, const View<const float>& x_N, double* total) {
  const std::int64_t N = x_N.size(0);
  const unsigned tiles = blocks_for(N, kTile);
  const ArenaScope scope(stream.scratch());
  const View<double> partial = stream.scratch().take<double>(tiles);
  launch(stream, op, aligned(x_N.data()) ? tile_sum_kernel<F, 4> : tile_sum_kernel<F, 1>, dim3(tiles),
         dim3(kThreads), 0, x_N.data(), N, partial.data());
  launch(stream, op, total_kernel, dim3(1), dim3(kTotalThreads), 0, partial.data(),
         static_cast<std::int64_t>(tiles), total);
}

}  // namespace

void run(Stream& stream, const GateUpdate& g) {
  launch(stream, "gate_update", gate_update_kernel, dim3(1), dim3(1), 0, g.record, g.clip);
}

void run(Stream& stream, const AdamW& a) {
  Update u;
  u.w = a.w_N.data();
  u.m = a.m_N.data();
  u.v = a.v_N.data();
  u.grad = a.grad_N.data();
  u.copy = static_cast<bf16*>(a.copy_N.data());
  u.record = a.record;
  u.decays = a.decays_G.data();
  u.starts = a.starts_S.data();
  u.amaxes = a.amaxes_S.data();
  u.tensors = a.starts_S.empty() ? 0 : static_cast<int>(a.starts_S.size(0));
  u.beta1 = a.beta1;
  u.beta2 = a.beta2;
  u.eps = a.eps;
  u.weight_decay = a.weight_decay;
  const std::int64_t N = a.w_N.size(0);
  // The BF16 copy needs half the alignment.
  const bool packs = aligned(u.w) && aligned(u.m) && aligned(u.v) && aligned(u.grad) &&
                     reinterpret_cast<std::uintptr_t>(u.copy) % 8 == 0;
  const std::int64_t whole = packs ? N / kDecayGroup * kDecayGroup : 0;
  if (!a.amaxes_S.empty())
    stream.device().zero(a.amaxes_S.data(), static_cast<std::size_t>(a.amaxes_S.size(0)) * sizeof(float));
  launch_adamw<4>(stream, u, 0, whole);
  launch_adamw<1>(stream, u, whole, N);
}

void run(Stream& stream, const SumSquares& s) { sum_of_tiles<Square>(stream, "sum_squares", s.x_N, s.sum); }

void run(Stream& stream, const Sum& s) { sum_of_tiles<Itself>(stream, "sum", s.x_N, s.sum); }

}  // namespace nibble::cuda
