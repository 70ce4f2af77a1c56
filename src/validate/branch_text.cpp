// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "validate/branch.h"

namespace nibble {
namespace {

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:+.3f} %", 100 * share) : std::string("not finite");
}

std::string duration(double seconds) {
  return seconds < 1 ? fmt::format("{:.0f} ms", 1e3 * seconds) : short_duration(seconds);
}

std::string row_text(const BranchRow& r, std::int64_t from, bool with_aa) {
  std::string text = fmt::format("{:>8} {:>9} {:>10.5f} {:>10.5f} {:>12}", r.step,
                                 short_count(static_cast<double>(r.tokens)), r.branch, r.candidate,
                                 r.step == from ? "same" : percent(r.gap));
  if (with_aa)
    text += fmt::format(" {:>12}", !r.aa            ? ""
                                   : r.step == from ? "same"
                                                    : percent((*r.aa - r.candidate) / r.candidate));
  return text + "\n";
}

double share_of_run(const Branch& b) {
  return static_cast<double>(b.until - b.from) / static_cast<double>(b.run_steps);
}

}  // namespace

std::vector<std::string> branch_sentences(const Branch& b) {
  std::vector<std::string> out = b.broken;
  if (b.broken.empty()) {
    out.push_back(fmt::format(
        "{} costs {} of the validation loss against {} from the same checkpoint, mean over the second half "
        "of "
        "{} steps; 95 % interval {} to {}.",
        b.recipe, percent(b.gap), b.label, b.until - b.from, percent(b.ci95[0]), percent(b.ci95[1])));
    if (b.inside_noise())
      out.push_back("The gap is inside the noise: this branch cannot tell the two recipes apart.");
    else
      out.push_back(fmt::format("The gap is outside the noise: {} is measurably {} here.", b.recipe,
                                b.gap > 0 ? "worse" : "better"));
    out.push_back(fmt::format("Noise of the pair: {:.3f} % ({}).", 100 * b.noise.sigma, b.noise.source));
  }
  if (b.limit)
    out.push_back(fmt::format("Against the limit of {:.2f} %: {}.", 100 * *b.limit, name(b.outcome)));
  if (b.first_difference)
    out.push_back(fmt::format(
        "The candidate did NOT repeat the run's own log: step {} is the first that differs. The binary, the "
        "machine or the data changed since; `nibble replay` tells which.",
        *b.first_difference));
  else if (b.repeated > 0)
    out.push_back(fmt::format("The candidate repeated {} logged steps of the run bit for bit.", b.repeated));
  out.push_back(
      "A branch shows what the recipe costs from here on, not what it has cost since the run began: its arms "
      "share the weights of the checkpoint, so the gap starts at zero and is smaller than that of whole "
      "runs.");
  return out;
}

std::string branch_text(const Branch& b) {
  std::string text = fmt::format(
      "{}: step {} of {}, {} steps of {} tokens ({:.2f} % of the run) in {} and unchanged in {}\n",
      b.checkpoint, b.from, b.run_steps, b.until - b.from, b.tokens_per_step, 100 * share_of_run(b), b.label,
      b.recipe);
  const bool with_aa = !b.aa_log.evaluations.empty();
  text += fmt::format("{:>8} {:>9} {:>10} {:>10} {:>12}{}\n", "step", "tokens", "branch", "candidate", "gap",
                      with_aa ? fmt::format(" {:>12}", "A/A gap") : "");
  for (const BranchRow& r : b.rows) text += row_text(r, b.from, with_aa);
  text += "\n";
  for (const std::string& s : branch_sentences(b)) text += s + "\n";
  text += "cost:";
  for (const BranchCost& c : b.costs)
    text += fmt::format(" {} ({}) {} tokens, {};", c.arm, c.label, short_count(static_cast<double>(c.tokens)),
                        duration(c.seconds));
  text.back() = '\n';
  return text;
}

Json branch_json(const Branch& b) {
  Json rows = Json::array(), costs = Json::array();
  for (const BranchRow& r : b.rows)
    rows.push_back({{"step", r.step},
                    {"tokens", r.tokens},
                    {"branch", json_from_double(r.branch)},
                    {"candidate", json_from_double(r.candidate)},
                    {"candidate_aa", r.aa ? json_from_double(*r.aa) : Json()},
                    {"gap", json_from_double(r.gap)}});
  for (const BranchCost& c : b.costs)
    costs.push_back({{"arm", c.arm}, {"computes_in", c.label}, {"tokens", c.tokens}, {"seconds", c.seconds}});
  Json j = {{"schema", 1},
            {"run", b.run},
            {"checkpoint", b.checkpoint},
            {"candidate", b.recipe},
            {"branch", b.label},
            {"from_step", b.from},
            {"until_step", b.until},
            {"run_steps", b.run_steps},
            {"tokens_per_step", b.tokens_per_step},
            {"parameters", b.parameters},
            {"evaluations", rows},
            {"relative_gap", json_from_double(b.gap)},
            {"gap_ci95", {json_from_double(b.ci95[0]), json_from_double(b.ci95[1])}},
            {"noise_floor", b.noise.sigma},
            {"noise_source", b.noise.source},
            {"noise_degrees", b.noise.degrees},
            {"cost", costs},
            {"broken", b.broken},
            {"repeated_steps", b.repeated},
            {"first_difference", b.first_difference ? Json(*b.first_difference) : Json()},
            {"sentences", branch_sentences(b)}};
  if (b.limit) j["limit"] = *b.limit, j["verdict"] = name(b.outcome);
  return j;
}

}  // namespace nibble
