// SPDX-License-Identifier: Apache-2.0
// What an ablation runs, and what its curves say.
#include "validate/ablation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/nearest.h"
#include "models/parameters.h"
#include "recipe/resolve.h"
#include "validate/run_arms.h"

namespace nibble {
namespace {

struct Ingredient {
  const char* name;
  const char* what;
  std::vector<std::string> edits;
};

const std::vector<Ingredient>& ingredients() {
  static const std::vector<Ingredient> all = {
      {"rht", "the random Hadamard transform", {"precision.rht=false"}},
      {"sr", "stochastic rounding", {"precision.sr=false"}},
      {"weights_2d", "2D weight scaling", {"precision.weights_2d=false"}},
      {"bf16_blocks", "kept BF16 blocks", {"precision.bf16_first=0", "precision.bf16_last=0"}},
  };
  return all;
}

/// "a=1;b=[2;3]" at the semicolons outside brackets and quotes.
std::vector<std::string> split_edits(const std::string& text) {
  std::vector<std::string> out(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    quoted = quoted != (c == '"');
    if (!quoted) depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c == ';' && depth == 0 && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

/// A name is a folder and a label.
void check_arm_name(const std::string& name, const std::string& text) {
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '+' || c == '.';
  });
  check_usage(plain && !name.empty() && name.front() != '.' && name.rfind("seed_", 0) != 0,
              "--arms \"{}\": an arm is NAME=key=value;key=value, and its name a folder of letters, digits, "
              "'_', '-', '+' and '.', not starting with '.' or \"seed_\"",
              text);
  check_usage(name != kBaselineArm && name != kFullArm && name != kAaArm && name != kAgainArm,
              "--arms \"{}\": the name {} is taken; choose another", text, name);
}

void check_edit(const std::string& arm, const std::string& edit) {
  const auto starts = [&](const char* section) { return edit.rfind(section, 0) == 0; };
  check_usage(starts("precision.") || starts("optimizer.") || starts("faults."),
              "arm {}: \"{}\" cannot be an edit of one arm: all arms must see the same model, batches and "
              "evaluations, so edits are of precision.*, optimizer.* and faults.*",
              arm, edit);
  check_usage(!starts("precision.sr_seed"),
              "arm {}: \"{}\": all arms share their stochastic-rounding streams; the A/A arm is the one that "
              "does not",
              arm, edit);
}

/// The arm's recipe, checked against the model when it is given; an error names the arm.
Recipe recipe_of(const AblationArm& arm, const std::vector<LinearInfo>& linears = {}) {
  try {
    Recipe recipe = candidate_recipe(arm.config);
    const RunConfig& c = arm.config;
    if (!linears.empty()) check_recipe(recipe, linears, c.micro_batch() * c.training.sequence);
    return recipe;
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("arm {}: {}", arm.name, e.what()));
  }
}

AblationArm edited_arm(const RunConfig& base, const std::string& name, std::vector<std::string> edits) {
  for (const std::string& e : edits) check_edit(name, e);
  AblationArm arm{.name = name, .edits = std::move(edits), .config = {}, .recipe = {}};
  arm.config = parse_run_config(to_toml(base), "arm " + name, arm.edits);
  arm.config.ablation = {};
  arm.recipe = recipe_of(arm).name;
  return arm;
}

AblationRequest over_configuration(const AblationSection& section, AblationRequest request) {
  if (request.without.empty()) request.without = section.without;
  if (request.arms.empty()) request.arms = section.arms;
  if (request.seeds == 0) request.seeds = static_cast<int>(section.seeds);
  return request;
}

/// Whether two recipes make every linear of the model do the same in every step.
bool same_work(const Recipe& a, const Recipe& b, const std::vector<LinearInfo>& all) {
  std::set<std::int64_t> steps{0};
  for (const Recipe* r : {&a, &b}) {
    for (const RecipeOverride& o : r->overrides) steps.insert({o.from_step, o.until_step});
    for (const RecipeSwitch& w : r->switches) steps.insert(w.from_step);
  }
  return std::all_of(steps.begin(), steps.end(),
                     [&](std::int64_t s) { return plan_of_step(a, all, s) == plan_of_step(b, all, s); });
}

bool asked_for(const AblationRequest& request, const Ingredient& i) {
  if (request.without.empty()) return true;
  return std::find(request.without.begin(), request.without.end(), i.name) != request.without.end();
}

void check_without(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const Ingredient& i : ingredients()) known.emplace_back(i.name);
  if (names == std::vector<std::string>{"none"}) return;
  for (const std::string& n : names)
    check_usage(std::find(known.begin(), known.end(), n) != known.end(),
                "--without {} is not known{} It is one of {}, or none.", n, did_you_mean(n, known, 2),
                fmt::join(known, ", "));
}

