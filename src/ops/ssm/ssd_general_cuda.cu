// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/ssm/ssd_cuda.cuh"

/// The recurrence as it is written, for every shape, type and stride that `check` accepts: FP32, one token
/// after another, in parallel over sequences, heads and (forward) channels. A state element belongs to one
/// lane, so states need no barrier; they lie in scratch memory, in reach of the first cache.
namespace nibble::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
/// Backward keeps the state before each of these many tokens of a chunk, and goes over them once more.
constexpr std::int64_t kSpan = 16;

struct Problem {
  DeviceIn x, b, c;
  SsdStepRule rule;
  DeviceFloats<const float> d_H;
  std::int64_t heads, groups, width, state, seq_len, chunk, sequences, chunks;

  template <class Args>
  explicit Problem(const Args& a)
      : x(a.x_THP),
        b(a.b_TGN),
        c(a.c_TGN),
        rule(a),
        d_H(a.d_H),
        heads(a.x_THP.size(1)),
        groups(a.b_TGN.size(1)),
        width(a.x_THP.size(2)),
        state(a.b_TGN.size(2)),
        seq_len(a.seq_len),
        chunk(a.chunk),
        sequences(a.x_THP.size(0) / a.seq_len),
        chunks(chunks_of(a.seq_len, a.chunk)) {}
  __device__ std::int64_t group_of(std::int64_t h) const { return h / (heads / groups); }
};

struct Step {
  float dt, slope, a, decay;
  __device__ Step(const Problem& p, std::int64_t t, std::int64_t h) {
    const SsdStep step = ssd_step(p.rule, t, h);
    dt = step.dt;
    slope = step.slope;
    a = ssd_slope_a(p.rule.a_log_H(h));
    decay = expf(dt * a);
  }
};

