// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd_cpu.h"

namespace nibble::cpu {
namespace {

constexpr std::int64_t kTile = kSsdTile;

std::int64_t tiles_of(std::int64_t tokens) { return (tokens + kTile - 1) / kTile; }

/// What a head adds to the gradients of its parameters in one sequence.
struct ParameterGradients {
  float a = 0, d = 0, dt_bias = 0;
};

/// Scratch of one parallel tile. Matrices of channels are transposed, tokens along the lanes.
struct Backward {
  float *b{}, *c{}, *part{}, *db{}, *dc{};         ///< [tile, N]
  float* b_turned{};                               ///< [N, tile]
  float *k{}, *dk{}, *m{}, *z{};                   ///< [t, s]
  float* rows{};                                   ///< [tile, P]
  float *x{}, *dy{}, *dtx{}, *inside{}, *after{};  ///< [P, tile]
  float* grads{};                                  ///< [heads of the block, P, N]: gradient of the state
  float* states{};  ///< [heads of the block, tiles of a chunk, P, N]: before each tile
  float *dt{}, *slope{}, *log_decay{}, *decay_in{}, *decay_out{}, *crossing{}, *from_in{}, *from_out{},
      *x_dot{}, *x_dot_dy{};
  std::int64_t state_floats, chunk_tiles;

