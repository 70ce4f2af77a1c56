// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backend/cuda/kernel.cuh"
#include "ops/attention/quantized_lines.h"
#include "quant/amax.h"

// Right before fast: sums in FP64, a block a query (or a key), rows in global memory. Bounded by FP64
// arithmetic and the reading of operands through the caches, many times slower than attention's own kernels;
// on cards with few FP64 units slower still.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 128;
/// Blocks that walk over the queries: what is in flight decides the memory of rows.
constexpr std::int64_t kRowBlocks = 1024;
/// Bytes of P and ds kept at a time by the backward pass, unless one group of one sequence needs more.
constexpr std::int64_t kMatrixLimit = std::int64_t{256} << 20;

struct DeviceOperand {
  const void* data = nullptr;
  std::int64_t token = 0, head = 0, channel = 0;  ///< strides, in elements
  bool is_bf16 = false;
  const float* scale = nullptr;
  Format format = Format::Bf16;

  __device__ double get(std::int64_t t, std::int64_t h, std::int64_t d) const {
    const std::int64_t at = t * token + h * head + d * channel;
    return is_bf16 ? static_cast<const bf16*>(data)[at].value() : static_cast<const float*>(data)[at];
  }
};

struct DeviceResult {
  void* data = nullptr;
  std::int64_t token = 0, head = 0, channel = 0;
  bool is_bf16 = false;

  __device__ void set(float x, std::int64_t t, std::int64_t h, std::int64_t d) const {
    const std::int64_t at = t * token + h * head + d * channel;
    if (is_bf16)
      static_cast<bf16*>(data)[at] = bf16::nearest(x);
    else
      static_cast<float*>(data)[at] = x;
  }
};

DeviceOperand on_device(const AttentionOperand& x) {
  const ConstRealView& v = x.x_THD;
  return {v.data(), v.stride(0), v.stride(1), v.stride(2), v.dtype() == DType::BF16, x.scale, x.format};
}
DeviceResult on_device(const RealView& v) {
  return {v.data(), v.stride(0), v.stride(1), v.stride(2), v.dtype() == DType::BF16};
}

__device__ float inverse_range_of(Format a, Format b) {
  const int operands = (a == Format::Nvfp4 ? 1 : 0) + (b == Format::Nvfp4 ? 1 : 0);
  return operands == 2 ? nvfp4::kInverseRangeSquared : operands == 1 ? nvfp4::kInverseRange : 1.0f;
}
__device__ float alpha_at(const DeviceOperand& a, const DeviceOperand& b) {
  return nibble::alpha_of(a.scale, b.scale, inverse_range_of(a.format, b.format));
}
__device__ float alpha_at(Format format, const LineScale& scale, const DeviceOperand& b) {
  const float own = scale.of_product(format);
  return nibble::alpha_of(&own, b.scale, inverse_range_of(format, b.format));
}

struct Problem {
  std::int64_t S = 0, D = 0, tokens = 0, heads = 0, groups = 0, per_group = 0;
  float scale = 1;
  DeviceOperand q, k, v;  ///< v forward alone
  Format pv = Format::Bf16, ds = Format::Bf16;
  float* lse = nullptr;
  std::int64_t lse_head = 0, lse_token = 0;
  DeviceResult out;
  // Backward: units first_unit to first_unit + units, a unit being a group of one sequence.
  DeviceOperand dout_p, v_p, dout_v, k_q, q_k;
  DeviceResult dq, dk, dv;
  const float* amax = nullptr;                      ///< of ds
  float *p_matrix = nullptr, *ds_matrix = nullptr;  ///< [units, per_group, S, S]
  std::int64_t first_unit = 0, units = 0;
};

/// Memory of one block's rows.
struct Rows {
  double *scores, *dp;
  float *p, *ds;

  __device__ Rows(void* memory, std::int64_t S) {
    double* at = static_cast<double*>(memory) + blockIdx.x * 3 * S;
    scores = at;
    dp = at + S;
    p = reinterpret_cast<float*>(at + 2 * S);
    ds = p + S;
  }
};
std::size_t row_bytes(std::int64_t blocks, std::int64_t S) {
  return static_cast<std::size_t>(blocks * 3 * S) * sizeof(double);
}

