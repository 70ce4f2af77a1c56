// SPDX-License-Identifier: Apache-2.0
#include "plan/tokens.h"

#include <cmath>
#include <limits>

#include "io/json.h"

namespace nibble {

double LossLaw::loss(double parameters, double tokens) const {
  return floor + a / std::pow(parameters, alpha) + b / std::pow(tokens, beta);
}

double token_ratio(double parameters, double tokens, double gap, const LossLaw& law) {
  if (gap <= 0) return 1;
  const double wanted = law.loss(parameters, tokens) / (1 + gap);
  const double left = wanted - law.floor - law.a / std::pow(parameters, law.alpha);
  if (left <= 0) return std::numeric_limits<double>::infinity();
  return std::pow(law.b / left, 1 / law.beta) / tokens;
}

Gap published_gap(const Workload& work, double tokens) {
  bool nvfp4 = false, mxfp4 = false;
  for (const LinearWork& l : work.linears) {
    for (const Gemm g : kGemms) {
      for (const Operand o : kOperands) {
        nvfp4 = nvfp4 || l.resolved.spec(g, o).format == Format::Nvfp4;
        mxfp4 = mxfp4 || l.resolved.spec(g, o).format == Format::Mxfp4;
      }
    }
  }
  if (mxfp4) return {0.025, "MXFP4, 8B at 1T tokens [NVFP4]"};
  if (nvfp4 && tokens < 10e9) return {0.008, "NVFP4, 8B at 1.2G tokens: 0.57 to 0.85 % [MLPERF51]"};
  if (nvfp4) return {0.015, "NVFP4, 8B at 1T and 12B at 10T tokens, at the end of the decay [NVFP4]"};
  return {0, "BF16 and 8-bit recipes are taken as equal: no gap beyond noise is published"};
}

Gap gap_of_verdict(const std::string& path) {
  const Json verdict = read_json(path);
  return {json_get<double>(verdict, "relative_gap", path), path};
}

}  // namespace nibble
