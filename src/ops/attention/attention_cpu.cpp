// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/attention/attention_kernels.h"
#include "ops/scratch_slots.h"
#include "ops/tile_gemm.h"
#include "ops/tile_io.h"

namespace nibble::cpu {
namespace {

constexpr std::int64_t kTile = kAttentionTile;

void multiply(const TileGemm& g) { NIBBLE_SIMD_CALL(tile_gemm, g); }

struct Plan {
  std::int64_t heads, groups, width, width_pad, seq_len, sequences, per_group, tiles;
  float scale;

  template <class Args>
  explicit Plan(const Args& a)
      : heads(a.q_THD.size(1)),
        groups(a.k_TGD.size(1)),
        width(a.q_THD.size(2)),
        width_pad(padded_cols(width)),
        seq_len(a.seq_len),
        sequences(a.q_THD.size(0) / seq_len),
        per_group(heads / groups),
        tiles((seq_len + kTile - 1) / kTile),
        scale(a.scale) {}
  /// FP32 keys or values of one group of one sequence, with zeros up to whole tiles.
  std::int64_t group_floats() const { return tiles * kTile * width_pad; }
  std::int64_t used(std::int64_t tile) const { return std::min(kTile, seq_len - tile * kTile); }
  /// Operand tile `i` of tokens of one head.
  Tile tokens(float* data, std::int64_t i) const { return {data, kTile, width_pad, used(i), width}; }
};

/// All tokens of one group of one sequence as FP32.
void read_group(const ConstRealView& v, const Plan& p, std::int64_t sequence, std::int64_t g, float* to) {
  read_head(v, sequence * p.seq_len, g, {to, p.tiles * kTile, p.width_pad, p.seq_len, p.width});
}

/// q times the scale, as [query, D] in `rows` and as [D, query] in `turned`.
void read_queries(const ConstRealView& q, const Plan& p, std::int64_t first, std::int64_t h,
                  std::int64_t tile, float* rows, float* turned) {
  read_head(q, first, h, p.tokens(rows, tile));
  float scales[kTile];
  std::fill(scales, scales + kTile, p.scale);
  NIBBLE_SIMD_CALL(attention_scale_rows, rows, scales, kTile, p.width_pad);
  transpose(rows, p.width_pad, kTile, p.width_pad, turned, kTile);
}

/// to[key, query] = sum over d of keys[key, d] turned[d, query]
void scores_of(const Plan& p, const float* keys, const float* turned, float* to) {
  multiply({.rows = kTile,
            .cols = kTile,
            .depth = p.width,
            .a = keys,
            .a_row = p.width_pad,
            .a_col = 1,
            .b = turned,
            .b_row = kTile,
            .c = to,
            .c_row = kTile});
}

/// to[query, d] += sum over keys of scores[key, query] values[key, d]
void add_over_keys(const Plan& p, const float* scores, const float* values, bool diagonal, float* to) {
  multiply({.rows = kTile,
            .cols = p.width_pad,
            .depth = kTile,
            .a = scores,
            .a_row = 1,
            .a_col = kTile,
            .b = values,
            .b_row = p.width_pad,
            .c = to,
            .c_row = p.width_pad,
            .beta = 1,
            .shape = diagonal ? TileShape::LowerA : TileShape::Full});
}

/// to[key, d] += sum over queries of scores[key, query] queries[query, d]
void add_over_queries(const Plan& p, const float* scores, const float* queries, bool diagonal, float* to) {
  multiply({.rows = kTile,
            .cols = p.width_pad,
            .depth = kTile,
            .a = scores,
            .a_row = kTile,
            .a_col = 1,
            .b = queries,
            .b_row = p.width_pad,
            .c = to,
            .c_row = p.width_pad,
            .beta = 1,
            .shape = diagonal ? TileShape::UpperA : TileShape::Full});
}

struct Forward {
  float *q{}, *q_turned{}, *scores{}, *out{}, *largest{}, *sum{}, *rescale{};

