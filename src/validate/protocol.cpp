// SPDX-License-Identifier: Apache-2.0
#include "validate/protocol.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "validate/sequential.h"

namespace nibble {
namespace {

constexpr double kStableShare = 0.10;
constexpr double kFinalShare = 0.05;
constexpr double kEvalShare = 0.05;
constexpr int kFewestEvals = 3;
constexpr double kFirstLookShare = 0.05;

std::int64_t share_of(std::int64_t steps, double share, std::int64_t least) {
  return std::max<std::int64_t>(std::llround(share * static_cast<double>(steps)), least);
}

/// A phase between warm-up and decay, whose end is judged by itself; cosine and linear schedules have none.
bool has_stable_phase(const ScheduleInput& in) {
  return in.decay_start < in.steps && in.decay_start > in.warmup_steps;
}

std::int64_t final_width(const ScheduleInput& in) { return share_of(in.steps, kFinalShare, in.window_evals); }
std::int64_t stable_width(const ScheduleInput& in) {
  return share_of(in.decay_start, kStableShare, in.window_evals);
}

bool windows_fit(const ScheduleInput& in) {
  if (!has_stable_phase(in)) return in.steps - final_width(in) >= in.warmup_steps;
  return in.steps - final_width(in) >= in.decay_start && in.decay_start - stable_width(in) >= in.warmup_steps;
}

/// The fewest steps whose windows fit, with this warm-up and this share of decay.
std::int64_t steps_needed(const ScheduleInput& in) {
  const double decay = static_cast<double>(in.steps - in.decay_start) / static_cast<double>(in.steps);
  // Both widths shrink to their shares, so a run some hundred times longer than its parts always fits.
  const auto parts = static_cast<double>(in.warmup_steps + 2 * in.window_evals);
  const double shares = has_stable_phase(in) ? std::min(decay - kFinalShare, (1 - decay) * (1 - kStableShare))
                                             : 1 - kFinalShare;
  if (shares <= 0) return 0;
  const bool decay_begins_at_warmup = in.decay_start <= in.warmup_steps;
  const auto most = in.steps + static_cast<std::int64_t>(std::ceil(4 * parts / shares));
  for (ScheduleInput longer = in; longer.steps <= most; ++longer.steps) {
    longer.decay_start = decay_begins_at_warmup
                             ? in.decay_start
                             : longer.steps - std::llround(decay * static_cast<double>(longer.steps));
    if (windows_fit(longer)) return longer.steps;
  }
  return 0;
}

}  // namespace

int Protocol::pairs() const {
  std::set<int> seen;
  for (const auto& arm : arms) seen.insert(arm.pair);
  return static_cast<int>(seen.size());
}

const DecisionWindow& Protocol::final_window() const {
  check(!windows.empty(), "protocol '{}' has no decision window", name);
  return windows.back();
}

double final_limit(std::int64_t parameters) {
  struct Anchor {
    double parameters, limit;
  };
  constexpr Anchor kAnchors[] = {{0.3e9, 0.035}, {3e9, 0.025}, {7e9, 0.015}};
  const auto n = static_cast<double>(parameters);
  if (n <= kAnchors[0].parameters) return kAnchors[0].limit;
  for (int i = 1; i < 3; ++i) {
    const auto &low = kAnchors[i - 1], &high = kAnchors[i];
    if (n > high.parameters) continue;
    const double t = std::log(n / low.parameters) / std::log(high.parameters / low.parameters);
    return low.limit + t * (high.limit - low.limit);
  }
  return kAnchors[2].limit;
}

double stable_limit(double final) { return final * 2 / 3; }

std::vector<DecisionWindow> decision_windows(const ScheduleInput& in, double limit) {
  check(in.window_evals >= kFewestEvals, "a decision window needs at least {} evaluations, got {}",
        kFewestEvals, in.window_evals);
  if (!windows_fit(in)) {
    const std::int64_t needed = steps_needed(in);
    fail_usage(
        "a run of {} steps (warm-up {}, decay from {}) is too short for its decision windows of {} and {} "
        "steps; "
        "train longer: {}",
        in.steps, in.warmup_steps, in.decay_start, stable_width(in), final_width(in),
        needed > 0 ? fmt::format("training.steps = {} is enough with this warm-up and share of decay", needed)
                   : fmt::format("and let the decay take more than {:.0f} % of the run", 100 * kFinalShare));
  }
  std::vector<DecisionWindow> windows;
  if (has_stable_phase(in)) {
    windows.push_back({"stable", in.decay_start - stable_width(in), in.decay_start, stable_limit(limit)});
  }
  windows.push_back({"final", in.steps - final_width(in), in.steps, limit});
  return windows;
}

std::vector<std::int64_t> eval_schedule(const ScheduleInput& in, const std::vector<DecisionWindow>& windows) {
  std::set<std::int64_t> steps;
  for (int i = 1; i <= std::lround(1 / kEvalShare); ++i) {
    steps.insert(std::max<std::int64_t>(1, std::llround(i * kEvalShare * static_cast<double>(in.steps))));
  }
  for (const auto& w : windows) {
    const auto width = static_cast<double>(w.last_step - w.after_step);
    for (int i = 1; i <= in.window_evals; ++i) {
      steps.insert(w.after_step + std::llround(width * i / in.window_evals));
    }
  }
  for (const auto step : in.switch_steps) {
    if (step > 0 && step < in.steps) steps.insert(step);
  }
  return {steps.begin(), steps.end()};
}

std::uint64_t aa_sr_seed(std::uint64_t sr_seed) {
  constexpr std::uint64_t kOtherKey = 0x1779B97F4A7C15u;
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 53) - 1;
  return (sr_seed ^ kOtherKey) & kMask;
}

