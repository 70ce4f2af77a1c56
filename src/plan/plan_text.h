// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "plan/planner.h"

namespace nibble {

/// One plan in full: model, precisions, where each second and each byte goes, tokens, time, cost.
std::string plan_text(const Plan& plan);
/// Plans of one run side by side; speed-ups over the BF16, FP8 and MXFP8 among them.
std::string compare_text(const std::vector<Plan>& plans);
std::string sweep_text(const std::vector<SweepPoint>& points);
/// What the user should believe of all this, in a few lines that depend on the plan.
std::vector<std::string> honest_lines(const Plan& plan);

/// FLOPs a token by the kind of layer, forward and backward, causal attention halved.
struct KindShare {
  std::string kind;  ///< "attention.qkv", ..., "head", "attention", "scan"
  std::string precision;
  double parameters = 0, flops = 0, share = 0;
};
std::vector<KindShare> shares_by_kind(const Workload& work, double sequence);

Json plan_json(const Plan& plan);

/// "10T", "1.2G", "300M", "1e12": tokens. Throws Error{Usage}.
double parse_tokens(const std::string& text);
std::string tokens_text(double tokens);
std::string hours_text(double hours);  ///< hours below two days, else days

}  // namespace nibble