  Forward(float* base, const Plan& p, std::int64_t* floats = nullptr) {
    ScratchCutter cut(base);
    for (float** v : {&q, &q_turned, &out}) *v = cut.take(kTile * p.width_pad);
    scores = cut.take(kTile * kTile);
    for (float** v : {&largest, &sum, &rescale}) *v = cut.take(kTile);
    if (floats != nullptr) *floats = cut.used();
  }
};

/// One tile of queries of one head against all keys up to it.
void forward_of_tile(const Attention& a, const Plan& p, std::int64_t sequence, std::int64_t h,
                     std::int64_t tile, const float* k, const float* v, Forward& f) {
  const std::int64_t first = sequence * p.seq_len + tile * kTile;
  read_queries(a.q_THD, p, first, h, tile, f.q, f.q_turned);
  std::fill(f.largest, f.largest + kTile, -INFINITY);
  std::fill(f.sum, f.sum + kTile, 0.0f);
  std::fill(f.out, f.out + kTile * p.width_pad, 0.0f);
  for (std::int64_t j = 0; j <= tile; ++j) {
    const std::int64_t at = j * kTile * p.width_pad;
    scores_of(p, k + at, f.q_turned, f.scores);
    NIBBLE_SIMD_CALL(attention_softmax, f.scores, j == tile, {f.largest, f.sum, f.rescale});
    NIBBLE_SIMD_CALL(attention_scale_rows, f.out, f.rescale, kTile, p.width_pad);
    add_over_keys(p, f.scores, v + at, j == tile, f.out);
  }
  for (std::int64_t t = 0; t < kTile; ++t) f.rescale[t] = 1.0f / f.sum[t];
  NIBBLE_SIMD_CALL(attention_scale_rows, f.out, f.rescale, kTile, p.width_pad);
  write_head(p.tokens(f.out, tile), a.out_THD, first, h);
  for (std::int64_t t = 0; t < p.used(tile); ++t) a.lse_HT(h, first + t) = f.largest[t] + std::log(f.sum[t]);
}

}  // namespace

void run(Stream& stream, const Attention& a) {
  const Plan p(a);
  std::int64_t floats = 0;
  Forward(nullptr, p, &floats);
  ArenaScope scope(stream.scratch());
  ScratchSlots slots(stream, floats);
  const std::int64_t pairs = p.sequences * p.groups;
  float* k = stream.scratch().take<float>(pairs * p.group_floats()).data();
  float* v = stream.scratch().take<float>(pairs * p.group_floats()).data();
  stream.pool().parallel_for(pairs, [&](std::int64_t i) {
    read_group(a.k_TGD, p, i / p.groups, i % p.groups, k + i * p.group_floats());
    read_group(a.v_TGD, p, i / p.groups, i % p.groups, v + i * p.group_floats());
  });
  stream.pool().parallel_for(p.sequences * p.heads * p.tiles, [&](std::int64_t i) {
    ScratchSlots::Lease lease(slots);
    Forward f(lease.data(), p);
    const std::int64_t sequence = i / (p.heads * p.tiles), h = i / p.tiles % p.heads;
    const std::int64_t pair = (sequence * p.groups + h / p.per_group) * p.group_floats();
    forward_of_tile(a, p, sequence, h, i % p.tiles, k + pair, v + pair, f);
  });
}

namespace {

struct Backward {
  float *k{}, *v{}, *dk{}, *dv{};                                          ///< [all tiles of a sequence, D]
  float *q{}, *q_turned{}, *dout{}, *dout_turned{}, *out_turned{}, *dq{};  ///< one tile
  float *scores{}, *dp{}, *lse{}, *delta{};

