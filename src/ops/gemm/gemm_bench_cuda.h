// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "ops/gemm/gemm_bench.h"

namespace nibble::cuda {

/// Seconds of one of `runs` calls of f, by the device's clock.
double seconds_of(Stream& stream, int runs, const std::function<void()>& f);

/// Fills in what the library's proposals take.
void measure_proposals(Stream& stream, const LtProduct& product, double seconds, GemmRate& rate);

}  // namespace nibble::cuda
