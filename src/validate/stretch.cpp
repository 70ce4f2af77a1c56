// SPDX-License-Identifier: Apache-2.0
#include "validate/stretch.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "io/atomic_dir.h"
#include "io/file.h"
#include "io/hash.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

RunPoint point_of(const fs::path& run, const std::vector<std::string>& sets) {
  RunPoint p;
  p.run = run;
  p.config = load_run_config(run / "run.toml", sets);
  p.own_backend = p.config.training.backend;
  if (fs::exists(run / "metrics.jsonl")) {
    const RunLog log = read_run_log(run / "metrics.jsonl");
    if (!log.header.backend.empty()) p.own_backend = log.header.backend;
  }
  return p;
}

void read_state_of(RunPoint& p) { p.state = read_checkpoint_state(p.checkpoint); }

}  // namespace

fs::path run_of(const fs::path& path) {
  check_usage(fs::is_directory(path), "{} is no folder; name a run's folder or one of its checkpoints",
              path.string());
  for (fs::path at = fs::absolute(path).lexically_normal(); at.has_relative_path(); at = at.parent_path()) {
    if (fs::exists(at / "run.toml") && fs::exists(at / "metrics.jsonl")) return fs::proximate(at);
  }
  check_usage(!fs::exists(path / "protocol.json"), "{} is a comparison; name one of its arms: {}/candidate",
              path.string(), path.string());
  fail_usage("{} is not inside a run: no folder above it holds run.toml and metrics.jsonl", path.string());
}

RunPoint find_run_point(const fs::path& path, const std::vector<std::string>& sets) {
  RunPoint p = point_of(run_of(path), sets);
  if (fs::exists(path / "state.json")) {
    verify_dir(path);
    p.checkpoint = path;
  } else {
    const LatestComplete latest = find_latest_complete(p.run / "checkpoints", kCheckpointPrefix);
    check_usage(latest.directory.has_value(), "{} holds no valid checkpoint; train with checkpoint.every > 0",
                (p.run / "checkpoints").string());
    p.checkpoint = *latest.directory;
  }
  read_state_of(p);
  return p;
}

RunPoint run_point_before(const fs::path& run, std::int64_t most_steps,
                          const std::vector<std::string>& sets) {
  RunPoint p = point_of(run_of(run), sets);
  for (const fs::path& directory : numbered_dirs(p.run / "checkpoints", kCheckpointPrefix)) {
    try {
      verify_dir(directory);
    } catch (const Error& e) {
      fmt::print(stderr, "nibble: skipping {}\n", e.what());
      continue;
    }
    if (read_checkpoint_state(directory).step > most_steps) continue;
    p.checkpoint = directory;
    read_state_of(p);
    break;
  }
  return p;
}

std::map<std::string, std::string> expected_identity(const RunSetup& setup, const RunPoint& point) {
  std::map<std::string, std::string> identity = setup.contract();
  const auto arm = point.state.identity.find("arm");
  // Another machine is another configuration, and asked for. The pairs of a comparison after the first carry
  // the contract of the first, whose training.seed is another.
  const bool later_pair = arm != point.state.identity.end() && arm->second.starts_with("pair_");
  if (setup.config().training.backend != point.own_backend || later_pair) identity.erase("config");
  const auto native = point.state.identity.find(kNativeIdentity);
  if (native != point.state.identity.end()) identity.insert(*native);
  return identity;
}

void require_same_run(const RunSetup& setup, const RunPoint& point) {
  if (!point.checkpoint.empty())
    check_identity(point.state, expected_identity(setup, point), point.checkpoint);
}

std::unique_ptr<Learner> learner_at(Stream& stream, const LearnerConfig& config, const RunPoint& point) {
  auto learner = std::make_unique<Learner>(stream, config);
  if (!point.checkpoint.empty()) load_checkpoint(point.checkpoint, *learner);
  return learner;
}

