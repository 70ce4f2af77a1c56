// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "eval/request.h"
#include "models/decoder.h"

namespace nibble {

/// A model's forward pass over whole sequences of `length` tokens in host memory.
using Forward = std::function<TokenScores(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                                          std::int64_t length)>;

struct Score {
  double log_likelihood = 0;  ///< nats, summed over the scored tokens in double
  bool greedy = false;        ///< every scored token is the likeliest
};

/// How requests are put together. It never changes what a request is given, but padding and neighbours change
/// the order of sums inside a product, and under a recipe that scales a whole tensor of activations by its
/// amax also the rounding: then every request goes alone, so that its score is its own.
struct Batching {
  std::int64_t max_length = 0;  ///< the model's
  std::int64_t tokens = 4096;   ///< of a batch, at most, padding included
  bool alone = false;
};

/// Scores in the order of the requests. They are computed longest first, in batches of sequences padded on
/// the right to a multiple of 32 tokens; a batch is a pure function of the requests and `batching`. Throws
/// Error{NonFinite} when a scored token's loss is not finite.
std::vector<Score> score(const std::vector<Request>& requests, const Forward& forward,
                         const Batching& batching);

}  // namespace nibble
