// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/scratch_slots.h"
#include "ops/ssm/causal_conv.h"
#include "ops/ssm/causal_conv_kernels.h"
#include "ops/tile_io.h"

namespace nibble::cpu {
namespace {

/// Tokens of a strip at a time: with 64 channels, x, dy and dx of a piece fit the second-level cache.
constexpr std::int64_t kPiece = 128;

/// The tiles of a job: (sequence, strip of channels).
struct Plan {
  std::int64_t channels, width, sequences, strips, seq_len;

  template <class Args>
  explicit Plan(const Args& a)
      : channels(a.x_TC.size(1)),
        width(a.w_CK.size(1)),
        sequences(a.x_TC.size(0) / a.seq_len),
        strips((channels + kConvStrip - 1) / kConvStrip),
        seq_len(a.seq_len) {}
  std::int64_t tiles() const { return sequences * strips; }
  std::int64_t halo() const { return width - 1; }
  std::int64_t piece() const { return std::min(kPiece, seq_len); }
};

/// Scratch of one tile.
struct Scratch {
  float *x, *w, *b, *y, *dx;

  Scratch(float* base, const Plan& p, bool backward, std::int64_t* floats = nullptr) {
    ScratchCutter cut(base);
    x = cut.take((p.halo() + p.piece()) * kConvStrip);
    w = cut.take(p.width * kConvStrip);
    b = cut.take(kConvStrip);
    y = cut.take(p.piece() * kConvStrip);
    dx = backward ? cut.take((p.halo() + p.piece()) * kConvStrip) : nullptr;
    if (floats != nullptr) *floats = cut.used();
  }
  static std::int64_t floats(const Plan& p, bool backward) {
    std::int64_t n = 0;
    Scratch(nullptr, p, backward, &n);
    return n;
  }
};

template <class Args>
void read_parameters(const Args& a, const Plan& p, std::int64_t c0, std::int64_t count, Scratch& s) {
  for (std::int64_t c = 0; c < kConvStrip; ++c) {
    const bool used = c < count;
    s.b[c] = used && !a.b_C.empty() ? a.b_C(c0 + c) : 0.0f;
    for (std::int64_t k = 0; k < p.width; ++k) s.w[k * kConvStrip + c] = used ? a.w_CK(c0 + c, k) : 0.0f;
  }
}

/// Reads x of tokens [first - halo, first + rows) of a sequence that begins at token `begin`; zeros before
/// it.
void read_x(const ConstRealView& x_TC, const Plan& p, std::int64_t begin, std::int64_t first,
            std::int64_t rows, std::int64_t c0, std::int64_t count, float* to) {
  const std::int64_t from = std::max(first - p.halo(), begin), zeros = from - (first - p.halo());
  std::fill(to, to + zeros * kConvStrip, 0.0f);
  const std::int64_t used = first + rows - from;
  const Tile tile{to + zeros * kConvStrip, used, kConvStrip, used, count};
  read_rows(x_TC, from, c0, tile);
}

}  // namespace

void run(Stream& stream, const CausalConv& a) {
  const Plan p(a);
  ArenaScope scope(stream.scratch());
  ScratchSlots slots(stream, Scratch::floats(p, false));
  stream.pool().parallel_for(p.tiles(), [&](std::int64_t tile) {
    ScratchSlots::Lease lease(slots);
    Scratch s(lease.data(), p, false);
    const std::int64_t begin = tile / p.strips * p.seq_len, c0 = tile % p.strips * kConvStrip;
    const std::int64_t count = std::min(kConvStrip, p.channels - c0);
    read_parameters(a, p, c0, count, s);
    for (std::int64_t t = 0; t < p.seq_len; t += p.piece()) {
      const std::int64_t rows = std::min(p.piece(), p.seq_len - t);
      read_x(a.x_TC, p, begin, begin + t, rows, c0, count, s.x);
      NIBBLE_SIMD_CALL(causal_conv_strip, {rows, p.width, s.x, s.w, s.b}, s.y);
      write_rows({s.y, rows, kConvStrip, rows, count}, a.y_TC, begin + t, c0);
    }
  });
}

namespace {

/// One tile: dx of the strip, and its part of dw and db, `partial` = [width + 1, kConvStrip] with db last.
void backward_of_strip(const CausalConvBackward& a, const Plan& p, std::int64_t begin, std::int64_t c0,
                       Scratch& s, float* partial) {
  const std::int64_t count = std::min(kConvStrip, p.channels - c0);
  read_parameters(a, p, c0, count, s);
  std::fill(partial, partial + (p.width + 1) * kConvStrip, 0.0f);
  std::fill(s.dx, s.dx + p.halo() * kConvStrip, 0.0f);
  for (std::int64_t t = 0; t < p.seq_len; t += p.piece()) {
    const std::int64_t rows = std::min(p.piece(), p.seq_len - t), halo = p.halo() * kConvStrip;
    read_x(a.x_TC, p, begin, begin + t, rows, c0, count, s.x);
    read_rows(a.dy_TC, begin + t, c0, {s.y, rows, kConvStrip, rows, count});
    std::fill(s.dx + halo, s.dx + halo + rows * kConvStrip, 0.0f);
    NIBBLE_SIMD_CALL(causal_conv_backward_strip, {rows, p.width, s.x, s.w, s.b},
                     {s.y, s.dx, partial, partial + p.width * kConvStrip});
    // Only what no later token adds to is complete: the halo that came in, and all rows but the last ones.
    const std::int64_t from = std::max<std::int64_t>(t - p.halo(), 0), known = t - from;
    const bool last = t + rows == p.seq_len;
    const std::int64_t until = last ? p.seq_len : std::max(t + rows - p.halo(), from);
    write_rows({s.dx + halo - known * kConvStrip, until - from, kConvStrip, until - from, count}, a.dx_TC,
               begin + from, c0);
    std::copy(s.dx + rows * kConvStrip, s.dx + rows * kConvStrip + halo, s.dx);
  }
}

}  // namespace

void run(Stream& stream, const CausalConvBackward& a) {
  const Plan p(a);
  ArenaScope scope(stream.scratch());
  ScratchSlots slots(stream, Scratch::floats(p, true));
  const std::int64_t stride = (p.width + 1) * kConvStrip;
  float* partials = stream.scratch().take<float>(p.tiles() * stride).data();
  stream.pool().parallel_for(p.tiles(), [&](std::int64_t tile) {
    ScratchSlots::Lease lease(slots);
    Scratch s(lease.data(), p, true);
    backward_of_strip(a, p, tile / p.strips * p.seq_len, tile % p.strips * kConvStrip, s,
                      partials + tile * stride);
  });
  for (std::int64_t c = 0; c < p.channels; ++c)
    for (std::int64_t k = 0; k <= p.width; ++k) {
      float sum = 0;
      for (std::int64_t q = 0; q < p.sequences; ++q)
        sum += partials[(q * p.strips + c / kConvStrip) * stride + k * kConvStrip + c % kConvStrip];
      if (k < p.width)
        a.dw_CK(c, k) += sum;
      else if (!a.db_C.empty())
        a.db_C(c) += sum;
    }
}

}  // namespace nibble::cpu
