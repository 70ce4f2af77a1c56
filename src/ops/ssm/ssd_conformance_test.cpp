// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/conformance.h"
#include "ops/ssm/ssd.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;

struct Shape {
  std::int64_t sequences, seq_len, heads, groups, width, state, chunk;
  double dt_mean;             ///< of the raw dt: large ones make the decays underflow
  double log_a;               ///< mean of a_log
  bool tensor_cores = false;  ///< in BF16 and without gaps `cuda` multiplies on tensor cores
  std::string text() const {
    return fmt::format("{}x{} H={} G={} P={} N={} chunk={} dt={} a_log={}", sequences, seq_len, heads, groups,
                       width, state, chunk, dt_mean, log_a);
  }
};

// One token, odd lengths, a chunk longer than the sequence, chunks of one token and of no multiple of a tile
// (32), groups of more heads than one block (4), widths and states that are no multiple of a vector; nearly
// no decay and decays far below the smallest number. The last two, for tensor cores: several pieces of 128
// tokens, the last one short, a chunk of one piece and of two, a group of several heads and of one.
const Shape kShapes[] = {
    {3, 1, 2, 1, 4, 4, 8, 0, 0},
    {2, 7, 4, 2, 5, 3, 3, 0, 0},
    {1, 70, 2, 1, 32, 32, 128, -2, 0},
    {2, 33, 6, 1, 8, 16, 1, 0, 0},
    {2, 45, 3, 3, 33, 40, 37, -1, 0},
    {1, 130, 10, 2, 12, 20, 64, -3, 1},
    {1, 100, 2, 2, 16, 16, 32, 30, 3},
    {1, 100, 2, 1, 16, 16, 50, -9, -2},
    {2, 160, 3, 1, 64, 128, 128, -2, 0, true},
    {1, 290, 2, 2, 64, 64, 256, -4, 0, true},
};

// Sums of up to a few hundred FP32 terms; the exponent of a decay carries a relative error of some 1e-7 of
// its size, which matters only where the decay is not yet negligible (|exponent| < 20).
constexpr double kBound = 1e-5;

// Tensor cores take BF16 operands. By ssm/ssd_cuda.cuh the error of y is at most 2u, that of a gradient at
// most 3u times the sum of the sizes of its terms, u = 2^-9: some 10 to 20 times a result of terms of both
// signs, so at most 0.08 and 0.12 of it. The roundings are independent, and what remains of the bound is the
// spread of sizes: a small element of a head that forgets slowly has the error of its neighbours, several
// times the root mean square of all heads. Largest seen: 0.017 and 0.024.
constexpr double kForwardOnTensorCores = 3e-2, kBackwardOnTensorCores = 5e-2;

Bound bound_of(const Shape& s, double relative, double on_tensor_cores) {
  return s.tensor_cores ? Bound::of(relative, on_tensor_cores) : Bound::of(relative);
}

Ssd forward_of(Case& c, const Shape& s, Bound bound) {
  const std::int64_t tokens = s.sequences * s.seq_len, chunks = s.sequences * chunks_of(s.seq_len, s.chunk);
  // As a layer has them: x, B and C side by side in one matrix.
  const std::int64_t inner = s.heads * s.width, shared = s.groups * s.state;
  const ConstRealView xbc = c.input(tokens, inner + 2 * shared);
  Ssd a{.x_THP = xbc.cols(0, inner).split_last(s.heads, s.width),
        .b_TGN = xbc.cols(inner, shared).split_last(s.groups, s.state),
        .c_TGN = xbc.cols(inner + shared, shared).split_last(s.groups, s.state),
        .dt_TH = c.input(tokens, s.heads),
        .a_log_H = c.input_f32(0.5, s.log_a, s.heads),
        .d_H = c.input_f32(1, 0, s.heads),
        .dt_bias_H = c.input_f32(0.5, s.dt_mean, s.heads),
        .y_THP = c.output("y", bound, tokens, s.heads, s.width),
        .seq_len = s.seq_len,
        .chunk = s.chunk};
  const auto kept = c.output_f32("states", bound, chunks * s.heads * s.width * s.state);
  a.states = View<float>(kept.data(), chunks, s.heads, s.width, s.state);
  return a;
}

TEST(Conformance, ssd) {
  for (const Shape& s : kShapes)
    conformance::compare<Ssd>(
        ssd, s.text(), [&](Case& c) { return forward_of(c, s, bound_of(s, kBound, kForwardOnTensorCores)); });
}

SsdBackward backward_of(Case& c, const Shape& s) {
  const Ssd f = forward_of(c, s, Bound::same_bytes());
  HostDevice device;
  Stream stream(BackendKind::Ref, device, 1);
  ssd(stream, f);
  const std::int64_t tokens = s.sequences * s.seq_len;
  const Bound bound = bound_of(s, 2 * kBound, kBackwardOnTensorCores);
  return {.x_THP = f.x_THP,
          .b_TGN = f.b_TGN,
          .c_TGN = f.c_TGN,
          .dt_TH = f.dt_TH,
          .a_log_H = f.a_log_H,
          .d_H = f.d_H,
          .dt_bias_H = f.dt_bias_H,
          .states = f.states,
          .dy_THP = c.input(tokens, s.heads, s.width),
          .dx_THP = c.output("dx", bound, tokens, s.heads, s.width),
          .db_TGN = c.output("db", bound, tokens, s.groups, s.state),
          .dc_TGN = c.output("dc", bound, tokens, s.groups, s.state),
          .ddt_TH = c.output("ddt", bound, tokens, s.heads),
          .da_log_H = c.output_f32("da_log", bound, s.heads),
          .dd_H = c.output_f32("dd", bound, s.heads),
          .ddt_bias_H = c.output_f32("ddt_bias", bound, s.heads),
          .seq_len = s.seq_len,
          .chunk = s.chunk};
}

TEST(Conformance, ssd_backward) {
  for (const Shape& s : kShapes)
    conformance::compare<SsdBackward>(ssd_backward, s.text(), [&](Case& c) { return backward_of(c, s); });
}

TEST(Conformance, ssd_backward_with_limits_of_dt) {
  const Shape s{2, 45, 4, 2, 8, 8, 16, 0, 0};
  conformance::compare<SsdBackward>(ssd_backward, s.text(), [&](Case& c) {
    SsdBackward a = backward_of(c, s);
    a.dt_min = 0.4f;
    a.dt_max = 1.1f;
    return a;
  });
}

}  // namespace
}  // namespace nibble
