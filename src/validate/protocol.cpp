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

bool has_decay(const ScheduleInput& in) { return in.decay_start < in.steps; }

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
  check_usage(in.window_evals >= kFewestEvals,
              "protocol.window_evals = {}: a window needs at least {} evaluations", in.window_evals,
              kFewestEvals);
  const std::int64_t final_width = share_of(in.steps, kFinalShare, in.window_evals);
  const std::int64_t stable_width = share_of(in.decay_start, kStableShare, in.window_evals);
  const std::int64_t final_after = in.steps - final_width;
  const bool fits = final_after >= (has_decay(in) ? in.decay_start : in.warmup_steps) &&
                    (!has_decay(in) || in.decay_start - stable_width >= in.warmup_steps);
  check_usage(
      fits,
      "a run of {} steps (warm-up {}, decay from {}) is too short for its decision windows of {} and {} "
      "steps; train longer or lower protocol.window_evals (at least {})",
      in.steps, in.warmup_steps, in.decay_start, stable_width, final_width, kFewestEvals);
  std::vector<DecisionWindow> windows;
  if (has_decay(in)) {
    windows.push_back({"stable", in.decay_start - stable_width, in.decay_start, stable_limit(limit)});
  }
  windows.push_back({"final", final_after, in.steps, limit});
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
  return {steps.begin(), steps.end()};
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
  for (int pair = 1; pair <= in.pairs; ++pair) {
    const std::string folder = pair == 1 ? "" : fmt::format("pair_{:02}/", pair);
    const std::uint64_t shift = static_cast<std::uint64_t>(pair - 1);
    p.arms.push_back(
        {"baseline", folder + "baseline", in.baseline_recipe, pair, in.seed + shift, in.sr_seed + shift});
    p.arms.push_back(
        {"candidate", folder + "candidate", in.candidate_recipe, pair, in.seed + shift, in.sr_seed + shift});
  }
  if (in.aa_arm) {
    // Far from the seeds of any pair, so that no arm's rounding noise is used twice.
    constexpr std::uint64_t kOtherKey = 0x9E3779B97F4A7C15u;
    p.arms.push_back(
        {"candidate_aa", "candidate_aa", in.candidate_recipe, 1, in.seed, in.sr_seed ^ kOtherKey});
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
    out.push_back(fmt::format(
        "The model has {:.3g} M parameters. At such sizes NVFP4 costs more than at scale (published runs of "
        "30 to "
        "200 M parameters lose 1.6 to 3.4 %, of 8 B 0.6 to 0.9 %), so the gap here is no forecast of yours.",
        static_cast<double>(parameters) / 1e6));
  }
  if (small || brief) {
    out.push_back(
        "This run says nothing about single ingredients: the random Hadamard transform, stochastic rounding "
        "of "
        "gradients, 2D weight scaling and forward-only against full quantisation do not separate from noise "
        "at "
        "this size. Even round-to-nearest everywhere looks harmless here, yet these choices decide whether a "
        "12 B "
        "model survives trillions of tokens.");
  }
  if (brief) {
    out.push_back(fmt::format(
        "{:.3g} M tokens are {:.2g} tokens a parameter, far from the 20 or more of a real run: slow damage "
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