/// One warp a sequence, head and channel. states [sequences, H, P, N] are scratch, kept is the op's result.
__global__ void __launch_bounds__(kThreads) forward(Problem p, DeviceOut y, float* kept, float* states) {
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (warp >= p.sequences * p.heads * p.width) return;
  const std::int64_t c = warp % p.width, h = warp / p.width % p.heads, sequence = warp / (p.width * p.heads);
  const std::int64_t g = p.group_of(h);
  float* state = states + warp * p.state;
  for (std::int64_t n = lane; n < p.state; n += kWarp) state[n] = 0;
  for (std::int64_t within = 0; within < p.seq_len; ++within) {
    const std::int64_t t = sequence * p.seq_len + within;
    if (within % p.chunk == 0) {
      const std::int64_t row = sequence * p.chunks + within / p.chunk;
      float* to = kept + ((row * p.heads + h) * p.width + c) * p.state;
      for (std::int64_t n = lane; n < p.state; n += kWarp) to[n] = state[n];
    }
    const Step step(p, t, h);
    const float x = p.x.get(t, h, c), dtx = step.dt * x;
    float sum = 0;
    for (std::int64_t n = lane; n < p.state; n += kWarp) {
      const float s = fmaf(dtx, p.b.get(t, g, n), step.decay * state[n]);
      state[n] = s;
      sum = fmaf(s, p.c.get(t, g, n), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) y.set(fmaf(p.d_H(h), x, sum), t, h, c);
  }
}

/// Scratch of one block of the backward pass, in floats.
struct Regions {
  std::int64_t size, spans, checkpoints, inside, grad, part, floats;

  explicit Regions(const Problem& p)
      : size(p.width * p.state),
        spans((std::min(p.chunk, p.seq_len) + kSpan - 1) / kSpan),
        checkpoints(0),
        inside(spans * size),
        grad(inside + (kSpan + 1) * size),
        part(grad + size),
        floats(part + 2 * kWarps * p.state) {}
};

struct Gradients {
  DeviceIn dy;
  DeviceOut dx, ddt;
  const float* kept;
  float *db, *dc;  ///< [T, H, N]: of one head
  float* params;   ///< [sequences, H, 3]
};

/// One block: the backward pass of one head in one sequence. Warp w has the channels w, w + kWarps, ...
struct Block {
  const Problem& p;
  const Regions& layout;
  const Gradients& out;
  float* scratch;
  std::int64_t h, g, sequence;
  int warp, lane;

  /// Calls f(channel, n, place in a state) for every element of this lane.
  template <class F>
  __device__ void for_each(F f) const {
    for (std::int64_t c = warp; c < p.width; c += kWarps)
      for (std::int64_t n = lane; n < p.state; n += kWarp) f(c, n, c * p.state + n);
  }
  __device__ float* checkpoint(std::int64_t span) const {
    return scratch + layout.checkpoints + span * layout.size;
  }
  __device__ float* inside(std::int64_t i) const { return scratch + layout.inside + i * layout.size; }

  __device__ void advance(const float* from, float* to, std::int64_t t) const {
    const Step step(p, t, h);
    for_each([&](std::int64_t c, std::int64_t n, std::int64_t at) {
      to[at] = fmaf(step.dt * p.x.get(t, h, c), p.b.get(t, g, n), step.decay * from[at]);
    });
  }
  /// inside(0) = the state before the chunk; then the state before every span of the chunk.
  __device__ void fill_checkpoints(std::int64_t chunk, std::int64_t first, std::int64_t count) const {
    const float* kept = out.kept + ((sequence * p.chunks + chunk) * p.heads + h) * layout.size;
    float* state = inside(0);
    for_each([&](std::int64_t, std::int64_t, std::int64_t at) { state[at] = kept[at]; });
    for (std::int64_t i = 0; i < count; ++i) {
      if (i % kSpan == 0) {
        float* to = checkpoint(i / kSpan);
        for_each([&](std::int64_t, std::int64_t, std::int64_t at) { to[at] = state[at]; });
      }
      advance(state, state, first + i);
    }
  }
  __device__ void fill_span(std::int64_t span, std::int64_t first, std::int64_t count) const {
    const float* from = checkpoint(span);
    float* to = inside(0);
    for_each([&](std::int64_t, std::int64_t, std::int64_t at) { to[at] = from[at]; });
    for (std::int64_t i = 0; i < count; ++i) advance(inside(i), inside(i + 1), first + i);
  }
  /// The gradient of the state arrives as of that after token t and leaves as of that before it.
  __device__ void token(std::int64_t t, const float* before, const float* after, float (&params)[3]) const {
    __shared__ float sums[3][kWarps];
    float* grad = scratch + layout.grad;
    float *dbs = scratch + layout.part, *dcs = dbs + kWarps * p.state;
    const Step step(p, t, h);
    float ddt = 0, ddecay = 0, dd = 0;
    for (std::int64_t n = lane; n < p.state; n += kWarp)
      dbs[warp * p.state + n] = dcs[warp * p.state + n] = 0;
    for (std::int64_t c = warp; c < p.width; c += kWarps) {
      const float x = p.x.get(t, h, c), dy = out.dy.get(t, h, c);
      float xb = 0;
      for (std::int64_t n = lane; n < p.state; n += kWarp) {
        const std::int64_t at = c * p.state + n;
        const float ds = fmaf(dy, p.c.get(t, g, n), grad[at]);
        float &db = dbs[warp * p.state + n], &dc = dcs[warp * p.state + n];
        dc = fmaf(dy, after[at], dc);
        db = fmaf(step.dt * x, ds, db);
        xb = fmaf(ds, p.b.get(t, g, n), xb);
        ddecay = fmaf(ds, before[at], ddecay);
        grad[at] = ds * step.decay;
      }
      xb = warp_sum(xb);
      ddt = fmaf(x, xb, ddt);
      dd = fmaf(x, dy, dd);
      if (lane == 0) out.dx.set(fmaf(step.dt, xb, p.d_H(h) * dy), t, h, c);
    }
    ddecay = warp_sum(ddecay);
    if (lane == 0) {
      sums[0][warp] = ddt;
      sums[1][warp] = ddecay;
      sums[2][warp] = dd;
    }
    __syncthreads();
    for (std::int64_t n = threadIdx.x; n < p.state; n += kThreads) {
      float db = 0, dc = 0;
      for (int w = 0; w < kWarps; ++w) {
        db += dbs[w * p.state + n];
        dc += dcs[w * p.state + n];
      }
      out.db[(t * p.heads + h) * p.state + n] = db;
      out.dc[(t * p.heads + h) * p.state + n] = dc;
    }
    if (threadIdx.x == 0) {
      float all[3] = {0, 0, 0};
      for (int i = 0; i < 3; ++i)
        for (int w = 0; w < kWarps; ++w) all[i] += sums[i][w];
      const float dlog = all[1] * step.decay;
      const float draw = fmaf(step.a, dlog, all[0]) * step.slope;
      out.ddt.set(draw, t, h);
      params[0] = fmaf(step.dt, dlog, params[0]);
      params[1] += all[2];
      params[2] += draw;
    }
    __syncthreads();
  }
};

__global__ void __launch_bounds__(kThreads)
    backward(Problem p, Regions layout, Gradients out, float* scratch) {
  const std::int64_t h = blockIdx.x % p.heads, sequence = blockIdx.x / p.heads;
  const Block block{p,
                    layout,
                    out,
                    scratch + blockIdx.x * layout.floats,
                    h,
                    p.group_of(h),
                    sequence,
                    static_cast<int>(threadIdx.x) / kWarp,
                    static_cast<int>(threadIdx.x) % kWarp};
  float* grad = block.scratch + layout.grad;
  block.for_each([&](std::int64_t, std::int64_t, std::int64_t at) { grad[at] = 0; });
  float params[3] = {0, 0, 0};
  for (std::int64_t chunk = p.chunks - 1; chunk >= 0; --chunk) {
    const std::int64_t first = sequence * p.seq_len + chunk * p.chunk;
    const std::int64_t count = min(p.chunk, p.seq_len - chunk * p.chunk);
    block.fill_checkpoints(chunk, first, count);
    for (std::int64_t span = (count - 1) / kSpan; span >= 0; --span) {
      const std::int64_t tokens = min(kSpan, count - span * kSpan);
      block.fill_span(span, first + span * kSpan, tokens);
      for (std::int64_t i = tokens - 1; i >= 0; --i)
        block.token(first + span * kSpan + i, block.inside(i), block.inside(i + 1), params);
    }
  }
  if (threadIdx.x == 0)
    for (int i = 0; i < 3; ++i) out.params[blockIdx.x * 3 + i] = params[i];
}

/// to[t, g, n] = the sum of the group's heads, in their order.
__global__ void __launch_bounds__(kThreads)
    add_heads(const float* parts, DeviceOut to, std::int64_t tokens, std::int64_t groups,
              std::int64_t per_group, std::int64_t state) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= tokens * groups * state) return;
  const std::int64_t n = at % state, row = at / state;  // row = t groups + g
  float sum = 0;
  for (std::int64_t i = 0; i < per_group; ++i) sum += parts[(row * per_group + i) * state + n];
  to.set(sum, row / groups, row % groups, n);
}

}  // namespace

