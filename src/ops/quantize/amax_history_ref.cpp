// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/amax_history.h"
#include "quant/amax.h"

namespace nibble::ref {

void run(Stream&, const ChooseAmax& c) {
  const std::int64_t L = c.history_L.size(0);
  const std::uint32_t step = c.step_at != nullptr ? *c.step_at : c.step;
  float most = 0;
  for (std::int64_t i = 0; i < L; ++i) most = amax_keeping_nan(most, c.history_L(i));
  const float newest = step == 0 ? 0.0f : c.history_L((step - 1) % L);
  *c.pending = amax_keeping_nan(*c.pending, *c.found);
  *c.used = chosen_amax(c.rule, most, newest, *c.found, c.start, c.margin, *c.used);
}

void run(Stream&, const PushAmax& p) {
  const std::uint32_t step = p.step_at != nullptr ? *p.step_at : p.step;
  const bool halted = p.halted != nullptr && *p.halted != 0;
  for (std::int64_t s = 0; s < p.pending_S.size(0); ++s) {
    if (!halted) p.history_SL(s, step % p.history_SL.size(1)) = p.pending_S(s);
    p.pending_S(s) = 0;
  }
}

}  // namespace nibble::ref
