// SPDX-License-Identifier: Apache-2.0
// Trains the arms of an ablation, skipping those that are finished or in another process's hands.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/nearest.h"
#include "io/file.h"
#include "io/file_lock.h"
#include "io/json.h"
#include "train/run_log.h"
#include "validate/ablation.h"
#include "validate/arm_log.h"

namespace nibble {
namespace {

constexpr const char* kEnded = "ended.json";

/// Writes the protocol, or makes sure that the one that is there is the same.
void freeze(const AblationPlan& plan, bool keep) {
  const FileLock lock = FileLock::wait_for(plan.directory / ".lock");
  const std::filesystem::path path = plan.directory / "protocol.json";
  if (keep && std::filesystem::exists(path)) {
    const std::string frozen = protocol_hash(protocol_from_text(read_file(path)));
    check_usage(frozen == protocol_hash(plan.protocol),
                "{} belongs to another ablation or comparison ({}, this one is {}): configuration, arms and "
                "seeds must be those it was begun with. Restore them, or start anew under another "
                "training.name",
                path.string(), frozen, protocol_hash(plan.protocol));
    return;
  }
  write_file_atomically(path, canonical_text(plan.protocol));
  write_file_atomically(plan.directory / "run.toml", to_toml(plan.config));
}

void check_only(const AblationPlan& plan, const std::vector<std::string>& only) {
  std::set<std::string> names;
  for (const ArmSpec& a : plan.protocol.arms) names.insert(a.name);
  const std::vector<std::string> known(names.begin(), names.end());
  for (const std::string& n : only)
    check_usage(names.contains(n), "--only {}: there is no such arm{} The arms are {}.", n,
                did_you_mean(n, known, 2), fmt::join(known, ", "));
}

class Runner {
 public:
  Runner(const AblationPlan& plan, Stream& stream, bool resume, const SignalGuard& signals)
      : plan_(plan),
        stream_(stream),
        resume_(resume),
        signals_(signals),
        hash_(protocol_hash(plan.protocol)) {}

  std::filesystem::path folder(const ArmSpec& spec) const { return plan_.directory / spec.directory; }

  /// Whether the arm has ended, at its last step or not finite, under this protocol.
  bool ended(const ArmSpec& spec) const {
    const std::filesystem::path path = folder(spec) / kEnded;
    if (!std::filesystem::exists(path)) return false;
    return json_get<std::string>(read_json(path), "protocol", path.string()) == hash_;
  }

  /// Trains one arm. Returns false when a signal ended it.
  bool run(const ArmSpec& spec, const std::shared_ptr<ConsoleSink>& console) {
    const RunSetup setup(config_of(spec));
    const RunConfig& c = setup.config();
    const bool is_baseline = spec.name == kBaselineArm;
    const bool in_baseline = is_baseline || spec.name == kAgainArm;
    Learner learner(stream_, setup.learner(in_baseline ? baseline_recipe(c) : candidate_recipe(c), spec.seed,
                                           spec.sr_seed));
    const SampleOrder order = setup.order(spec.seed);
    RunPlan plan = setup.plan(learner, stream_.kind());
    plan.directory = folder(spec);
    plan.eval_steps = plan_.protocol.eval_steps;
    plan.eval_steps.insert(plan.eval_steps.begin(), 0);
    plan.alarms = plan_.protocol.alarms;
    plan.resume = resume_;
    plan.identity["arm"] = spec.directory;
    plan.identity["protocol"] = plan.header.protocol = hash_;
    plan.header.arm = spec.name;
    write_file(plan.directory / "run.toml", to_toml(c));
    if (console && !in_baseline) attach_baseline(spec, *console);
    try {
      const RunResult r =
          run_training(learner, {order, setup.validation(), setup.data().tokenizer}, plan, console, signals_);
      if (r.end == RunEnd::Signal) return false;
      end(spec, "");
    } catch (const Error& e) {
      // An arm's own failure is a finding, not an accident; without its baseline there is none.
      if (e.kind() != ErrorKind::NonFinite || is_baseline) throw;
      end(spec, fmt::format("not finite after step {}{}", learner.steps_done(),
                            spec.pair > 1 ? fmt::format(" of seed {}", spec.pair) : ""));
    }
    return true;
  }

  /// The curves of all arms that have ended in each of the first `seeds` seeds.
  std::vector<ArmCurves> curves(int seeds) const {
    std::vector<ArmCurves> out;
    RunLog baseline;
    for (const ArmSpec& spec : plan_.protocol.arms) {
      if (spec.pair > seeds || !complete(spec.name, seeds)) continue;
      const RunLog log = read_run_log(folder(spec) / "metrics.jsonl");
      if (spec.name == kBaselineArm)
        baseline = log;
      else if (spec.name != kAgainArm)
        require_paired(baseline, "the baseline", log, spec.directory);
      collect(spec, log, out);
    }
    return out;
  }