  Backward(float* base, const Plan& p, std::int64_t* floats = nullptr) {
    ScratchCutter cut(base);
    for (float** x : {&k, &v, &dk, &dv}) *x = cut.take(p.group_floats());
    for (float** x : {&q, &q_turned, &dout, &dout_turned, &out_turned, &dq})
      *x = cut.take(kTile * p.width_pad);
    for (float** x : {&scores, &dp}) *x = cut.take(kTile * kTile);
    for (float** x : {&lse, &delta}) *x = cut.take(kTile);
    if (floats != nullptr) *floats = cut.used();
  }
};

/// Reads what one tile of queries of head h needs, delta[t] = out[t] . dout[t] included.
void read_tile_of_head(const AttentionBackward& a, const Plan& p, std::int64_t first, std::int64_t h,
                       std::int64_t tile, Backward& f) {
  read_queries(a.q_THD, p, first, h, tile, f.q, f.q_turned);
  read_head(a.out_THD, first, h, p.tokens(f.dout, tile));
  transpose(f.dout, p.width_pad, kTile, p.width_pad, f.out_turned, kTile);
  read_head(a.dout_THD, first, h, p.tokens(f.dout, tile));
  transpose(f.dout, p.width_pad, kTile, p.width_pad, f.dout_turned, kTile);
  NIBBLE_SIMD_CALL(attention_column_dots, f.out_turned, f.dout_turned, p.width, f.delta);
  std::fill(f.lse, f.lse + kTile, 0.0f);
  for (std::int64_t t = 0; t < p.used(tile); ++t) f.lse[t] = a.lse_HT(h, first + t);
}

/// One tile of queries: its dq, and its part of dk and dv of the sequence.
void backward_of_tile(const AttentionBackward& a, const Plan& p, std::int64_t sequence, std::int64_t h,
                      std::int64_t tile, Backward& f) {
  const std::int64_t first = sequence * p.seq_len + tile * kTile;
  read_tile_of_head(a, p, first, h, tile, f);
  std::fill(f.dq, f.dq + kTile * p.width_pad, 0.0f);
  for (std::int64_t j = 0; j <= tile; ++j) {
    const std::int64_t at = j * kTile * p.width_pad;
    const bool diagonal = j == tile;
    scores_of(p, f.k + at, f.q_turned, f.scores);
    scores_of(p, f.v + at, f.dout_turned, f.dp);
    NIBBLE_SIMD_CALL(attention_softmax_backward, f.scores, f.dp, diagonal, f.lse, f.delta);
    add_over_queries(p, f.scores, f.dout, diagonal, f.dv + at);
    add_over_queries(p, f.dp, f.q, diagonal, f.dk + at);  // f.q carries the scale
    add_over_keys(p, f.dp, f.k + at, diagonal, f.dq);
  }
  std::fill(f.delta, f.delta + kTile, p.scale);
  NIBBLE_SIMD_CALL(attention_scale_rows, f.dq, f.delta, kTile, p.width_pad);
  write_head(p.tokens(f.dq, tile), a.dq_THD, first, h);
}

}  // namespace

void run(Stream& stream, const AttentionBackward& a) {
  const Plan p(a);
  std::int64_t floats = 0;
  Backward(nullptr, p, &floats);
  ArenaScope scope(stream.scratch());
  ScratchSlots slots(stream, floats);
  stream.pool().parallel_for(p.sequences * p.groups, [&](std::int64_t i) {
    ScratchSlots::Lease lease(slots);
    Backward f(lease.data(), p);
    const std::int64_t sequence = i / p.groups, g = i % p.groups;
    read_group(a.k_TGD, p, sequence, g, f.k);
    read_group(a.v_TGD, p, sequence, g, f.v);
    std::fill(f.dk, f.dk + p.group_floats(), 0.0f);
    std::fill(f.dv, f.dv + p.group_floats(), 0.0f);
    for (std::int64_t h = g * p.per_group; h < (g + 1) * p.per_group; ++h)
      for (std::int64_t tile = 0; tile < p.tiles; ++tile) backward_of_tile(a, p, sequence, h, tile, f);
    const Tile dk{f.dk, p.seq_len, p.width_pad, p.seq_len, p.width};
    const Tile dv{f.dv, p.seq_len, p.width_pad, p.seq_len, p.width};
    write_head(dk, a.dk_TGD, sequence * p.seq_len, g);
    write_head(dv, a.dv_TGD, sequence * p.seq_len, g);
  });
}

}  // namespace nibble::cpu
