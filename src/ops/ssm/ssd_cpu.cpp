// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd_cpu.h"

namespace nibble::cpu {
namespace {

constexpr std::int64_t kTile = kSsdTile;

/// Scratch of one parallel tile. States are transposed, [N, P], so that outputs have channels along the
/// lanes.
struct Forward {
  float *b{}, *c{}, *b_turned{}, *k{};   ///< [tile, N], [tile, N], [N, tile], [t, s]
  float *x{}, *dtx{}, *carried{}, *y{};  ///< [tile, P]
  float *m{}, *states{}, *kept{};        ///< [t, s], [heads of the block, N, P], [P, N]
  float *dt{}, *slope{}, *log_decay{}, *decay_in{}, *decay_out{};

  Forward(float* base, const SsdPlan& p, std::int64_t* floats = nullptr) {
    ScratchCutter cut(base);
    for (float** v : {&b, &c, &b_turned}) *v = cut.take(kTile * p.state_pad);
    for (float** v : {&k, &m}) *v = cut.take(kTile * kTile);
    for (float** v : {&x, &dtx, &carried, &y}) *v = cut.take(kTile * p.width_pad);
    states = cut.take(SsdPlan::kBlock * p.state_floats());
    kept = cut.take(p.state_floats());
    for (float** v : {&dt, &slope, &log_decay, &decay_in, &decay_out}) *v = cut.take(kTile);
    if (floats != nullptr) *floats = cut.used();
  }
  static std::int64_t floats(const SsdPlan& p) {
    std::int64_t n = 0;
    Forward(nullptr, p, &n);
    return n;
  }
};

/// y of `used` tokens from `first` on for head h, and its state [N, P] after them.
void forward_of_head(const Ssd& a, const SsdPlan& p, std::int64_t first, std::int64_t used, std::int64_t h,
                     float* state, Forward& f) {
  ssd_read_steps(a, first, static_cast<int>(used), h, {f.dt, f.slope, f.log_decay});
  NIBBLE_SIMD_CALL(ssd_scores, f.log_decay, f.k, f.m, f.decay_in, f.decay_out);
  read_head(a.x_THP, first, h, {f.x, kTile, p.width_pad, used, p.width});
  NIBBLE_SIMD_CALL(ssd_scale_rows, f.x, f.dt, kTile, p.width_pad, f.dtx);
  multiply({.rows = kTile,
            .cols = p.width_pad,
            .depth = p.state,
            .a = f.c,
            .a_row = p.state_pad,
            .a_col = 1,
            .b = state,
            .b_row = p.width_pad,
            .c = f.carried,
            .c_row = p.width_pad});
  multiply({.rows = kTile,
            .cols = p.width_pad,
            .depth = kTile,
            .a = f.m,
            .a_row = kTile,
            .a_col = 1,
            .b = f.dtx,
            .b_row = p.width_pad,
            .c = f.y,
            .c_row = p.width_pad,
            .shape = TileShape::LowerA});
  NIBBLE_SIMD_CALL(ssd_finish, f.carried, f.x, f.decay_in, a.d_H(h), p.width_pad, f.y);
  write_head({f.y, kTile, p.width_pad, used, p.width}, a.y_THP, first, h);
  NIBBLE_SIMD_CALL(ssd_scale_rows, f.dtx, f.decay_out, kTile, p.width_pad, f.dtx);
  multiply({.rows = padded_rows(p.state),
            .cols = p.width_pad,
            .depth = kTile,
            .a = f.b_turned,
            .a_row = kTile,
            .a_col = 1,
            .b = f.dtx,
            .b_row = p.width_pad,
            .c = state,
            .c_row = p.width_pad,
            .beta = f.decay_in[kTile - 1]});
}

/// Writes the state [N, P] of a head as the [P, N] that backward reads.
void keep_state(const Ssd& a, const SsdPlan& p, std::int64_t row, std::int64_t h, const float* state,
                Forward& f) {
  transpose(state, p.width_pad, p.state_pad, p.width_pad, f.kept, p.state_pad);
  float* to = a.states.data() + (row * p.heads + h) * p.width * p.state;
  NIBBLE_SIMD_CALL(write_tile, {f.kept, p.width, p.state_pad, p.width, p.state}, to, p.state);
}

void forward_of_block(const Ssd& a, const SsdPlan& p, const SsdBlock& block, Forward& f) {
  std::fill(f.states, f.states + block.count * p.state_floats(), 0.0f);
  for (std::int64_t c = 0; c < p.chunks; ++c) {
    for (std::int64_t i = 0; i < block.count; ++i)
      keep_state(a, p, block.sequence * p.chunks + c, block.first_head + i, f.states + i * p.state_floats(),
                 f);
    for (std::int64_t t = 0; t < p.length_of(c); t += kTile) {
      const std::int64_t first = block.sequence * p.seq_len + c * p.chunk + t;
      const std::int64_t used = std::min(kTile, p.length_of(c) - t);
      read_head(a.b_TGN, first, block.group, {f.b, kTile, p.state_pad, used, p.state});
      read_head(a.c_TGN, first, block.group, {f.c, kTile, p.state_pad, used, p.state});
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
      for (std::int64_t i = 0; i < block.count; ++i)
        forward_of_head(a, p, first, used, block.first_head + i, f.states + i * p.state_floats(), f);
    }
  }
}

}  // namespace

void run(Stream& stream, const Ssd& a) {
  const SsdPlan p(a);
  ArenaScope scope(stream.scratch());
  ScratchSlots slots(stream, Forward::floats(p));
  stream.pool().parallel_for(p.tiles(), [&](std::int64_t tile) {
    ScratchSlots::Lease lease(slots);
    Forward f(lease.data(), p);
    forward_of_block(a, p, SsdBlock(p, tile), f);
  });
}

}  // namespace nibble::cpu
