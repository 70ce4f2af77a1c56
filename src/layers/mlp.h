// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/linear.h"
#include "layers/mixer.h"
#include "layers/mixer_spec.h"

namespace nibble {

/// down(act(up(x))): SwiGLU with gate and up fused into one linear, or squared ReLU.
class Mlp final : public Mixer {
 public:
  Mlp(const MlpSpec& spec, Linear up, Linear down)
      : spec_(spec), up_(std::move(up)), down_(std::move(down)) {}
  void forward(Context& ctx, WithAmax x_TD, RealView y_TD) override;
  void backward(Context& ctx, WithAmax x_TD, WithAmax dy_TD, RealView dx_TD) override;
  const Linear& first() const override { return up_; }
  const Linear& last() const override { return down_; }

 private:
  /// The hidden features: in memory of `arena`, or of squared ReLU in the place of `up`, which its backward
  /// does not read.
  WithAmax activate(Context& ctx, RealView up, Arena& arena) const;
  bool in_place() const { return spec_.activation == Activation::Relu2; }

  MlpSpec spec_;
  Linear up_, down_;
  RealView saved_up_;
  WithAmax saved_hidden_TF_;
};

}  // namespace nibble
