// SPDX-License-Identifier: Apache-2.0
#include "layers/attention_formats.h"

#include <cmath>

#include "layers/linear.h"
#include "ops/attention/quantized_attention.h"
#include "ops/quantize/quantize.h"

namespace nibble {
namespace {

enum class Axis { Features, Tokens };

/// What is quantised: which operand of attention, and of how many heads.
struct Source {
  ConstRealView x_TC;
  std::int64_t heads;
  int operand;  ///< see attention_fault_id
};

Format of_gradients(Format format) { return format == Format::Fp8E4M3 ? Format::Fp8E5M2 : format; }

class Maker {
 public:
  Maker(Context& ctx, const AttentionInFormats& a) : ctx_(ctx), a_(a) {}

  Source q() const { return {a_.q_TC, a_.heads, 0}; }
  Source k() const { return {a_.k_TC, a_.kv_heads, 1}; }
  Source v() const { return {a_.v_TC, a_.kv_heads, 2}; }

  AttentionOperand plain(const Source& s) const { return {s.x_TC.split_last(s.heads, a_.head_dim)}; }

  /// `s` in `format`, blocks along `axis`; FP8 has none, so one copy serves both axes.
  AttentionOperand make(const Source& s, Format format, Axis axis) const {
    if (!is_quantized(format)) return plain(s);
    const bool transpose = axis == Axis::Tokens && info(format).block > 0;
    const std::int64_t tokens = s.x_TC.size(0), features = s.x_TC.size(1);
    Arena& scratch = ctx_.stream.scratch();
    const View<bf16> values =
        transpose ? scratch.take<bf16>(features, tokens) : scratch.take<bf16>(tokens, features);
    float* numbers = scratch.take<float>(2).data();
    const std::int64_t fault = attention_fault_id(a_.qkv, s.operand);
    quantize(ctx_.stream, {.x_RC = s.x_TC,
                           .spec = {.format = format, .non_finite = a_.recipe.non_finite},
                           .transpose = transpose,
                           .amax = numbers,
                           .scale = numbers + 1,
                           .values = values,
                           .fault = ctx_.record ? &ctx_.record->fault : nullptr,
                           .fault_id = fault});
    require_finite(numbers, fault);
    Layout heads = Layout::contiguous(tokens, s.heads, a_.head_dim);
    if (transpose) heads.stride = {1, a_.head_dim * tokens, tokens};
    return {View<const bf16>(values.data(), heads), format, numbers + 1};
  }

 private:
  void require_finite(const float* amax, std::int64_t fault) const {
    if (ctx_.record != nullptr || a_.recipe.non_finite != NonFinite::Detect) return;
    const float found = read(ctx_.stream.device(), amax);
    if (!std::isfinite(found))
      throw Error(ErrorKind::NonFinite, fault_sentence(ctx_.step, std::span(&a_.qkv, 1), fault,
                                                       std::isnan(found) ? "a NaN" : "an infinity"));
  }

  Context& ctx_;
  const AttentionInFormats& a_;
};

float score_scale(std::int64_t head_dim) { return 1 / std::sqrt(static_cast<float>(head_dim)); }

}  // namespace

void attention_in_formats(Context& ctx, const AttentionInFormats& a, RealView out_TC, View<float> lse_HT) {
  const ArenaScope temporaries(ctx.stream.scratch());
  const Maker m(ctx, a);
  quantized_attention(ctx.stream, {.q = m.make(m.q(), a.recipe.qk, Axis::Features),
                                   .k = m.make(m.k(), a.recipe.qk, Axis::Features),
                                   .v = m.make(m.v(), a.recipe.pv, Axis::Tokens),
                                   .pv = a.recipe.pv,
                                   .out_THD = out_TC.split_last(a.heads, a.head_dim),
                                   .lse_HT = lse_HT,
                                   .seq_len = ctx.seq_len,
                                   .scale = score_scale(a.head_dim)});
}

void attention_in_formats_backward(Context& ctx, const AttentionInFormats& a, View<const float> lse_HT,
                                   ConstRealView dout_TC, RealView dq_TC, RealView dk_TC, RealView dv_TC) {
  const ArenaScope temporaries(ctx.stream.scratch());
  const Maker m(ctx, a);
  const Source dout{dout_TC, a.heads, 3};
  const AttentionRecipe& r = a.recipe;
  const AttentionOperand q = m.make(m.q(), r.qk, Axis::Features), k = m.make(m.k(), r.qk, Axis::Features);
  QuantizedAttentionBackward b{.q = q,
                               .k = k,
                               .pv = r.pv,
                               .lse_HT = lse_HT,
                               .dq_THD = dq_TC.split_last(a.heads, a.head_dim),
                               .dk_TGD = dk_TC.split_last(a.kv_heads, a.head_dim),
                               .dv_TGD = dv_TC.split_last(a.kv_heads, a.head_dim),
                               .seq_len = ctx.seq_len,
                               .scale = score_scale(a.head_dim),
                               .fault = ctx.record ? &ctx.record->fault : nullptr,
                               .fault_id = attention_fault_id(a.qkv, 4)};
  if (r.backward) {
    b.ds = of_gradients(r.qk);
    b.k_q = m.make(m.k(), r.qk, Axis::Tokens);
    b.q_k = m.make(m.q(), r.qk, Axis::Tokens);
    b.dout_p = m.make(dout, of_gradients(r.pv), Axis::Features);
    b.v_p = m.make(m.v(), r.pv, Axis::Features);
    b.dout_v = m.make(dout, of_gradients(r.pv), Axis::Tokens);
  } else {
    // The gradients of the forward pass as it was, straight through its quantisers.
    b.k_q = k;
    b.q_k = q;
    b.dout_p = b.dout_v = m.plain(dout);
    b.v_p = m.make(m.v(), r.pv, Axis::Tokens);
  }
  quantized_attention_backward(ctx.stream, b);
}

}  // namespace nibble
