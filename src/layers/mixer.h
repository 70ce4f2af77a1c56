// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/context.h"

namespace nibble {

/// What stands between a norm and the residual add: attention, MLP or Mamba-2.
///
/// Forward takes what it keeps for backward from ctx.arena and leaves it there; backward takes temporaries
/// above that. One micro-batch is in flight: backward follows its forward.
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual void forward(Context& ctx, ConstRealView x_TD, RealView y_TD) = 0;
  /// x_TD is what forward had, kept or computed again. Overwrites dx_TD; adds to the parameters' main
  /// gradients.
  virtual void backward(Context& ctx, ConstRealView x_TD, ConstRealView dy_TD, RealView dx_TD) = 0;
};

}  // namespace nibble