__device__ double block_max(double x) {
  __shared__ double parts[kThreads];
  parts[threadIdx.x] = x;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half && parts[threadIdx.x] < parts[threadIdx.x + half])
      parts[threadIdx.x] = parts[threadIdx.x + half];
    __syncthreads();
  }
  const double most = parts[0];
  __syncthreads();
  return most;
}

/// out[s] = factor * row t of x . row first + s of y, s < count
__device__ void dots(const Problem& a, const DeviceOperand& x, std::int64_t t, std::int64_t h,
                     const DeviceOperand& y, std::int64_t first, std::int64_t g, std::int64_t count,
                     float factor, double* out) {
  for (std::int64_t s = threadIdx.x; s < count; s += kThreads) {
    double dot = 0;
    for (std::int64_t d = 0; d < a.D; ++d) dot += x.get(t, h, d) * y.get(first + s, g, d);
    out[s] = factor * dot;
  }
}

__device__ void quantize_row(Format format, const LineScale& scale, float* x, std::int64_t n) {
  if (!is_quantized(format)) return;
  const int block = line_block(format);
  for (std::int64_t i = std::int64_t{threadIdx.x} * block; i < n; i += std::int64_t{kThreads} * block)
    quantize_line_block(format, scale, x + i, 1, n - i < block ? n - i : block);
}

/// to[t, h] = factor * sum over s < count of row[s] y[first + s, g]
__device__ void multiply_row(const Problem& a, const float* row, const DeviceOperand& y, std::int64_t first,
                             std::int64_t g, std::int64_t count, float factor, const DeviceResult& to,
                             std::int64_t t, std::int64_t h) {
  for (std::int64_t d = threadIdx.x; d < a.D; d += kThreads) {
    double sum = 0;
    for (std::int64_t s = 0; s < count; ++s) sum += double{row[s]} * y.get(first + s, g, d);
    to.set(static_cast<float>(factor * sum), t, h, d);
  }
}

__global__ void __launch_bounds__(kThreads) forward_kernel(const Problem a, void* memory) {
  const Rows rows(memory, a.S);
  const LineScale p_scale = probability_scale(a.pv);
  const float score_factor = a.scale * alpha_at(a.q, a.k), out_factor = alpha_at(a.pv, p_scale, a.v);
  for (std::int64_t line = blockIdx.x; line < a.tokens * a.heads; line += gridDim.x) {
    const std::int64_t t = line / a.heads, h = line % a.heads, g = h / a.per_group;
    const std::int64_t count = t % a.S + 1, first = t + 1 - count;
    dots(a, a.q, t, h, a.k, first, g, count, score_factor, rows.scores);
    __syncthreads();
    double largest = -INFINITY, sum = 0;
    for (std::int64_t s = threadIdx.x; s < count; s += kThreads)
      if (largest < rows.scores[s]) largest = rows.scores[s];
    largest = block_max(largest);
    for (std::int64_t s = threadIdx.x; s < count; s += kThreads) sum += exp(rows.scores[s] - largest);
    const float lse = static_cast<float>(largest + log(block_sum<kThreads>(sum)));
    if (threadIdx.x == 0) a.lse[h * a.lse_head + t * a.lse_token] = lse;
    for (std::int64_t s = threadIdx.x; s < count; s += kThreads)
      rows.p[s] = static_cast<float>(exp(rows.scores[s] - lse));
    __syncthreads();
    quantize_row(a.pv, p_scale, rows.p, count);
    __syncthreads();
    multiply_row(a, rows.p, a.v, first, g, count, out_factor, a.out, t, h);
    __syncthreads();
  }
}

