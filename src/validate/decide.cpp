// SPDX-License-Identifier: Apache-2.0
#include "validate/decide.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "validate/more_data.h"

namespace nibble {
namespace {

constexpr const char* kNonFinite = "non_finite";
constexpr const char* kBrokenLabel = "not finite";

std::string percent(double share) { return fmt::format("{:+.2f} %", 100 * share); }
std::string plain_percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

ArmResult arm_result(const Protocol& p, const char* name, const std::vector<EvalPoint>& evals) {
  ArmResult out{.name = name};
  for (const auto& arm : p.arms) {
    if (arm.pair != 1 || arm.name != name) continue;
    out.directory = arm.directory, out.recipe = arm.recipe, out.seed = arm.seed, out.sr_seed = arm.sr_seed;
  }
  if (evals.empty()) return out;
  out.step = evals.back().step, out.tokens = evals.back().tokens, out.loss = evals.back().loss;
  const auto& window = p.final_window();
  std::vector<double> losses;
  for (const auto& e : evals) {
    if (e.step > window.after_step && e.step <= window.last_step) losses.push_back(e.loss);
  }
  out.window_loss = losses.empty() ? out.loss : mean(losses);
  return out;
}

bool identical(const PairData& p) {
  // Compared as written, so that a single different bit is a difference.
  return !p.candidate.empty() && p.candidate == p.baseline;
}

Outcome judge(const WindowResult& w, bool assumed) {
  if (w.bounds[0] > w.limit) return Outcome::Fail;
  if (w.bounds[1] < w.limit && !assumed) return Outcome::Pass;
  return Outcome::Inconclusive;
}

WindowResult window_result(const Protocol& p, const Evidence& e, const DecisionWindow& window,
                           std::string& source) {
  WindowResult w{.name = window.name, .after_step = window.after_step, .last_step = window.last_step};
  w.limit = window.limit;
  for (const auto& pair : e.pairs) {
    const auto gaps = gaps_in(paired_gaps(pair.baseline, pair.candidate), window);
    w.evaluations = static_cast<int>(gaps.size());
    w.pair_gaps.push_back(mean(gaps));
  }
  w.gap = mean(w.pair_gaps);
  const PairData& first = e.pairs.front();
  if (!first.candidate_aa.empty()) {
    const double aa = mean(gaps_in(paired_gaps(first.baseline, first.candidate_aa), window));
    w.two_arm_gap = (w.pair_gaps.front() + aa) / 2;
  }
  const Noise noise = noise_of(e.pairs, window, p.noise);
  w.sigma = noise.sigma, w.degrees = noise.degrees, w.aa_rms = noise.aa_rms;
  source = noise.source;
  const double root = std::sqrt(static_cast<double>(e.pairs.size()));
  const double two_sided = noise.reach(0.975) / root, one_sided = noise.reach(p.confidence) / root;
  w.ci95 = {w.gap - two_sided, w.gap + two_sided};
  w.bounds = {w.gap - one_sided, w.gap + one_sided};
  w.outcome = judge(w, noise.assumed);
  return w;
}

/// Without a difference there is nothing to be uncertain about.
void set_identical(Verdict& v) {
  v.identical = true, v.label = "identical";
  for (auto& w : v.windows) {
    w.sigma = 0, w.ci95 = w.bounds = {0, 0};
    w.outcome = Outcome::Pass;
  }
  v.noise_source = "none: the arms agree in every bit of every evaluation";
  v.claim = fmt::format("nothing about {}: both arms computed the same", v.candidate.recipe);
}

void copy_headline(Verdict& v) {
  const WindowResult& w = v.windows.back();
  v.relative_gap = w.gap, v.gap_ci95 = w.ci95, v.noise_floor = w.sigma, v.limit = w.limit;
  v.two_arm_gap = w.two_arm_gap;
  v.inside_noise = w.ci95[0] <= 0 && w.ci95[1] >= 0;
  if (v.label.empty()) {
    v.label = v.inside_noise ? "indistinguishable" : w.gap > 0 ? "measurably worse" : "measurably better";
  }
}

const WindowResult& deciding(const Verdict& v) {
  for (const auto& w : v.windows) {
    if (w.outcome == v.outcome) return w;
  }
  return v.windows.back();
}

void explain_windows(Verdict& v, const Protocol& p) {
  const auto worse = [](Outcome o) { return o == Outcome::Fail ? 2 : o == Outcome::Inconclusive ? 1 : 0; };
  v.outcome = std::max_element(v.windows.begin(), v.windows.end(), [&](const auto& a, const auto& b) {
                return worse(a.outcome) < worse(b.outcome);
              })->outcome;
  const WindowResult& w = v.outcome == Outcome::Pass ? v.windows.back() : deciding(v);
  const std::string gap = fmt::format(
      "In the {} window the gap is {} (one-sided {:.0f} % bounds {} and {}, noise of one pair {})", w.name,
      percent(w.gap), 100 * p.confidence, percent(w.bounds[0]), percent(w.bounds[1]), plain_percent(w.sigma));
  if (v.identical) {
    v.reason =
        "The arms are identical: the gap is exactly 0 at every evaluation. Both arms computed the same: "
        "nothing was quantised or the recipe changed nothing.";
  } else if (v.outcome == Outcome::Pass) {
    v.reason = fmt::format("{}; its upper bound is below the limit of {}{}.", gap, plain_percent(w.limit),
                           v.windows.size() > 1 ? ", and so in every window" : "");
  } else if (v.outcome == Outcome::Fail) {
    v.reason = fmt::format("{}; its lower bound is above the limit of {}.", gap, plain_percent(w.limit));
  } else {
    const bool only_assumed = w.bounds[1] < w.limit;
    v.reason = fmt::format("{}; {} the limit of {}.", gap,
                           only_assumed ? "the noise is only assumed, which is not enough to stay below"
                                        : "the bounds lie on both sides of",
                           plain_percent(w.limit));
    v.more_data = what_would_decide(p, w, v.pairs, only_assumed);
  }
}

/// Without a decision window behind it a verdict has only the assumed noise.
void assume_noise(Verdict& v, const Protocol& p) {
  v.noise_floor = std::max(v.noise_floor, p.noise.assumed_sigma);
  if (v.noise_source.empty()) {
    v.noise_source =
        fmt::format("assumed {}: ended before its decision windows", plain_percent(v.noise_floor));
  }
}

void apply_sustained_gap(Verdict& v, const Protocol& p, const AbortRecord& a) {
  v.outcome = Outcome::Aborted;
  v.abort = a, v.relative_gap = a.gap, v.step = a.step, v.tokens = a.tokens, v.limit = p.abort.limit;
  assume_noise(v, p);
  const double reach = quantile(0.975, 0) * v.noise_floor;
  v.gap_ci95 = {a.gap - reach, a.gap + reach};
  v.inside_noise = false, v.label = "measurably worse";
  v.more_data.clear();
  v.reason = fmt::format("At step {} the {} stood above {} at {} evaluations in a row (last gap {}).", a.step,
                         a.arm.empty() ? "candidate" : a.arm, plain_percent(a.threshold), p.abort.consecutive,
                         percent(a.gap));
}

void apply_faults(Verdict& v) {
  const bool broke = v.label == kBrokenLabel;
  const auto is_fault = [broke](const AlarmEvent& a) {
    return a.severity == Severity::Fault && !(broke && a.rule == kNonFinite);
  };
  const auto count = std::count_if(v.alarms.begin(), v.alarms.end(), is_fault);
  if (count == 0) return;
  const auto& first = *std::find_if(v.alarms.begin(), v.alarms.end(), is_fault);
  const std::string fault = fmt::format("{} numerical fault{} raised, the first at step {}{}: {}", count,
                                        count == 1 ? " was" : "s were", first.step,
                                        first.arm.empty() ? "" : " of the " + first.arm, first.text);
  if (v.outcome == Outcome::Aborted || broke) {
    v.reason += " Also " + fault + ".";
    return;
  }
  v.reason =
      fmt::format("{}. The run does not compute what its recipe says, so its gap ({}) is no evidence for it.",
                  fault, percent(v.relative_gap));
  v.outcome = Outcome::Fail;
  v.more_data = "Mend the fault and run again; more data cannot help.";
}

/// A candidate whose values stopped being finite: where, and what is known.
struct Breakdown {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::string arm;
  std::string what;  ///< layer, GEMM and operand where an alarm names them
  double last_gap = std::numeric_limits<double>::quiet_NaN();  ///< of that arm, before
};

std::string folder(const PairData& pair, const char* arm) {
  return pair.pair == 1 ? arm : fmt::format("pair_{:02}/{}", pair.pair, arm);
}

double last_finite_gap(const PairData& pair, const std::vector<EvalPoint>& arm) {
  double last = std::numeric_limits<double>::quiet_NaN();
  for (const auto& g : paired_gaps(pair.baseline, arm)) {
    if (!std::isfinite(g.gap)) break;
    last = g.gap;
  }
  return last;
}

/// The abort that says so, or the first evaluation whose loss is not finite.
std::optional<Breakdown> breakdown(const Evidence& e) {
  const bool ended = e.abort && e.abort->rule == kNonFinite;
  for (const auto& pair : e.pairs) {
    for (const auto& [name, arm] :
         {std::pair("candidate", &pair.candidate), std::pair("candidate_aa", &pair.candidate_aa)}) {
      const std::string directory = folder(pair, name);
      if (ended && directory == e.abort->arm) {
        return Breakdown{e.abort->step, e.abort->tokens, directory, "", last_finite_gap(pair, *arm)};
      }
      for (const auto& point : *arm) {
        if (std::isfinite(point.loss)) continue;
        return Breakdown{point.step, point.tokens, directory, "its validation loss is not finite",
                         last_finite_gap(pair, *arm)};
      }
    }
  }
  if (ended)
    return Breakdown{.step = e.abort->step, .tokens = e.abort->tokens, .arm = e.abort->arm, .what = ""};
  return {};
}

void apply_breakdown(Verdict& v, const Protocol& p, Breakdown b) {
  const auto names_it = [&](const AlarmEvent& a) {
    return a.rule == kNonFinite && (a.arm.empty() || a.arm == b.arm);
  };
  const auto alarm = std::find_if(v.alarms.begin(), v.alarms.end(), names_it);
  if (alarm != v.alarms.end()) b.what = alarm->text;
  v.outcome = Outcome::Fail, v.label = kBrokenLabel;
  v.step = b.step, v.tokens = b.tokens, v.relative_gap = b.last_gap;
  v.gap_ci95.fill(std::numeric_limits<double>::quiet_NaN());
  v.inside_noise = false, v.more_data = "Mend the breakdown and run again; more data cannot help.";
  assume_noise(v, p);
  // The text may be an error's, of several lines and sentences.
  std::replace(b.what.begin(), b.what.end(), '\n', ' ');
  v.reason = fmt::format(
      "At step {} the {} was no longer finite ({}){}", b.step, b.arm.empty() ? "candidate" : b.arm,
      std::isfinite(b.last_gap) ? fmt::format("its last gap before was {}", percent(b.last_gap))
                                : std::string("no earlier evaluation of it is known"),
      b.what.empty() ? "." : ": " + b.what);
  if (!v.reason.ends_with('.')) v.reason += '.';
}

void judge_windows(Verdict& v, const Protocol& p, const Evidence& e) {
  for (const auto& window : p.windows) {
    const bool reached = std::all_of(e.pairs.begin(), e.pairs.end(), [&](const PairData& pair) {
      return !pair.candidate.empty() && pair.candidate.back().step >= window.last_step;
    });
    if (!reached) {
      check(e.abort.has_value(),
            "an arm has no evaluation at step {}, the end of window '{}': resume it first", window.last_step,
            window.name);
      break;
    }
    v.windows.push_back(window_result(p, e, window, v.noise_source));
  }
  if (v.windows.empty()) return;
  if (std::all_of(e.pairs.begin(), e.pairs.end(), identical)) set_identical(v);
  copy_headline(v);
  explain_windows(v, p);
}

}  // namespace

std::string rule_sentence(const Protocol& p) {
  std::string limits;
  for (const auto& w : p.windows) {
    limits +=
        fmt::format("{}{} in the {} window", limits.empty() ? "" : " and ", plain_percent(w.limit), w.name);
  }
  return fmt::format(
      "PASS when the one-sided {0:.0f} % upper bound of the mean relative gap is below {1}; FAIL when a "
      "lower bound "
      "is above its limit, a loss is not finite or a numerical fault is raised; INCONCLUSIVE otherwise; "
      "ABORTED when "
      "{2} evaluations in a row from step {3} on exceed max({4}, {5:.2f} sigma).",
      100 * p.confidence, limits, p.abort.consecutive, p.abort.first_step, plain_percent(p.abort.limit),
      p.abort.sigma_multiplier);
}

Verdict decide(const Protocol& p, const Evidence& e) {
  check(!e.pairs.empty() && !e.pairs.front().baseline.empty(),
        "a verdict needs at least one pair of evaluated arms");
  const PairData& first = e.pairs.front();
  Verdict v;
  v.pairs = static_cast<int>(e.pairs.size());
  v.rule = rule_sentence(p);
  v.alarms = e.alarms;
  v.protocol_hash = protocol_hash(p);
  v.preregistered = e.frozen_hash.empty() || e.frozen_hash == v.protocol_hash;
  v.baseline = arm_result(p, "baseline", first.baseline);
  v.candidate = arm_result(p, "candidate", first.candidate);
  if (!first.candidate_aa.empty()) v.candidate_aa = arm_result(p, "candidate_aa", first.candidate_aa);
  v.limit = p.final_window().limit;
  v.step = v.candidate.step, v.tokens = v.candidate.tokens;
  v.claim = v.pairs >= p.noise.spread_from_pairs
                ? fmt::format("{} on this model, data and budget, over {} seeds", v.candidate.recipe, v.pairs)
                : fmt::format("{} on this model, data and budget, {}", v.candidate.recipe,
                              v.pairs == 1 ? "for this seed" : "for these two seeds");
  v.caveats = small_run_caveats(p.parameters, p.steps * p.tokens_per_step, v.pairs);

  if (const auto broke = breakdown(e)) {
    v.abort = e.abort;
    if (v.abort && v.abort->rule == kNonFinite) {
      // No threshold was crossed, so there is none to print.
      v.abort->gap = broke->last_gap, v.abort->threshold = std::numeric_limits<double>::quiet_NaN();
    }
    apply_breakdown(v, p, *broke);
  } else {
    judge_windows(v, p, e);
    v.extra_tokens = extra_tokens(first.baseline, first.candidate);
    if (e.abort) apply_sustained_gap(v, p, *e.abort);
  }
  apply_faults(v);
  return v;
}

}  // namespace nibble
