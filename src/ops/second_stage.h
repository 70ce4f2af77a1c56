// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "backend/device.h"

/// Sums and maxima over many blocks of a kernel, in two stages: each block leaves its part in scratch memory,
/// and one of these functions puts the parts together in an order fixed by the problem. Atomics would add in
/// the order of arrival.
namespace nibble::cuda {

/// out[c] += sum over r of partial_RC[r, c], in double, in an order that depends on R alone. `op` names the
/// op in messages. Bytes: 4 R C read, which mostly lie in the L2 cache.
void add_column_partials(Stream& stream, std::string_view op, View<const float> partial_RC,
                         View<float> out_C);

/// *amax = the largest of these magnitudes, given as bits (numeric/rounding.h magnitude_bits): NaN above
/// infinity above finite values. 0 for none. `to_bf16` rounds the result as what was written was rounded: the
/// largest of rounded values is the rounded largest value.
void finish_amax(Stream& stream, std::string_view op, View<const std::uint32_t> partial_R, bool to_bf16,
                 float* amax);

}  // namespace nibble::cuda