void add_ingredients(AblationPlan& plan, const AblationRequest& request,
                     const std::vector<LinearInfo>& linears) {
  const Recipe full = candidate_recipe(plan.config);
  for (const Ingredient& i : ingredients()) {
    if (!asked_for(request, i)) continue;
    AblationArm arm = edited_arm(plan.config, std::string("no_") + i.name, i.edits);
    if (!same_work(full, candidate_recipe(arm.config), linears)) {
      plan.arms.push_back(std::move(arm));
      continue;
    }
    const std::string why =
        fmt::format("{}: recipe {} as configured has no {} on this model, so there is nothing to leave out",
                    i.name, full.name, i.what);
    check_usage(request.without.empty(), "--without {}", why);
    plan.left_out.push_back(why);
  }
}

void add_arms(AblationPlan& plan, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    const auto at = text.find('=');
    const std::string name = text.substr(0, at);
    check_arm_name(name, text);
    check_usage(at != std::string::npos && text.find('=', at + 1) != std::string::npos,
                "--arms \"{}\" has no key=value after its name; write NAME=key=value;key=value", text);
    for (const AblationArm& a : plan.arms)
      check_usage(a.name != name, "--arms \"{}\": there already is an arm {}", text, name);
    plan.arms.push_back(edited_arm(plan.config, name, split_edits(text.substr(at + 1))));
  }
}

/// Beyond the seeds of any ablation (at most 99), so that its start values and batches are nobody else's.
constexpr std::uint64_t kAgainShift = 1000;

std::vector<ArmSpec> runs_of(const AblationPlan& plan, int seeds) {
  std::vector<ArmSpec> out;
  const auto seed = static_cast<std::uint64_t>(plan.config.training.seed);
  const auto sr_seed = static_cast<std::uint64_t>(plan.config.precision.sr_seed);
  for (int s = 0; s < seeds; ++s) {
    const auto shift = static_cast<std::uint64_t>(s);
    const std::string folder = s == 0 ? "" : fmt::format("seed_{:02}/", s + 1);
    for (const AblationArm& a : plan.arms) {
      if (a.name == kAgainArm) {
        if (s == 0) out.push_back({a.name, a.name, a.recipe, 1, seed + kAgainShift, sr_seed});
        continue;
      }
      out.push_back({a.name, folder + a.name, a.recipe, s + 1, seed + shift, sr_seed + shift});
      if (s == 0 && a.name == kFullArm && plan.config.protocol.aa_arm)
        out.push_back({kAaArm, kAaArm, a.recipe, 1, seed, aa_sr_seed(sr_seed)});
    }
  }
  return out;
}

}  // namespace

AblationPlan plan_ablation(const RunSetup& setup, const AblationRequest& asked) {
  const AblationRequest request = over_configuration(setup.config().ablation, asked);
  AblationPlan plan{.directory = run_directory(setup.config()),
                    .config = setup.config(),
                    .arms = {},
                    .left_out = {},
                    .protocol = {}};
  check_without(request.without);
  const RunConfig& c = plan.config;
  const Recipe full = candidate_recipe(c);
  check_usage(quantizes(full),
              "recipe {} quantises nothing, so it has no ingredients; name another in "
              "precision.recipe",
              full.name);
  const std::vector<LinearInfo> all = linears(setup.model());
  AblationArm baseline{.name = kBaselineArm, .edits = {}, .config = c, .recipe = baseline_recipe(c).name};
  baseline.config.precision = PrecisionSection{};
  baseline.config.precision.recipe = baseline.recipe;
  baseline.config.ablation = {};
  plan.arms.push_back(baseline);
  plan.arms.push_back({.name = kFullArm, .edits = {}, .config = c, .recipe = full.name});
  plan.arms.back().config.ablation = {};
  add_ingredients(plan, request, all);
  add_arms(plan, request.arms);
  check_usage(plan.arms.size() > 2, "nothing to compare: {}; name arms with --arms",
              plan.left_out.empty() ? "--without none" : plan.left_out.front());
  if (c.ablation.baseline_again) {
    baseline.name = kAgainArm;
    plan.arms.push_back(std::move(baseline));
  }

  plan.protocol = protocol_of(setup);
  for (const AblationArm& a : plan.arms) {
    if (a.name != kBaselineArm && a.name != kAgainArm) recipe_of(a, all);
    plan.protocol.contract["arm " + a.name] = maths_hash(a.config, true);
  }
  plan.protocol.abort = {};  // an arm that is far off is the finding, so none is stopped
  plan.protocol.arms = runs_of(plan, request.seeds > 0 ? request.seeds : static_cast<int>(c.protocol.pairs));
  return plan;
}

