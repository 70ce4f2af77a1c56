// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// The state-space scan of Mamba-2, for each head h of P channels with state N, group g = h / (H / G):
///   dt   = min(max(softplus(dt_raw + dt_bias), dt_min), dt_max),   a = -exp(a_log)
///   S_t  = exp(dt_t a) S_{t-1} + dt_t x_t B_t^T   (S is [P, N], zero before each sequence)
///   y_t  = S_t C_t + d x_t
/// `cpu` computes it in chunks of `chunk` tokens (SSD): inside a chunk as a masked matrix product, between
/// chunks through the states. Segment sums are masked cumulative sums, never differences of two long ones.
/// FP32 inside; `cuda` with BF16 storage, P = 64, N = 64 or 128 and chunks of whole 128 tokens multiplies on
/// tensor cores, where operands are BF16: |error| <= 2u, of gradients 3u, times the sum of the sizes of the
/// terms, u = 2^-9 (derived in ssm/ssd_cuda.cuh). [Mamba2] in docs/SOURCES.md.
struct Ssd {
  ConstRealView x_THP, b_TGN, c_TGN, dt_TH;
  View<const float> a_log_H, d_H, dt_bias_H;
  RealView y_THP;
  View<float>
      states;  ///< [sequences * chunks, H, P, N]: the state before each chunk, kept for the backward pass
  std::int64_t seq_len = 0;
  std::int64_t chunk = 128;  ///< the last chunk of a sequence may be shorter
  float dt_min = 0;
  float dt_max = 3.4028235e38f;
};

struct SsdBackward {
  ConstRealView x_THP, b_TGN, c_TGN, dt_TH;
  View<const float> a_log_H, d_H, dt_bias_H;
  View<const float> states;
  ConstRealView dy_THP;
  RealView dx_THP, db_TGN, dc_TGN, ddt_TH;  ///< overwritten; ddt is of dt_raw
  View<float> da_log_H, dd_H, ddt_bias_H;   ///< +=
  std::int64_t seq_len = 0;
  std::int64_t chunk = 128;
  float dt_min = 0;
  float dt_max = 3.4028235e38f;
};

/// Chunks a sequence has: ceil(seq_len / chunk).
inline std::int64_t chunks_of(std::int64_t seq_len, std::int64_t chunk) {
  return (seq_len + chunk - 1) / chunk;
}

NIBBLE_OP(Ssd, ssd)
NIBBLE_OP(SsdBackward, ssd_backward)

}  // namespace nibble
