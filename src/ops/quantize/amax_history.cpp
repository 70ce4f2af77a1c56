// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/amax_history.h"

namespace nibble {

void check(const ChooseAmax& c) {
  check(c.found != nullptr && c.pending != nullptr && c.used != nullptr,
        "choose_amax: found, pending and used must be given");
  check(c.history_L.rank() == 1 && c.history_L.size(0) >= 1 && c.history_L.is_contiguous(),
        "choose_amax: the history must be a contiguous vector of at least one amax");
  check(c.margin >= -30 && c.margin <= 30, "choose_amax: a margin of {} is not between -30 and 30", c.margin);
}

void check(const PushAmax& p) {
  check(p.pending_S.rank() == 1 && p.pending_S.is_contiguous(),
        "push_amax: the pending amaxes must be a contiguous vector");
  check(p.history_SL.rank() == 2 && p.history_SL.size(0) == p.pending_S.size(0) &&
            p.history_SL.size(1) >= 1 && p.history_SL.is_contiguous(),
        "push_amax: the histories must be a contiguous matrix with a row for each of the {} amaxes",
        p.pending_S.size(0));
}

}  // namespace nibble