  /// Seeds in which the baseline and the full recipe have ended, from the first on.
  int judgeable_seeds() const {
    int seeds = 0;
    while (seeds < plan_.protocol.pairs() && complete(kBaselineArm, seeds + 1) &&
           complete(kFullArm, seeds + 1))
      ++seeds;
    return seeds;
  }

 private:
  bool complete(const std::string& arm, int seeds) const {
    return std::all_of(plan_.protocol.arms.begin(), plan_.protocol.arms.end(),
                       [&](const ArmSpec& s) { return s.name != arm || s.pair > seeds || ended(s); });
  }

  void end(const ArmSpec& spec, const std::string& broken) const {
    write_file_atomically(folder(spec) / kEnded,
                          Json{{"schema", 1}, {"protocol", hash_}, {"broken", broken}}.dump() + "\n");
  }

  void attach_baseline(const ArmSpec& spec, ConsoleSink& console) const {
    for (const ArmSpec& b : plan_.protocol.arms)
      if (b.name == kBaselineArm && b.pair == spec.pair && ended(b))
        console.attach_baseline(losses_of(read_run_log(folder(b) / "metrics.jsonl")));
  }

  void collect(const ArmSpec& spec, const RunLog& log, std::vector<ArmCurves>& all) const {
    auto c = std::find_if(all.begin(), all.end(), [&](const ArmCurves& a) { return a.name == spec.name; });
    if (c == all.end()) c = all.insert(c, {.name = spec.name, .seeds = {}, .broken = {}, .faults = {}});
    const std::filesystem::path mark = folder(spec) / kEnded;
    const auto broken = json_get<std::string>(read_json(mark), "broken", mark.string());
    if (c->broken.empty()) c->broken = broken;
    c->seeds.push_back(points(log.evaluations));
    for (const AlarmEvent& a : log.alarms)
      if (a.severity == Severity::Fault) c->faults.push_back(a.text);
  }

  RunConfig config_of(const ArmSpec& spec) const {
    const std::string name = spec.name == kAaArm ? kFullArm : spec.name;
    const auto arm = std::find_if(plan_.arms.begin(), plan_.arms.end(),
                                  [&](const AblationArm& a) { return a.name == name; });
    check(arm != plan_.arms.end(), "the protocol names an arm {} that is not planned", spec.name);
    RunConfig c = arm->config;
    c.training.seed = static_cast<std::int64_t>(spec.seed);
    c.precision.sr_seed = static_cast<std::int64_t>(spec.sr_seed);
    return c;
  }

  const AblationPlan& plan_;
  Stream& stream_;
  bool resume_;
  const SignalGuard& signals_;
  std::string hash_;
};

/// What has ended, judged. One process at a time writes the figures.
void judge(const AblationPlan& plan, const Runner& runner, AblationRun& out) {
  const FileLock lock = FileLock::wait_for(plan.directory / ".lock");
  for (const ArmSpec& spec : plan.protocol.arms)
    if (!runner.ended(spec)) out.unfinished.push_back(spec.directory);
  out.finished = out.unfinished.empty();
  const int seeds = runner.judgeable_seeds();
  if (seeds == 0) return;
  out.result = judge_ablation(plan, runner.curves(seeds));
  out.judged = true;
  write_file_atomically(plan.directory / "ablation.json", dump_json(ablation_json(out.result)));
}

}  // namespace

AblationRun run_ablation(const AblationPlan& plan, Stream& stream, const AblationWork& work,
                         const SignalGuard& signals,
                         const std::function<std::shared_ptr<ConsoleSink>(const ArmSpec&)>& make_console,
                         const std::function<void(const ArmSpec&, const char* why)>& on_skip) {
  AblationRun out;
  check_only(plan, work.only);
  const bool keep = work.resume || work.join || work.judge_only;
  freeze(plan, keep);
  Runner runner(plan, stream, keep, signals);
  const auto mine = [&](const ArmSpec& s) {
    return work.only.empty() || std::find(work.only.begin(), work.only.end(), s.name) != work.only.end();
  };
  const auto skip = [&](const ArmSpec& s, const char* why) {
    if (on_skip) on_skip(s, why);
  };
  for (const ArmSpec& spec : plan.protocol.arms) {
    if (work.judge_only || !mine(spec)) continue;
    make_directories(runner.folder(spec));
    const auto lock = FileLock::try_to(runner.folder(spec) / ".lock");
    if (!lock) {
      skip(spec, "is in the hands of another process");
    } else if (keep && runner.ended(spec)) {
      skip(spec, "is finished already");
    } else if (!runner.run(spec, make_console(spec))) {
      out.signal = signals.received();
      return out;
    }
  }
  judge(plan, runner, out);
  return out;
}

}  // namespace nibble
