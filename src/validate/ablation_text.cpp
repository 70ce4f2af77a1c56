// SPDX-License-Identifier: Apache-2.0
// An ablation in words and as JSON.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "validate/ablation.h"

namespace nibble {
namespace {

std::string percent(double share) { return fmt::format("{:+.2f} %", 100 * share); }

std::string interval(const std::optional<GapEstimate>& g) {
  if (!g) return "-";
  if (g->identical) return "0, every bit the same";
  return fmt::format("{} [{:+.2f}, {:+.2f}]", percent(g->mean), 100 * g->ci95[0], 100 * g->ci95[1]);
}

std::string word(const AblationRow& r) {
  if (!r.finished) return "not finished yet";
  if (!r.broken.empty()) return r.broken;
  if (r.name == kBaselineArm) return "the baseline";
  if (r.name == kAgainArm) return "the baseline with another seed, not paired";
  if (!r.against_full) return r.name == kFullArm ? "the recipe as configured" : "-";
  if (r.against_full->identical) return "the edit changed nothing";
  if (!r.against_full->separates()) return "within the noise of the full recipe";
  return r.against_full->mean > 0 ? "worse than the full recipe" : "better than the full recipe";
}

std::string table(const Ablation& a) {
  std::size_t wide = 3;
  for (const AblationRow& r : a.rows) wide = std::max(wide, r.name.size());
  std::string out = fmt::format("{:<{}}  {:>8}  {:>28}  {:>28}\n", "arm", wide, "loss",
                                "gap to the baseline, 95 %", "gap to the full recipe, 95 %");
  for (const AblationRow& r : a.rows) {
    out += fmt::format("{:<{}}  {:>8}  {:>28}  {:>28}   {}\n", r.name, wide,
                       r.loss ? fmt::format("{:.4f}", *r.loss) : "-", interval(r.gap),
                       interval(r.against_full), word(r));
  }
  return out;
}

std::string edits_text(const Ablation& a) {
  std::string out;
  for (const AblationRow& r : a.rows) {
    out += fmt::format("  {}: {}{}\n", r.name, r.recipe,
                       r.edits.empty() ? "" : fmt::format(" with {}", fmt::join(r.edits, ", ")));
    for (const std::string& f : r.faults) out += fmt::format("    FAULT: {}\n", f);
  }
  return out;
}

std::string noise_text(const Ablation& a) {
  if (a.spread)
    return fmt::format("Intervals: Student t over {} paired differences each, {} degrees of freedom.\n",
                       a.seeds, a.seeds - 1);
  return fmt::format(
      "Intervals: {} cannot show how seeds scatter, so the noise of one seed is ASSUMED by the protocol's "
      "rule: "
      "{:.2f} %\n({}); every interval reaches {:.2f} % to either side.\n"
      "From three seeds on (--seeds 3) it is measured, by Student t over the paired differences.\n",
      a.seeds == 1 ? "one seed" : "two seeds", 100 * a.noise.sigma, a.noise.source,
      100 * a.noise.reach(0.975) / std::sqrt(static_cast<double>(a.seeds)));
}

std::string aa_text(const Ablation& a) {
  if (!a.noise.aa_rms) return "Noise floor: no A/A arm was run.\n";
  return fmt::format(
      "Noise floor: the full recipe under another stochastic-rounding key moves by {:.2f} % (rms over the "
      "last "
      "{:.0f} % of the run); a difference of this size means nothing.\n",
      100 * *a.noise.aa_rms, 100 * a.protocol.noise.aa_share);
}

Json json_of(const std::optional<GapEstimate>& g) {
  if (!g) return nullptr;
  return {{"mean", g->mean},
          {"ci95", g->ci95},
          {"by_seed", g->by_seed},
          {"identical", g->identical},
          {"separates", g->separates()}};
}

Json json_of(const AblationRow& r) {
  return {{"arm", r.name},         {"recipe", r.recipe},
          {"edits", r.edits},      {"loss", r.loss ? Json(*r.loss) : Json(nullptr)},
          {"gap", json_of(r.gap)}, {"against_full", json_of(r.against_full)},
          {"broken", r.broken},    {"faults", r.faults},
          {"finished", r.finished}};
}

}  // namespace

std::string ablation_text(const Ablation& a) {
  const DecisionWindow& w = a.protocol.final_window();
  std::string out =
      fmt::format("{}: {} parameters, {} steps of {} tokens, {} seed{}; means over steps {} to {}\n\n",
                  a.protocol.model, a.protocol.parameters, a.protocol.steps, a.protocol.tokens_per_step,
                  a.seeds, a.seeds == 1 ? "" : "s", w.after_step + 1, w.last_step);
  out += table(a) + "\n" + edits_text(a);
  for (const std::string& s : a.left_out) out += fmt::format("  left out: {}\n", s);
  out += "\n" + noise_text(a) + aa_text(a);
  if (a.rows.size() > 3)
    out += fmt::format(
        "{} arms are compared at once: of twenty edits that change nothing, one falls outside its 95 % "
        "interval.\n",
        a.rows.size() - 2);
  if (!a.caveats.empty()) out += "WARNING, what this run cannot tell:\n";
  for (const std::string& c : a.caveats) out += fmt::format("  - {}\n", c);
  return out;
}

Json ablation_json(const Ablation& a) {
  const DecisionWindow& w = a.protocol.final_window();
  Json rows = Json::array(), arms = Json::array();
  for (const AblationRow& r : a.rows) rows.push_back(json_of(r));
  for (const ArmSpec& s : a.protocol.arms)
    arms.push_back({{"arm", s.name}, {"directory", s.directory}, {"seed", s.seed}, {"sr_seed", s.sr_seed}});
  return {{"schema", 1},
          {"name", a.protocol.name},
          {"model", a.protocol.model},
          {"parameters", a.protocol.parameters},
          {"steps", a.protocol.steps},
          {"tokens_per_step", a.protocol.tokens_per_step},
          {"metric", a.protocol.metric},
          {"protocol", protocol_hash(a.protocol)},
          {"window", {{"after_step", w.after_step}, {"last_step", w.last_step}}},
          {"seeds", a.seeds},
          {"noise",
           {{"sigma", a.noise.sigma},
            {"source", a.noise.source},
            {"assumed", !a.spread},
            {"aa_rms", a.noise.aa_rms ? Json(*a.noise.aa_rms) : Json(nullptr)}}},
          {"rows", rows},
          {"runs", arms},
          {"left_out", a.left_out},
          {"caveats", a.caveats}};
}

}  // namespace nibble
