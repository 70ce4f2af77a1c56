// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "ops/scratch_slots.h"
#include "ops/ssm/ssd.h"
#include "ops/ssm/ssd_kernels.h"
#include "ops/tile_gemm.h"
#include "ops/tile_io.h"

/// What the fast forward and backward passes of the scan share.
namespace nibble::cpu {

/// The parallel tiles of a scan: (sequence, block of heads of one group). The heads of a block share C B^T of
/// their group, and add their gradients of B and C before these leave the cache.
struct SsdPlan {
  static constexpr std::int64_t kBlock = 4;

  std::int64_t heads, groups, width, state;  ///< H, G, P, N
  std::int64_t width_pad, state_pad;
  std::int64_t seq_len, chunk, chunks, sequences;
  std::int64_t per_group, blocks;  ///< heads of a group; blocks of a group

  template <class Args>
  explicit SsdPlan(const Args& a)
      : heads(a.x_THP.size(1)),
        groups(a.b_TGN.size(1)),
        width(a.x_THP.size(2)),
        state(a.b_TGN.size(2)),
        width_pad(padded_cols(width)),
        state_pad(padded_cols(state)),
        seq_len(a.seq_len),
        chunk(a.chunk),
        chunks(chunks_of(seq_len, chunk)),
        sequences(a.x_THP.size(0) / seq_len),
        per_group(heads / groups),
        blocks((per_group + kBlock - 1) / kBlock) {}

  std::int64_t tiles() const { return sequences * groups * blocks; }
  std::int64_t state_floats() const { return width_pad * state_pad; }
  std::int64_t length_of(std::int64_t c) const { return std::min(chunk, seq_len - c * chunk); }
};

/// One parallel tile: the heads [first_head, first_head + count) of `group` in `sequence`.
struct SsdBlock {
  std::int64_t sequence, group, index, first_head, count;

  SsdBlock(const SsdPlan& p, std::int64_t tile)
      : sequence(tile / (p.groups * p.blocks)),
        group(tile / p.blocks % p.groups),
        index(tile % p.blocks),
        first_head(group * p.per_group + index * SsdPlan::kBlock),
        count(std::min(SsdPlan::kBlock, p.per_group - index * SsdPlan::kBlock)) {}
};

/// The rule by which a head's dt is made. a = -exp(a_log) is kept finite, so that a step of 0 gives no NaN.
template <class Args>
SsdStepRule ssd_step_rule(const Args& args, std::int64_t h) {
  return {args.dt_bias_H(h), -std::min(std::exp(args.a_log_H(h)), FLT_MAX), args.dt_min, args.dt_max};
}

/// dt and the log decays of `used` tokens from `first` on, for head h.
template <class Args>
void ssd_read_steps(const Args& args, std::int64_t first, int used, std::int64_t h, const SsdSteps& steps) {
  float raw[kSsdTile] = {};
  for (int t = 0; t < used; ++t) raw[t] = args.dt_TH.get(first + t, h);
  const SsdStepRule rule = ssd_step_rule(args, h);
  NIBBLE_SIMD_CALL(ssd_steps, raw, used, rule, steps);
}

inline void multiply(const TileGemm& g) { NIBBLE_SIMD_CALL(tile_gemm, g); }

}  // namespace nibble::cpu
