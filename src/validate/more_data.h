// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "validate/protocol.h"
#include "validate/verdict.h"

namespace nibble {

/// The fewest pairs (3 to 100) whose one-sided bound would separate `gap` from `limit`, if sd and gap stay; 0
/// if more than 100.
int pairs_needed(double gap, double limit, double sigma, double confidence);

/// The fewest A/A arms beyond those there are (1 to 20) after which the window would be decided, if gap and
/// noise stay: they do not move the gap, they make its noise better known. 0 where that cannot decide.
int aa_arms_needed(const WindowResult& w, const NoiseRule& rule, int pairs, double confidence);

/// What would decide an inconclusive window, from its own numbers: seeds and the tokens they cost, A/A arms
/// and theirs, and the limit that this run would pass. `assumed`: its noise was never measured.
std::string what_would_decide(const Protocol& p, const WindowResult& w, int pairs, bool assumed);

}  // namespace nibble
