// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/linear.h"
#include "layers/mixer.h"
#include "layers/mixer_spec.h"

namespace nibble {

/// Mamba-2: in -> causal convolution with SiLU over (x, B, C) -> state-space scan -> gated norm -> out.
/// Only the two linears can be quantised; convolution, scan and norm are FP32 inside. [MAMBA2]
class Mamba2 final : public Mixer {
 public:
  struct Params {
    Param conv_weight_CK, conv_bias_C, dt_bias_H, a_log_H, d_H, norm_weight;
  };
  Mamba2(const Mamba2Spec& spec, float norm_eps, Linear in, Linear out, const Params& params)
      : spec_(spec), norm_eps_(norm_eps), in_(std::move(in)), out_(std::move(out)), p_(params) {}
  void forward(Context& ctx, WithAmax x_TD, RealView y_TD) override;
  void backward(Context& ctx, WithAmax x_TD, WithAmax dy_TD, RealView dx_TD) override;
  const Linear& first() const override { return in_; }
  const Linear& last() const override { return out_; }

 private:
  /// The parts of in's output, in its row order: z | x B C (the convolution's channels) | dt.
  template <class V>
  struct Projected {
    V z, xbc, dt_TH;
  };
  template <class V>
  Projected<V> split_projected(V projected) const;
  /// The parts of the convolution's output.
  template <class V>
  struct Convolved {
    V x_THP, b_TGN, c_TGN;
  };
  template <class V>
  Convolved<V> split_convolved(V convolved) const;

  /// The gated norm of what was scanned, in memory of `arena`.
  WithAmax gate(Context& ctx, Arena& arena) const;

  Mamba2Spec spec_;
  float norm_eps_;
  Linear in_, out_;
  Params p_;
  ConstRealView saved_projected_, saved_convolved_, saved_scanned_;
  WithAmax saved_gated_;
  View<float> saved_states_, saved_rstd_TG_;
};

}  // namespace nibble
