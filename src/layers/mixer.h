// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/context.h"
#include "layers/with_amax.h"

namespace nibble {

class Linear;

/// What stands between a norm and the residual add: attention, MLP or Mamba-2.
///
/// Forward takes what it keeps for backward from ctx.arena and leaves it there; backward takes temporaries
/// above that. One micro-batch is in flight: backward follows its forward.
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual void forward(Context& ctx, WithAmax x_TD, RealView y_TD) = 0;
  /// x_TD is what forward had, kept or computed again, or not read (Linear::keeps_x of the first). Overwrites
  /// dx_TD; adds to the parameters' main gradients. Writes nothing else: dy_TD may be the gradient of the
  /// residual stream itself, which the norm adds into afterwards.
  virtual void backward(Context& ctx, WithAmax x_TD, WithAmax dy_TD, RealView dx_TD) = 0;
  /// The linear that reads x, and the one that writes y and reads dy.
  virtual const Linear& first() const = 0;
  virtual const Linear& last() const = 0;
};

}  // namespace nibble