/// P and ds of the queries of some units, and their dq. With kAmax nothing but the largest magnitude of ds,
/// whose bits order as integers do, so that the order of the blocks is of no matter.
template <bool kAmax>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const Problem a, void* memory, std::uint32_t* amax_bits) {
  const Rows rows(memory, a.S);
  const LineScale p_scale = probability_scale(a.pv);
  const LineScale ds_scale = LineScale::from_amax(a.ds, kAmax || a.amax == nullptr ? 0.0f : *a.amax);
  const float score_factor = a.scale * alpha_at(a.q, a.k), dp_factor = alpha_at(a.dout_p, a.v_p);
  const float dq_factor = a.scale * alpha_at(a.ds, ds_scale, a.k_q);
  for (std::int64_t line = blockIdx.x; line < a.units * a.per_group * a.S; line += gridDim.x) {
    const std::int64_t unit = a.first_unit + line / (a.per_group * a.S), g = unit % a.groups;
    const std::int64_t first = unit / a.groups * a.S, t = first + line % a.S, count = line % a.S + 1;
    const std::int64_t h = g * a.per_group + line / a.S % a.per_group;
    dots(a, a.q, t, h, a.k, first, g, count, score_factor, rows.scores);
    dots(a, a.dout_p, t, h, a.v_p, first, g, count, dp_factor, rows.dp);
    const float lse = a.lse[h * a.lse_head + t * a.lse_token];
    double mean = 0;
    for (std::int64_t s = threadIdx.x; s < count; s += kThreads) {
      rows.p[s] = static_cast<float>(exp(rows.scores[s] - lse));
      mean += double{rows.p[s]} * rows.dp[s];
    }
    mean = block_sum<kThreads>(mean);
    float most = 0;
    for (std::int64_t s = threadIdx.x; s < count; s += kThreads) {
      rows.ds[s] = static_cast<float>(rows.p[s] * (rows.dp[s] - mean));
      most = amax_keeping_nan(most, rows.ds[s]);
    }
    if constexpr (kAmax) {
      atomicMax(amax_bits, float_bits(most));
      continue;
    }
    __syncthreads();
    quantize_row(a.pv, p_scale, rows.p, count);
    __syncthreads();
    float *p_line = a.p_matrix + line * a.S, *ds_line = a.ds_matrix + line * a.S;
    for (std::int64_t s = threadIdx.x; s < a.S; s += kThreads) {
      p_line[s] = s < count ? rows.p[s] : 0.0f;
      ds_line[s] = s < count ? rows.ds[s] : 0.0f;
    }
    __syncthreads();
    quantize_row(a.ds, ds_scale, rows.ds, count);
    __syncthreads();
    multiply_row(a, rows.ds, a.k_q, first, g, count, dq_factor, a.dq, t, h);
    __syncthreads();
  }
}

/// ds along the queries, in place: a thread a block of a column.
__global__ void __launch_bounds__(kThreads) columns_kernel(const Problem a, std::int64_t columns) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= columns) return;
  const int block = line_block(a.ds);
  const std::int64_t s = i % a.S, blocks = (a.S + block - 1) / block, b = i / a.S % blocks;
  const std::int64_t head = i / a.S / blocks;
  const LineScale ds_scale = LineScale::from_amax(a.ds, a.amax == nullptr ? 0.0f : *a.amax);
  const std::int64_t left = a.S - b * block;
  quantize_line_block(a.ds, ds_scale, a.ds_matrix + (head * a.S + b * block) * a.S + s, a.S,
                      left < block ? left : block);
}

/// dk and dv of one key: the heads of its group in order, the queries in order.
__global__ void __launch_bounds__(kThreads) keys_kernel(const Problem a) {
  const std::int64_t unit = a.first_unit + blockIdx.x / a.S, g = unit % a.groups;
  const std::int64_t first = unit / a.groups * a.S, s = blockIdx.x % a.S;
  const LineScale ds_scale = LineScale::from_amax(a.ds, a.amax == nullptr ? 0.0f : *a.amax);
  const float dk_factor = a.scale * alpha_at(a.ds, ds_scale, a.q_k);
  const float dv_factor = alpha_at(a.pv, probability_scale(a.pv), a.dout_v);
  const std::int64_t unit_lines = blockIdx.x / a.S * a.per_group * a.S;
  for (std::int64_t d = threadIdx.x; d < a.D; d += kThreads) {
    double dk = 0, dv = 0;
    for (std::int64_t i = 0; i < a.per_group; ++i)
      for (std::int64_t t = s; t < a.S; ++t) {
        const std::int64_t at = (unit_lines + i * a.S + t) * a.S + s, h = g * a.per_group + i;
        dk += double{a.ds_matrix[at]} * a.q_k.get(first + t, h, d);
        dv += double{a.p_matrix[at]} * a.dout_v.get(first + t, h, d);
      }
    a.dk.set(static_cast<float>(dk_factor * dk), first + s, g, d);
    a.dv.set(static_cast<float>(dv_factor * dv), first + s, g, d);
  }
}