namespace {

const ArmCurves* find(const std::vector<ArmCurves>& curves, const std::string& name) {
  for (const ArmCurves& c : curves)
    if (c.name == name) return &c;
  return nullptr;
}

double window_loss(const std::vector<EvalPoint>& curve, const DecisionWindow& w) {
  std::vector<double> losses;
  for (const EvalPoint& e : curve)
    if (e.step > w.after_step && e.step <= w.last_step) losses.push_back(e.loss);
  check(!losses.empty(), "an arm has no evaluation in the steps {} to {}", w.after_step + 1, w.last_step);
  return mean(losses);
}

std::vector<PairData> pairs_of(const ArmCurves& reference, const ArmCurves& arm) {
  check(reference.seeds.size() == arm.seeds.size(), "arm {} has {} seeds and {} has {}", arm.name,
        arm.seeds.size(), reference.name, reference.seeds.size());
  std::vector<PairData> out;
  for (std::size_t s = 0; s < arm.seeds.size(); ++s)
    out.push_back({static_cast<int>(s) + 1, reference.seeds[s], arm.seeds[s], {}});
  return out;
}

GapEstimate estimate(const ArmCurves& reference, const ArmCurves& arm, const Ablation& a) {
  const DecisionWindow& window = a.protocol.final_window();
  const std::vector<PairData> pairs = pairs_of(reference, arm);
  GapEstimate out;
  for (const PairData& p : pairs)
    out.by_seed.push_back(mean(gaps_in(paired_gaps(p.baseline, p.candidate), window)));
  out.mean = mean(out.by_seed);
  out.identical = reference.seeds == arm.seeds;
  if (out.identical) return out;
  // One unpaired run has the noise that the rule assumes of one pair.
  const Noise noise = a.spread || arm.name == kAgainArm ? noise_of(pairs, window, a.protocol.noise) : a.noise;
  const double reach = noise.reach(0.975) / std::sqrt(static_cast<double>(pairs.size()));
  out.ci95 = {out.mean - reach, out.mean + reach};
  return out;
}

AblationRow row_of(const AblationArm& arm, const std::vector<ArmCurves>& curves, const Ablation& a) {
  AblationRow row{.name = arm.name,
                  .recipe = arm.recipe,
                  .edits = arm.edits,
                  .loss = {},
                  .gap = {},
                  .against_full = {},
                  .broken = {},
                  .faults = {},
                  .finished = true};
  const ArmCurves* own = find(curves, arm.name);
  row.finished = own != nullptr && !own->seeds.empty();
  if (!row.finished) return row;
  row.broken = own->broken;
  row.faults = own->faults;
  if (!row.broken.empty()) return row;
  std::vector<double> losses;
  for (const auto& curve : own->seeds) losses.push_back(window_loss(curve, a.protocol.final_window()));
  row.loss = mean(losses);
  if (arm.name == kAgainArm) {
    ArmCurves first = *find(curves, kBaselineArm);
    first.seeds.resize(1);
    row.gap = estimate(first, *own, a);
    return row;
  }
  if (arm.name != kBaselineArm) row.gap = estimate(*find(curves, kBaselineArm), *own, a);
  const ArmCurves* full = find(curves, kFullArm);
  if (arm.name != kFullArm && full->broken.empty()) row.against_full = estimate(*full, *own, a);
  return row;
}

/// The noise of one seed: what `validate` would take for the baseline, the full recipe and its A/A arm.
Noise noise_from(const std::vector<ArmCurves>& curves, const Protocol& p) {
  const ArmCurves *full = find(curves, kFullArm), *aa = find(curves, kAaArm);
  if (!full->broken.empty()) return noise_of({}, p.final_window(), p.noise);
  std::vector<PairData> pairs = pairs_of(*find(curves, kBaselineArm), *full);
  if (aa != nullptr && aa->broken.empty()) pairs.front().candidate_aa = aa->seeds.front();
  return noise_of(pairs, p.final_window(), p.noise);
}

/// Baselines have no gap and stand at zero; broken and unfinished arms behind everything.
double rank(const AblationRow& r) {
  if (!r.finished || !r.broken.empty()) return HUGE_VAL;
  return r.gap ? r.gap->mean : 0;
}

}  // namespace

const AblationRow* Ablation::row(const std::string& name) const {
  for (const AblationRow& r : rows)
    if (r.name == name) return &r;
  return nullptr;
}

Ablation judge_ablation(const AblationPlan& plan, const std::vector<ArmCurves>& curves) {
  for (const char* name : {kBaselineArm, kFullArm})
    check(find(curves, name) != nullptr && !find(curves, name)->seeds.empty(), "arm {} was not run", name);
  Ablation a{.protocol = plan.protocol,
             .seeds = static_cast<int>(find(curves, kBaselineArm)->seeds.size()),
             .noise = {},
             .spread = false,
             .rows = {},
             .left_out = plan.left_out,
             .caveats = {}};
  a.spread = a.seeds >= a.protocol.noise.spread_from_pairs;
  a.noise = noise_from(curves, a.protocol);
  for (const AblationArm& arm : plan.arms) a.rows.push_back(row_of(arm, curves, a));
  std::stable_sort(a.rows.begin(), a.rows.end(),
                   [](const AblationRow& x, const AblationRow& y) { return rank(x) < rank(y); });
  a.caveats =
      small_run_caveats(a.protocol.parameters, a.protocol.steps * a.protocol.tokens_per_step, a.seeds);
  return a;
}

}  // namespace nibble
