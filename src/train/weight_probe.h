// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "layers/context.h"
#include "models/param_store.h"

namespace nibble {

/// Some rows of a weight as they were before the optimizer moved it.
struct KeptWeight {
  const ParamStore::Entry* entry = nullptr;
  QuantSpec spec;  ///< fprop's
  std::int64_t first_row = 0;
  View<float> master, decoded;  ///< [rows, K]; `decoded` is empty where fprop does not quantise the weight
  WeightSums* out = nullptr;
};

/// Measures the main gradient of each weight that `observer` wants and keeps up to 64 consecutive rows of it,
/// others in every observed step, in memory of `arena`: FP32 master weights, and what fprop's quantiser makes
/// of the whole weight, decoded. `plan` is the step's, a linear each.
std::vector<KeptWeight> keep_weights(Stream& stream, Arena& arena, const ParamStore& params,
                                     std::span<const LinearInfo> linears,
                                     std::span<const ResolvedLinear> plan, std::int64_t step,
                                     QuantObserver& observer);

/// After the optimizer: adds what became of those rows to each WeightSums. Master weights that move by less
/// than the distance between codes change the decoded weight by as much in the mean (sum |dq| = sum |dw|)
/// while they are spread evenly between the codes; a larger ratio says that they gather where the rounding
/// flips, that is they oscillate (the quantity of TetraJet-v2, arXiv 2510.27527, over one step and many
/// weights).
void compare_weights(Stream& stream, const ParamStore& params, const std::vector<KeptWeight>& kept);

}  // namespace nibble