__global__ void note_kernel(const float* amax, std::int64_t* fault, std::int64_t fault_id) {
  note_fault(NonFinite::Detect, *amax, fault, fault_id);
}

template <class Args>
Problem problem_of(const Args& args) {
  Problem a;
  a.S = args.seq_len;
  a.D = args.q.x_THD.size(2);
  a.tokens = args.q.x_THD.size(0);
  a.heads = args.q.x_THD.size(1);
  a.groups = args.k.x_THD.size(1);
  a.per_group = a.heads / a.groups;
  a.scale = args.scale;
  a.q = on_device(args.q);
  a.k = on_device(args.k);
  a.pv = args.pv;
  a.lse = const_cast<float*>(args.lse_HT.data());
  a.lse_head = args.lse_HT.stride(0);
  a.lse_token = args.lse_HT.stride(1);
  return a;
}

unsigned row_blocks(std::int64_t lines) { return static_cast<unsigned>(std::min(lines, kRowBlocks)); }

/// Finds the amax of all of ds into memory of the caller's scope.
float* amax_of_ds(Stream& stream, Problem a, void* memory) {
  float* amax = stream.scratch().take<float>(1).data();
  stream.device().zero(amax, sizeof(float));
  a.first_unit = 0;
  a.units = a.tokens / a.S * a.groups;
  launch(stream, "quantized_attention_backward", rows_kernel<true>, row_blocks(a.tokens * a.heads), kThreads,
         0, a, memory, reinterpret_cast<std::uint32_t*>(amax));
  return amax;
}

}  // namespace

void run(Stream& stream, const QuantizedAttention& args) {
  if (args.q.x_THD.numel() == 0) return;
  Problem a = problem_of(args);
  a.v = on_device(args.v);
  a.out = on_device(args.out_THD);
  const ArenaScope scope(stream.scratch());
  const unsigned blocks = row_blocks(a.tokens * a.heads);
  void* memory = stream.scratch().take_bytes(row_bytes(blocks, a.S));
  launch(stream, "quantized_attention", forward_kernel, blocks, kThreads, 0, a, memory);
}

void run(Stream& stream, const QuantizedAttentionBackward& args) {
  if (args.q.x_THD.numel() == 0) return;
  Problem a = problem_of(args);
  a.ds = args.ds;
  a.dout_p = on_device(args.dout_p);
  a.v_p = on_device(args.v_p);
  a.dout_v = on_device(args.dout_v);
  a.k_q = on_device(args.k_q);
  a.q_k = on_device(args.q_k);
  a.dq = on_device(args.dq_THD);
  a.dk = on_device(args.dk_TGD);
  a.dv = on_device(args.dv_TGD);
  const ArenaScope scope(stream.scratch());
  void* memory = stream.scratch().take_bytes(row_bytes(row_blocks(a.tokens * a.heads), a.S));
  if (needs_amax(a.ds)) {
    a.amax = amax_of_ds(stream, a, memory);
    launch(stream, "quantized_attention_backward", note_kernel, 1, 1, 0, a.amax, args.fault, args.fault_id);
  }
  const std::int64_t units = a.tokens / a.S * a.groups, unit_floats = a.per_group * a.S * a.S;
  const std::int64_t fit = kMatrixLimit / (2 * unit_floats * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t at_once = std::clamp<std::int64_t>(fit, 1, units);
  a.p_matrix = stream.scratch().take<float>(at_once * unit_floats).data();
  a.ds_matrix = stream.scratch().take<float>(at_once * unit_floats).data();
  for (a.first_unit = 0; a.first_unit < units; a.first_unit += at_once) {
    a.units = std::min(at_once, units - a.first_unit);
    launch(stream, "quantized_attention_backward", rows_kernel<false>,
           row_blocks(a.units * a.per_group * a.S), kThreads, 0, a, memory, nullptr);
    const int block = line_block(a.ds);
    const std::int64_t columns = a.units * a.per_group * ((a.S + block - 1) / block) * a.S;
    if (is_quantized(a.ds))
      launch(stream, "quantized_attention_backward", columns_kernel, blocks_for(columns, kThreads), kThreads,
             0, a, columns);
    launch(stream, "quantized_attention_backward", keys_kernel, static_cast<unsigned>(a.units * a.S),
           kThreads, 0, a);
  }
}

}  // namespace nibble::cuda
