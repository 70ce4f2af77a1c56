// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "layers/attention_formats.h"
#include "layers/linear.h"
#include "layers/mixer.h"
#include "layers/mixer_spec.h"

namespace nibble {

/// Cosines and sines of every position, FP32 rounded from double. [HF] half-split order, [LLAMA3] stretching.
class RopeTable {
 public:
  RopeTable(Device& device, const RopeSpec& spec, std::int64_t head_dim, std::int64_t positions);
  View<const float> cos_SF() const { return {cos_.as<float>(), layout_}; }
  View<const float> sin_SF() const { return {sin_.as<float>(), layout_}; }

 private:
  Buffer cos_, sin_;
  Layout layout_;
};

/// Causal grouped-query attention with a fused QKV linear. The two matrix products inside are quantised where
/// the recipe has formats for them (layers/attention_formats.h), the softmax never.
class AttentionLayer final : public Mixer {
 public:
  /// `rope` may be null (no positions) and is shared by the layers of a model.
  AttentionLayer(const AttentionSpec& spec, Linear qkv, Linear out, std::shared_ptr<const RopeTable> rope)
      : spec_(spec), qkv_(std::move(qkv)), out_(std::move(out)), rope_(std::move(rope)) {}
  void forward(Context& ctx, WithAmax x_TD, RealView y_TD) override;
  void backward(Context& ctx, WithAmax x_TD, WithAmax dy_TD, RealView dx_TD) override;
  const Linear& first() const override { return qkv_; }
  const Linear& last() const override { return out_; }

 private:
  template <class V>
  struct Qkv {
    V q_THD, k_TGD, v_TGD;
  };
  template <class V>
  Qkv<V> split(V fused) const;
  void turn(Context& ctx, RealView fused, bool inverse) const;
  void unquantized_backward(Context& ctx, ConstRealView dmixed, RealView dqkv) const;
  AttentionInFormats in_formats(const Context& ctx, ConstRealView fused) const;
  void observe_logits(Context& ctx, ConstRealView q_THD, ConstRealView k_TGD) const;

  AttentionSpec spec_;
  Linear qkv_, out_;
  std::shared_ptr<const RopeTable> rope_;
  ConstRealView saved_qkv_, saved_mixed_;
  View<float> saved_lse_HT_;
};

}  // namespace nibble
