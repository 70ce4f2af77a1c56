// SPDX-License-Identifier: Apache-2.0
#include "models/flops.h"

#include "models/parameters.h"

namespace nibble {

FlopsPerToken flops_per_token(const DecoderSpec& spec, std::int64_t sequence) {
  FlopsPerToken flops;
  for (const LinearInfo& l : linears(spec))
    flops.linears += 6.0 * static_cast<double>(l.n) * static_cast<double>(l.k);
  flops.head = 6.0 * static_cast<double>(spec.vocab) * static_cast<double>(spec.d_model);
  for (const SublayerSpec& sublayer : spec.sublayers) {
    if (const auto* a = std::get_if<AttentionSpec>(&sublayer.mixer)) {
      flops.attention += 6.0 * static_cast<double>(a->heads * a->head_dim) * static_cast<double>(sequence);
    } else if (const auto* m = std::get_if<Mamba2Spec>(&sublayer.mixer)) {
      flops.scan += 21.0 * static_cast<double>(m->inner()) * static_cast<double>(m->state);
    }
  }
  return flops;
}

}  // namespace nibble
