// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "ops/attention/attention.h"
#include "ops/conformance.h"

#ifdef NIBBLE_WITH_CUDA
#include "ops/attention/attention_cuda.h"
#endif

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;

struct Shape {
  std::int64_t sequences, seq_len, heads, groups, width;
  float scale;
  bool fused = false;  ///< q, k, v (and their gradients) are slices of one tensor
  std::string text() const {
    return fmt::format("{}x{} H={} G={} D={} scale={}{}", sequences, seq_len, heads, groups, width, scale,
                       fused ? " fused" : "");
  }
};

// One token, lengths around a tile (64), several tiles, grouped heads, widths that are no multiple of a
// vector or beyond 128, and a scale that makes the softmax nearly one-hot.
const Shape kShapes[] = {
    {3, 1, 2, 1, 4, 0.5f},   {2, 7, 4, 2, 5, 0.4f},           {1, 64, 2, 2, 32, 0.18f},
    {2, 65, 3, 1, 8, 0.3f},  {1, 150, 4, 2, 33, 0.2f},        {1, 70, 1, 1, 16, 20.0f},
    {1, 66, 2, 1, 72, 0.1f}, {1, 37, 2, 1, 200, 0.07f, true},
};
// What training has: a library may compute these on a GPU, in BF16. The length of the last one is no
// multiple of any tile.
const Shape kTrainingShapes[] = {
    {2, 128, 4, 2, 64, 0.125f, true}, {1, 256, 2, 1, 128, 0.0884f, true}, {1, 136, 1, 1, 64, 0.125f}};

// FP32 sums of up to 256 terms, a scaled query rounded once, and e^x within 1 ulp of an argument that itself
// carries the rounding of a dot product: 1e-7 times a few, times |score| where scores are large.
double fp32_bound(const Shape& s) { return s.scale > 1 ? 1e-3 : 1e-5; }

// Fused kernels round the probabilities P and dS to BF16 (u = 2^-8) before the second product, so an output
// sum over s of P[s] v[s] is wrong by at most u sum P |v|. That is most, beside the root mean square of all
// outputs (sqrt(e ln S / S), 0.24 to 0.32 here), where two keys share the probability. There the larger one,
// e^0 before the division, is exact, and u |v| / 2 remains: 2.2 u for normal values up to 4.5, or 8 u of the
// rms. Arithmetic that rounds so and nothing else reaches 3.1 u in fifteen drawn cases. In gradients two
// normal factors multiply before they are rounded (dP with k, or P with dout over all queries): the same
// drawn cases reach 10.2 u, the bound is 24 u. A wrong mask, scale or unit of the log-sum-exp is wrong by the
// rms itself.
constexpr double kOutputGpu = 8.0 / 256, kGradientGpu = 24.0 / 256;
// ln(1 + u) over a log-sum-exp of about 4.5, should the rounded probabilities be those that are summed.
constexpr double kLseGpu = 1e-3;

template <class View>
std::array<View, 3> split_fused(const View& all, const Shape& s) {
  return {all.slice(1, 0, s.heads), all.slice(1, s.heads, s.groups),
          all.slice(1, s.heads + s.groups, s.groups)};
}
std::array<ConstRealView, 3> inputs(Case& c, const Shape& s) {
  const std::int64_t tokens = s.sequences * s.seq_len;
  if (s.fused) return split_fused(c.input(tokens, s.heads + 2 * s.groups, s.width), s);
  const ConstRealView q = c.input(tokens, s.heads, s.width), k = c.input(tokens, s.groups, s.width);
  return {q, k, c.input(tokens, s.groups, s.width)};
}
std::array<RealView, 3> gradients(Case& c, const Shape& s, Bound bound) {
  const std::int64_t tokens = s.sequences * s.seq_len;
  if (s.fused) return split_fused(c.output("dqkv", bound, tokens, s.heads + 2 * s.groups, s.width), s);
  const RealView dq = c.output("dq", bound, tokens, s.heads, s.width),
                 dk = c.output("dk", bound, tokens, s.groups, s.width);
  return {dq, dk, c.output("dv", bound, tokens, s.groups, s.width)};
}

Attention forward_of(Case& c, const Shape& s, Bound out, Bound lse) {
  const std::int64_t tokens = s.sequences * s.seq_len;
  const auto qkv = inputs(c, s);
  return {.q_THD = qkv[0],
          .k_TGD = qkv[1],
          .v_TGD = qkv[2],
          .out_THD = c.output("out", out, tokens, s.heads, s.width),
          .lse_HT = c.output_f32("lse", lse, s.heads, tokens),
          .seq_len = s.seq_len,
          .scale = s.scale};
}

AttentionBackward backward_of(Case& c, const Shape& s, Bound bound) {
  const Attention f = forward_of(c, s, Bound::same_bytes(), Bound::same_bytes());
  HostDevice device;
  Stream stream(BackendKind::Ref, device, 1);
  attention(stream, f);
  const ConstRealView dout = c.input(s.sequences * s.seq_len, s.heads, s.width);
  const auto d = gradients(c, s, bound);
  return {.q_THD = f.q_THD,
          .k_TGD = f.k_TGD,
          .v_TGD = f.v_TGD,
          .out_THD = f.out_THD,
          .lse_HT = f.lse_HT,
          .dout_THD = dout,
          .dq_THD = d[0],
          .dk_TGD = d[1],
          .dv_TGD = d[2],
          .seq_len = s.seq_len,
          .scale = s.scale};
}

TEST(Conformance, attention) {
  for (const Shape& s : kShapes)
    conformance::compare<Attention>(attention, s.text(), [&](Case& c) {
      return forward_of(c, s, Bound::of(fp32_bound(s)), Bound::of(fp32_bound(s)));
    });
  for (const Shape& s : kTrainingShapes)
    conformance::compare<Attention>(attention, s.text(), [&](Case& c) {
      return forward_of(c, s, Bound::of(fp32_bound(s), kOutputGpu), Bound::of(fp32_bound(s), kLseGpu));
    });
}

TEST(Conformance, attention_backward) {
  for (const Shape& s : kShapes)
    conformance::compare<AttentionBackward>(
        attention_backward, s.text(), [&](Case& c) { return backward_of(c, s, Bound::of(fp32_bound(s))); });
  for (const Shape& s : kTrainingShapes)
    conformance::compare<AttentionBackward>(attention_backward, s.text(), [&](Case& c) {
      return backward_of(c, s, Bound::of(fp32_bound(s), kGradientGpu));
    });
}

#ifdef NIBBLE_WITH_CUDA
// Own kernels compute these shapes too, many times slower and within the narrower bound: without this test
// nobody would see that the library is not asked any more.
TEST(AttentionEngine, CudnnTakesTheTrainingShapesWhereItIsInstalled) {
  if (conformance::gpu() == nullptr) return;
  Stream stream(BackendKind::Cuda, *conformance::gpu(), 1);
  if (cuda_device(stream).attached<cuda::CudnnAttention>().version().empty()) return;
  for (const Shape& s : kTrainingShapes) {
    Case c(*conformance::gpu(), 1, DType::BF16, 0);
    const Bound any = Bound::same_bytes();
    EXPECT_THAT(cuda::attention_engine(stream, forward_of(c, s, any, any)), testing::StartsWith("cudnn"));
    EXPECT_THAT(cuda::attention_engine(stream, backward_of(c, s, any)), testing::StartsWith("cudnn"));
  }
}
#endif

}  // namespace
}  // namespace nibble