void ssd_general(Stream& stream, const Ssd& a) {
  const ArenaScope scope(stream.scratch());
  const Problem p(a);
  const std::int64_t warps = p.sequences * p.heads * p.width;
  float* states = stream.scratch().take<float>(warps, p.state).data();
  launch(stream, "ssd", forward, dim3(blocks_for(warps, kWarps)), dim3(kThreads), 0, p, DeviceOut(a.y_THP),
         a.states.data(), states);
}

void ssd_general(Stream& stream, const SsdBackward& a) {
  Arena& scratch = stream.scratch();
  const ArenaScope scope(scratch);
  const Problem p(a);
  const Regions layout(p);
  const std::int64_t tokens = a.x_THP.size(0), blocks = p.sequences * p.heads;
  float* work = scratch.take<float>(blocks, layout.floats).data();
  float* params = scratch.take<float>(blocks, 3).data();
  float* db = scratch.take<float>(tokens, p.heads, p.state).data();
  float* dc = scratch.take<float>(tokens, p.heads, p.state).data();
  launch(stream, "ssd_backward", backward, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, p, layout,
         Gradients{DeviceIn(a.dy_THP), DeviceOut(a.dx_THP), DeviceOut(a.ddt_TH), a.states.data(), db, dc,
                   params},
         work);
  const std::int64_t numbers = tokens * p.groups * p.state;
  const dim3 grid(blocks_for(numbers, kThreads));
  launch(stream, "ssd_backward", add_heads, grid, dim3(kThreads), 0, db, DeviceOut(a.db_TGN), tokens,
         p.groups, p.heads / p.groups, p.state);
  launch(stream, "ssd_backward", add_heads, grid, dim3(kThreads), 0, dc, DeviceOut(a.dc_TGN), tokens,
         p.groups, p.heads / p.groups, p.state);
  ssd_add_parameters(stream, a, p.sequences, params);
}

}  // namespace nibble::cuda