Protocol make_protocol(const ProtocolInput& in) {
  check_usage(in.pairs >= 1, "protocol.pairs = {}: a comparison needs at least one pair", in.pairs);
  const ScheduleInput& s = in.schedule;
  check_usage(s.steps > 0 && in.tokens_per_step > 0, "a comparison needs steps and tokens (got {} x {})",
              s.steps, in.tokens_per_step);
  Protocol p;
  p.name = in.name, p.model = in.model, p.parameters = in.parameters;
  p.steps = s.steps, p.tokens_per_step = in.tokens_per_step;
  p.warmup_steps = s.warmup_steps, p.decay_start = s.decay_start;
  const double limit = in.limit > 0 ? in.limit : final_limit(in.parameters);
  p.windows = decision_windows(s, limit);
  p.eval_steps = eval_schedule(s, p.windows);
  p.switch_steps = s.switch_steps;
  p.noise = in.noise;
  p.alarms = in.alarms;
  for (int pair = 1; pair <= in.pairs; ++pair) {
    const std::string folder = pair == 1 ? "" : fmt::format("pair_{:02}/", pair);
    const std::uint64_t shift = static_cast<std::uint64_t>(pair - 1);
    p.arms.push_back(
        {"baseline", folder + "baseline", in.baseline_recipe, pair, in.seed + shift, in.sr_seed + shift});
    p.arms.push_back(
        {"candidate", folder + "candidate", in.candidate_recipe, pair, in.seed + shift, in.sr_seed + shift});
    if (pair > 1 || !in.aa_arm) continue;
    p.arms.push_back(
        {"candidate_aa", "candidate_aa", in.candidate_recipe, pair, in.seed, aa_sr_seed(in.sr_seed)});
  }
  p.abort.limit = limit;
  p.abort.first_step =
      std::max<std::int64_t>(s.warmup_steps, std::llround(kFirstLookShare * static_cast<double>(s.steps))) +
      1;
  std::vector<double> looks;
  for (const auto step : p.eval_steps) {
    if (step >= p.abort.first_step) looks.push_back(static_cast<double>(step) / static_cast<double>(s.steps));
  }
  p.abort.sigma_multiplier = abort_multiplier(looks, p.abort.consecutive, p.abort.false_alarm);
  return p;
}

std::vector<std::string> small_run_caveats(std::int64_t parameters, std::int64_t tokens, int pairs) {
  std::vector<std::string> out;
  const bool small = parameters < 300'000'000;
  const bool brief = tokens < 20 * parameters;
  if (small) {
    out.push_back(
        fmt::format("{:.3g} M parameters are too few to forecast the gap of a large model. Small models lose "
                    "more to four "
                    "bits: in public runs 30 to 200 M parameters lose 1.6 to 3.4 % (Quartet II's runs of "
                    "NVIDIA's recipe), "
                    "8 B 0.6 to 0.9 % (MLPerf Training 5.1).",
                    static_cast<double>(parameters) / 1e6));
  }
  if (small || brief) {
    out.push_back(
        "This run says nothing about single ingredients: the random Hadamard transform, stochastic rounding "
        "of "
        "gradients, 2D weight scaling, forward-only against full quantisation. In this project's own test "
        "(0.66 M parameters, 1.2 M bytes of text, one or two seeds) they did not separate from noise, and "
        "even "
        "round-to-nearest everywhere looked harmless; in NVIDIA's ablation of a 12 B model over trillions of "
        "tokens such choices decide.");
  }
  if (brief) {
    out.push_back(fmt::format(
        "{:.3g} M tokens are {:.2g} tokens a parameter, far from the 20 or more of a real run. Slow damage "
        "(amax "
        "that drifts, scales that run out) has no time to appear.",
        static_cast<double>(tokens) / 1e6,
        static_cast<double>(tokens) / static_cast<double>(std::max<std::int64_t>(parameters, 1))));
  }
  if (pairs < 3) {
    out.push_back(
        fmt::format("{} tells about {} only. Another seed can move the gap by as much as the noise floor; "
                    "a claim about the recipe needs at least three pairs.",
                    pairs == 1 ? "One pair" : "Two pairs", pairs == 1 ? "this seed" : "these seeds"));
  }
  return out;
}

}  // namespace nibble