StretchResult run_stretch(const RunSetup& setup, Stream& stream, const RunPoint& point,
                          const Stretch& stretch, bool resume, const SignalGuard& signals,
                          const std::shared_ptr<ConsoleSink>& console) {
  const std::unique_ptr<Learner> learner = learner_at(stream, stretch.learner, point);
  const SampleOrder order = setup.order(stretch.learner.seed);
  RunPlan plan = setup.plan(*learner, stream.kind());
  plan.directory = stretch.directory;
  plan.eval_steps = stretch.eval_steps;
  plan.until = stretch.until;
  plan.checkpoint_every = 0;
  plan.checkpoint_keep = 1;
  plan.resume = resume;
  plan.header.arm = stretch.name;
  plan.header.recipe = stretch.label;
  plan.identity["branch"] = fmt::format("{} from {}", stretch.identity, plan.header.init);
  fs::create_directories(stretch.directory);
  write_file(stretch.directory / "run.toml", to_toml(stretch.config));
  StretchResult out;
  try {
    const RunResult r =
        run_training(*learner, {order, setup.validation(), setup.data().tokenizer}, plan, console, signals);
    out.signal = r.end == RunEnd::Signal ? r.signal : 0;
    out.checkpoint = r.checkpoint;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::NonFinite) throw;
    out.broken = fmt::format("not finite after step {}", learner->steps_done());
  }
  out.log = read_run_log(stretch.directory / "metrics.jsonl");
  return out;
}

RunConfig switched_config(const RunConfig& config, std::int64_t from, const OtherRecipe& other) {
  RunConfig c = config;
  if (from == 0) {
    check_usage(other.everything(),
                "some GEMMs alone can follow another recipe from step 1 on; there is no checkpoint before "
                "step {} to begin at",
                from);
    c.precision = PrecisionSection{};
    c.precision.recipe = other.recipe;
    c.precision.sr_seed = config.precision.sr_seed;
    c.precision.native_fp8 = config.precision.native_fp8;
    c.precision.native_fp4 = config.precision.native_fp4;
    c.precision.native_mxfp8 = config.precision.native_mxfp8;
    c.faults = FaultsSection{};
    c.faults.inject_nan_step = config.faults.inject_nan_step;
  } else {
    std::erase_if(c.precision.switches, [&](const SwitchSection& s) {
      return step_of(s.at, c.training.steps, "precision.switch.at") >= from;
    });
    SwitchSection s{.at = {fmt::format("{}", from)}, .recipe = other.recipe};
    if (!other.gemms.empty()) s.gemms = other.gemms;
    c.precision.switches.push_back(s);
  }
  check_run_config(c);
  return c;
}

LearnerConfig switched_learner(const RunSetup& setup, const RunConfig& switched, const OtherRecipe& other) {
  LearnerConfig l =
      setup.learner(candidate_recipe(switched), static_cast<std::uint64_t>(switched.training.seed),
                    static_cast<std::uint64_t>(switched.precision.sr_seed));
  // A fault that is planted in what quantises is not in what does not.
  if (other.everything() && !quantizes(find_recipe(other.recipe))) l.lost_micro_batches = false;
  return l;
}

std::string label_at(const RunConfig& config, std::int64_t step) {
  const auto at = [&](const SwitchSection& s) {
    return step_of(s.at, config.training.steps, "precision.switch.at");
  };
  std::vector<SwitchSection> switches = config.precision.switches;
  std::stable_sort(switches.begin(), switches.end(),
                   [&](const SwitchSection& a, const SwitchSection& b) { return at(a) < at(b); });
  std::string label = config.precision.recipe;
  for (const SwitchSection& s : switches)
    if (at(s) <= step) label = label_under(label, {s.recipe, s.gemms});
  return label;
}

std::string label_under(const std::string& label, const OtherRecipe& other) {
  if (other.everything()) return other.recipe;
  return fmt::format("{}, {} in {}", label, fmt::join(other.gemms, " and "), other.recipe);
}

}  // namespace nibble