  Backward(float* base, const SsdPlan& p, std::int64_t* floats = nullptr)
      : state_floats(p.state_floats()), chunk_tiles(tiles_of(std::min(p.chunk, p.seq_len))) {
    ScratchCutter cut(base);
    for (float** v : {&b, &c, &part, &db, &dc, &b_turned}) *v = cut.take(kTile * p.state_pad);
    for (float** v : {&k, &dk, &m, &z}) *v = cut.take(kTile * kTile);
    for (float** v : {&rows, &x, &dy, &dtx, &inside, &after}) *v = cut.take(kTile * p.width_pad);
    grads = cut.take(SsdPlan::kBlock * state_floats);
    states = cut.take(SsdPlan::kBlock * chunk_tiles * state_floats);
    for (float** v :
         {&dt, &slope, &log_decay, &decay_in, &decay_out, &crossing, &from_in, &from_out, &x_dot, &x_dot_dy})
      *v = cut.take(kTile);
    if (floats != nullptr) *floats = cut.used();
  }
  static std::int64_t floats(const SsdPlan& p) {
    std::int64_t n = 0;
    Backward(nullptr, p, &n);
    return n;
  }
  float* state(std::int64_t head, std::int64_t tile) const {
    return states + (head * chunk_tiles + tile) * state_floats;
  }
  float* grad(std::int64_t head) const { return grads + head * state_floats; }
};

/// One tile of tokens.
struct Span {
  std::int64_t first, used;
};

Span span_of(const SsdPlan& p, const SsdBlock& block, std::int64_t c, std::int64_t tile) {
  return {block.sequence * p.seq_len + c * p.chunk + tile * kTile,
          std::min(kTile, p.length_of(c) - tile * kTile)};
}

/// The states before each tile of chunk c, from the one that forward kept before the chunk.
void recompute_states(const SsdBackward& a, const SsdPlan& p, const SsdBlock& block, std::int64_t c,
                      Backward& f) {
  for (std::int64_t i = 0; i < block.count; ++i) {
    const float* kept = a.states.data() + ((block.sequence * p.chunks + c) * p.heads + block.first_head + i) *
                                              p.width * p.state;
    NIBBLE_SIMD_CALL(read_tile, kept, p.state, {f.state(i, 0), p.width_pad, p.state_pad, p.width, p.state});
  }
  for (std::int64_t tile = 0; tile + 1 < tiles_of(p.length_of(c)); ++tile) {
    const Span span = span_of(p, block, c, tile);
    read_head(a.b_TGN, span.first, block.group, {f.b, kTile, p.state_pad, span.used, p.state});
    for (std::int64_t i = 0; i < block.count; ++i) {
      const std::int64_t h = block.first_head + i;
      ssd_read_steps(a, span.first, static_cast<int>(span.used), h, {f.dt, f.slope, f.log_decay});
      NIBBLE_SIMD_CALL(ssd_decays, f.log_decay, f.decay_in, f.decay_out);
      for (std::int64_t t = 0; t < kTile; ++t) f.decay_out[t] *= f.dt[t];
      read_head(a.x_THP, span.first, h, {f.rows, kTile, p.width_pad, span.used, p.width});
      NIBBLE_SIMD_CALL(ssd_scale_rows, f.b, f.decay_out, kTile, p.state_pad, f.part);
      std::copy(f.state(i, tile), f.state(i, tile) + f.state_floats, f.state(i, tile + 1));
      multiply({.rows = padded_rows(p.width),
                .cols = p.state_pad,
                .depth = kTile,
                .a = f.rows,
                .a_row = 1,
                .a_col = p.width_pad,
                .b = f.part,
                .b_row = p.state_pad,
                .c = f.state(i, tile + 1),
                .c_row = p.state_pad,
                .beta = f.decay_in[kTile - 1]});
    }
  }
}

/// x and dy of one head, transposed, and the decays and scores of the tile. Fills x, dy, dtx, m, crossing and
/// the steps; adds to dk.
void scores_of_head(const SsdBackward& a, const SsdPlan& p, Span span, std::int64_t h, Backward& f) {
  ssd_read_steps(a, span.first, static_cast<int>(span.used), h, {f.dt, f.slope, f.log_decay});
  read_head(a.x_THP, span.first, h, {f.rows, kTile, p.width_pad, span.used, p.width});
  transpose(f.rows, p.width_pad, kTile, p.width_pad, f.x, kTile);
  read_head(a.dy_THP, span.first, h, {f.rows, kTile, p.width_pad, span.used, p.width});
  transpose(f.rows, p.width_pad, kTile, p.width_pad, f.dy, kTile);
  NIBBLE_SIMD_CALL(ssd_scale_cols, f.x, f.dt, p.width_pad, f.dtx);
  multiply({.rows = kTile,
            .cols = kTile,
            .depth = p.width,
            .a = f.dy,
            .a_row = 1,
            .a_col = kTile,
            .b = f.dtx,
            .b_row = kTile,
            .c = f.z,
            .c_row = kTile,
            .shape = TileShape::LowerC});
  NIBBLE_SIMD_CALL(ssd_scores_backward, f.log_decay, f.k, f.z, f.m, f.dk, f.crossing, f.decay_in,
                   f.decay_out);
}

/// The gradients that pass through the state before the tile and through the one after it.
void states_of_head(const SsdPlan& p, const float* state, float* grad, Backward& f) {
  // d(dt x) from inside: M^T dy; from the state after: G B, its decay applied later.
  multiply({.rows = padded_rows(p.width),
            .cols = kTile,
            .depth = kTile,
            .a = f.dy,
            .a_row = kTile,
            .a_col = 1,
            .b = f.m,
            .b_row = kTile,
            .c = f.inside,
            .c_row = kTile});
  multiply({.rows = padded_rows(p.width),
            .cols = kTile,
            .depth = p.state,
            .a = grad,
            .a_row = p.state_pad,
            .a_col = 1,
            .b = f.b_turned,
            .b_row = kTile,
            .c = f.after,
            .c_row = kTile});
  // dB = (decay_out dt x) G, and what it says of the decays from each token to the end.
  NIBBLE_SIMD_CALL(ssd_scale_cols, f.dtx, f.decay_out, p.width_pad, f.dtx);
  multiply({.rows = kTile,
            .cols = p.state_pad,
            .depth = p.width,
            .a = f.dtx,
            .a_row = 1,
            .a_col = kTile,
            .b = grad,
            .b_row = p.state_pad,
            .c = f.part,
            .c_row = p.state_pad});
  NIBBLE_SIMD_CALL(ssd_add_and_dot, f.part, f.b, p.state_pad, f.db, f.from_out);
  // dC = (decay_in dy) S, and what it says of the decays from the start to each token.
  NIBBLE_SIMD_CALL(ssd_scale_cols, f.dy, f.decay_in, p.width_pad, f.dtx);
  multiply({.rows = kTile,
            .cols = p.state_pad,
            .depth = p.width,
            .a = f.dtx,
            .a_row = 1,
            .a_col = kTile,
            .b = state,
            .b_row = p.state_pad,
            .c = f.part,
            .c_row = p.state_pad});
  NIBBLE_SIMD_CALL(ssd_add_and_dot, f.part, f.c, p.state_pad, f.dc, f.from_in);
  // What crosses the whole tile, then G of the state before it.
  const float all = f.decay_in[kTile - 1];
  const float through = all * NIBBLE_SIMD_CALL(ssd_dot, grad, state, f.state_floats);
  for (std::int64_t t = 0; t < kTile; ++t) f.crossing[t] += through;
  multiply({.rows = padded_rows(p.width),
            .cols = p.state_pad,
            .depth = kTile,
            .a = f.dtx,
            .a_row = kTile,
            .a_col = 1,
            .b = f.c,
            .b_row = p.state_pad,
            .c = grad,
            .c_row = p.state_pad,
            .beta = all});
}

/// dx, ddt and the parameters' parts, from what the two functions above left.
void finish_head(const SsdBackward& a, const SsdPlan& p, Span span, std::int64_t h, Backward& f,
                 ParameterGradients& sums) {
  NIBBLE_SIMD_CALL(ssd_channels_backward, {padded_rows(p.width), f.x, f.dy, f.inside, f.after, f.dt,
                                           f.decay_out, a.d_H(h), f.dtx, f.x_dot, f.x_dot_dy});
  transpose(f.dtx, kTile, p.width_pad, kTile, f.rows, p.width_pad);
  write_head({f.rows, kTile, p.width_pad, span.used, p.width}, a.dx_THP, span.first, h);
  // The log decay of token r acts on everything that crosses r: pairs inside the tile, the way in of outputs
  // at t >= r, the way out of tokens s < r, and what passes through. All are sums, none a difference.
  float inward = 0;
  for (std::int64_t r = kTile - 1; r >= 0; --r) f.crossing[r] += inward += f.from_in[r];
  float outward = 0;
  const float slope_a = ssd_step_rule(a, h).a;
  for (std::int64_t r = 0; r < span.used; ++r) {
    const float dlog = f.crossing[r] + outward;
    outward += f.from_out[r];
    const float ddt = std::fma(slope_a, dlog, f.x_dot[r]) * f.slope[r];
    a.ddt_TH.set(ddt, span.first + r, h);
    sums.a = std::fma(f.dt[r], dlog, sums.a);
    sums.d += f.x_dot_dy[r];
    sums.dt_bias += ddt;
  }
}

/// One tile of tokens for all heads of a block; leaves its part of dB and dC in f.db and f.dc.
void backward_of_tile(const SsdBackward& a, const SsdPlan& p, const SsdBlock& block, Span span,
                      std::int64_t tile, Backward& f, ParameterGradients* sums) {
  read_head(a.b_TGN, span.first, block.group, {f.b, kTile, p.state_pad, span.used, p.state});
  read_head(a.c_TGN, span.first, block.group, {f.c, kTile, p.state_pad, span.used, p.state});
  transpose(f.b, p.state_pad, kTile, p.state_pad, f.b_turned, kTile);
  multiply({.rows = kTile,
            .cols = kTile,
            .depth = p.state,
            .a = f.c,
            .a_row = p.state_pad,
            .a_col = 1,
            .b = f.b_turned,
            .b_row = kTile,
            .c = f.k,
            .c_row = kTile,
            .shape = TileShape::LowerC});
  std::fill(f.dk, f.dk + kTile * kTile, 0.0f);
  std::fill(f.db, f.db + kTile * p.state_pad, 0.0f);
  std::fill(f.dc, f.dc + kTile * p.state_pad, 0.0f);
  for (std::int64_t i = 0; i < block.count; ++i) {
    scores_of_head(a, p, span, block.first_head + i, f);
    states_of_head(p, f.state(i, tile), f.grad(i), f);
    finish_head(a, p, span, block.first_head + i, f, sums[i]);
  }
  multiply({.rows = kTile,
            .cols = p.state_pad,
            .depth = kTile,
            .a = f.dk,
            .a_row = kTile,
            .a_col = 1,
            .b = f.b,
            .b_row = p.state_pad,
            .c = f.dc,
            .c_row = p.state_pad,
            .beta = 1,
            .shape = TileShape::LowerA});
  multiply({.rows = kTile,
            .cols = p.state_pad,
            .depth = kTile,
            .a = f.dk,
            .a_row = 1,
            .a_col = kTile,
            .b = f.c,
            .b_row = p.state_pad,
            .c = f.db,
            .c_row = p.state_pad,
            .beta = 1,
            .shape = TileShape::UpperA});
}

/// Where the parallel tiles leave what several of them add to.
struct Partials {
  float *db, *dc;              ///< [blocks of a group, T, G, N]
  ParameterGradients* params;  ///< [sequences, H]
};

void backward_of_block(const SsdBackward& a, const SsdPlan& p, const SsdBlock& block, Backward& f,
                       const Partials& partials) {
  ParameterGradients sums[SsdPlan::kBlock];
  std::fill(f.grads, f.grads + block.count * f.state_floats, 0.0f);
  const std::int64_t row = p.groups * p.state;
  const std::int64_t base = block.index * p.sequences * p.seq_len * row + block.group * p.state;
  for (std::int64_t c = p.chunks - 1; c >= 0; --c) {
    recompute_states(a, p, block, c, f);
    for (std::int64_t tile = tiles_of(p.length_of(c)) - 1; tile >= 0; --tile) {
      const Span span = span_of(p, block, c, tile);
      backward_of_tile(a, p, block, span, tile, f, sums);
      const std::int64_t to = base + span.first * row;
      NIBBLE_SIMD_CALL(write_tile, {f.db, kTile, p.state_pad, span.used, p.state}, partials.db + to, row);
      NIBBLE_SIMD_CALL(write_tile, {f.dc, kTile, p.state_pad, span.used, p.state}, partials.dc + to, row);
    }
  }
  for (std::int64_t i = 0; i < block.count; ++i)
    partials.params[block.sequence * p.heads + block.first_head + i] = sums[i];
}

/// to = the sum of the blocks' parts, in their order, for the tokens of one sequence.
void sum_blocks(const SsdPlan& p, std::int64_t sequence, float* part, const RealView& to) {
  const std::int64_t row = p.groups * p.state, all = p.sequences * p.seq_len * row, count = p.seq_len * row;
  float* sum = part + sequence * count;
  for (std::int64_t block = 1; block < p.blocks; ++block)
    for (std::int64_t i = 0; i < count; ++i) sum[i] += sum[block * all + i];
  for (std::int64_t g = 0; g < p.groups; ++g)
    with_type(to, [&](auto typed) {
      auto* out = typed.data() + sequence * p.seq_len * typed.stride(0) + g * typed.stride(1);
      for (std::int64_t t = 0; t < p.seq_len; ++t)
        NIBBLE_SIMD_CALL(write_tile, {sum + t * row + g * p.state, 1, p.state, 1, p.state},
                         out + t * typed.stride(0), typed.stride(0));
    });
}

}  // namespace

void run(Stream& stream, const SsdBackward& a) {
  const SsdPlan p(a);
  ArenaScope scope(stream.scratch());
  ScratchSlots slots(stream, Backward::floats(p));
  const std::int64_t parts = p.blocks * p.sequences * p.seq_len * p.groups * p.state;
  const Partials partials{stream.scratch().take<float>(parts).data(),
                          stream.scratch().take<float>(parts).data(),
                          stream.scratch().take<ParameterGradients>(p.sequences * p.heads).data()};
  stream.pool().parallel_for(p.tiles(), [&](std::int64_t tile) {
    ScratchSlots::Lease lease(slots);
    Backward f(lease.data(), p);
    backward_of_block(a, p, SsdBlock(p, tile), f, partials);
  });
  stream.pool().parallel_for(p.sequences, [&](std::int64_t sequence) {
    sum_blocks(p, sequence, partials.db, a.db_TGN);
    sum_blocks(p, sequence, partials.dc, a.dc_TGN);
  });
  for (std::int64_t h = 0; h < p.heads; ++h) {
    ParameterGradients sum;
    for (std::int64_t s = 0; s < p.sequences; ++s) {
      const ParameterGradients& part = partials.params[s * p.heads + h];
      sum.a += part.a;
      sum.d += part.d;
      sum.dt_bias += part.dt_bias;
    }
    a.da_log_H(h) += sum.a * ssd_step_rule(a, h).a;  // d(a)/d(a_log) = a
    a.dd_H(h) += sum.d;
    a.ddt_bias_H(h) += sum.dt_bias;
  }
}

}  // namespace nibble::cpu
