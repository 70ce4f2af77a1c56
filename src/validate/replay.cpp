// SPDX-License-Identifier: Apache-2.0
// Trains the arms of a replay.
#include "validate/replay.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/flops.h"
#include "models/parameters.h"
#include "train/quant_monitor.h"

namespace nibble {
namespace {

/// Most FLOPs that another backend is given unasked: about a minute of each on two cores.
constexpr double kMostRef = 2e10, kMostCpu = 5e12;

class FaultCollector final : public Sink {
 public:
  using Sink::on;
  void on(const AlarmEvent& a) override {
    if (a.severity == Severity::Fault) faults.push_back(a);
  }
  std::vector<AlarmEvent> faults;
};

View<const std::int32_t> view_of(const std::vector<TokenId>& ids) {
  return View<const std::int32_t>(ids.data(), static_cast<std::int64_t>(ids.size()));
}

/// The parameters in the order of the model, so backward spoils the last of them first.
ReplayBreak broken_at(const NonFiniteStep& e, const ParamStore& params) {
  ReplayBreak b{.step = e.step + 1, .layer = e.layer, .gemm = e.gemm, .operand = e.operand, .gradient = {}};
  for (const ParamStore::Entry& entry : params.entries()) {
    ++b.parameters;
    const std::vector<float> grad = params.read(params.grad(entry));
    if (std::all_of(grad.begin(), grad.end(), [](float g) { return std::isfinite(g); })) continue;
    ++b.gradients;
    b.gradient = entry.info.name;
  }
  return b;
}

class Replayer {
 public:
  Replayer(const RunSetup& setup, const RunPoint& start, const Replay& r)
      : start_(start),
        from_(r.from),
        until_(r.until),
        order_(setup.order(static_cast<std::uint64_t>(setup.config().training.seed))) {}

  /// `swapped`: the row whose batch is replaced by one that the run never saw; 0: none.
  ReplayArm run(const std::string& name, const std::string& computes_in, const LearnerConfig& config,
                Stream& stream, std::int64_t swapped = 0) const {
    ReplayArm arm{.name = name,
                  .computes_in = computes_in,
                  .backend = std::string(name_of(stream.kind())),
                  .steps = {},
                  .broken = {},
                  .faults = {}};
    const auto learner = learner_at(stream, config, start_);
    for (std::int64_t step = from_; step < until_; ++step) {
      const std::int64_t read = step + 1 == swapped ? config.schedule.steps + step : step;
      const Batch batch = order_.batch(read, config.batch);
      QuantMonitor monitor(stream.device(), {}, {});
      const bool first = step == from_;
      try {
        const StepResult r =
            learner->step(view_of(batch.ids), view_of(batch.targets), first ? &monitor : nullptr);
        arm.steps.push_back({step + 1, r.loss, r.grad_norm, batch.hash});
      } catch (const NonFiniteStep& e) {
        arm.broken = broken_at(e, learner->params());
        break;
      }
      if (!first) continue;
      FaultCollector faults;
      monitor.finish_step(step + 1, faults);
      arm.faults = faults.faults;
    }
    return arm;
  }

 private:
  const RunPoint& start_;
  std::int64_t from_, until_;
  SampleOrder order_;
};

/// The backend of the second opinion, or nothing with the reason.
std::optional<BackendKind> other_backend(const ReplayRequest& request, BackendKind own, double flops,
                                         Replay& r) {
  if (request.other == "none") return {};
  if (request.other != "auto") {
    const BackendKind asked = backend_from_name(request.other);
    check_usage(asked != own, "--other {}: the run itself is replayed there; name another backend",
                request.other);
    return asked;
  }
  const BackendKind kind = own == BackendKind::Cpu ? BackendKind::Ref : BackendKind::Cpu;
  const double most = kind == BackendKind::Ref ? kMostRef : kMostCpu;
  if (flops <= most) return kind;
  r.skipped.push_back(fmt::format("backend {}: {:.2g} FLOPs there take long; --other {} does it",
                                  name_of(kind), flops, name_of(kind)));
  return {};
}

/// Which parts of the data are no longer what the checkpoint was trained with.
std::vector<std::string> changed_data(const RunSetup& setup, const RunPoint& start) {
  std::vector<std::string> out;
  const std::map<std::string, std::string> now = setup.contract();
  for (const char* key : {"data", "tokenizer", "validation"}) {
    const auto had = start.state.identity.find(key);
    if (had != start.state.identity.end() && had->second != now.at(key)) out.push_back(key);
  }
  return out;
}

void require_same_config(const RunSetup& setup, const RunPoint& start) {
  const std::map<std::string, std::string> expected = expected_identity(setup, start);
  const auto had = start.state.identity.find("config"), now = expected.find("config");
  if (had == start.state.identity.end() || now == expected.end()) return;
  check_usage(had->second == now->second,
              "{} was trained with another configuration than {} has: it was edited since; restore it",
              start.checkpoint.string(), (start.run / "run.toml").string());
}

bool quantizes_between(const LearnerConfig& l, std::int64_t from, std::int64_t until) {
  const std::vector<LinearInfo> all = linears(l.model);
  for (const std::int64_t step : {from, until - 1}) {
    const std::vector<ResolvedLinear> plan = plan_of_step(l.recipe, all, step);
    if (std::any_of(plan.begin(), plan.end(), [](const ResolvedLinear& r) { return r.quantized(); }))
      return true;
  }
  return false;
}

}  // namespace

RunPoint replay_start(const std::filesystem::path& run, const ReplayRequest& request,
                      const std::vector<std::string>& sets) {
  check_usage(request.at >= 1 && request.before >= 0 && request.after >= 0,
              "--at {} --before {} --after {}: rows of metrics.jsonl count from 1", request.at,
              request.before, request.after);
  return run_point_before(run, std::max<std::int64_t>(request.at - 1 - request.before, 0), sets);
}

Replay run_replay(const RunPoint& start, const ReplayRequest& request, Stream& stream) {
  const RunSetup setup(start.config);
  const RunConfig& c = setup.config();
  check_usage(request.at <= c.training.steps, "--at {}: the run has {} steps", request.at, c.training.steps);
  require_same_config(setup, start);
  const RunLog log = read_run_log(start.run / "metrics.jsonl");
  Replay r{.run = start.run.string(), .checkpoint = start.checkpoint.string(), .backend = c.training.backend};
  r.at = request.at, r.from = start.state.step;
  r.until = std::min(request.at + request.after, c.training.steps);
  r.logged_version = log.header.version, r.version = nibble_version();
  r.changed = changed_data(setup, start);
  for (const TrainEvent& e : log.train)
    if (e.step > r.from && e.step <= r.until && c.training.backend == start.own_backend)
      r.logged.push_back({e.step, e.loss, e.grad_norm, e.batch_hash});

  const Replayer replayer(setup, start, r);
  const LearnerConfig recipe = setup.learner(candidate_recipe(c), static_cast<std::uint64_t>(c.training.seed),
                                             static_cast<std::uint64_t>(c.precision.sr_seed));
  const std::vector<TrainEvent> usual = usual_rows(log, request.at);
  r.arms.push_back(replayer.run("recipe", c.precision.recipe, recipe, stream));
  if (quantizes_between(recipe, r.from, r.until)) {
    const OtherRecipe bf16;
    const RunConfig switched = switched_config(c, r.from, bf16);
    r.arms.push_back(replayer.run("bf16", "bf16", switched_learner(setup, switched, bf16), stream));
  } else {
    r.skipped.push_back(
        fmt::format("bf16: the run, in {}, quantises nothing in these steps", c.precision.recipe));
  }
  const double flops = flops_per_token(setup.model(), c.training.sequence).total() *
                       static_cast<double>((r.until - r.from) * c.tokens_per_step());
  if (const auto kind = other_backend(request, stream.kind(), flops, r)) {
    const auto other_device = open_device(*kind);
    Stream other(*kind, *other_device, static_cast<int>(c.training.threads));
    r.arms.push_back(replayer.run("backend", c.precision.recipe, recipe, other));
  }
  judge_replay(r, usual);
  const bool bf16_has_it = r.culprit == Culprit::Stack && r.event.kind != "none" && r.changed.empty() &&
                           !r.first_difference && !r.other_batch_at;
  if (bf16_has_it) {
    r.arms.push_back(replayer.run("other_batch", c.precision.recipe, recipe, stream, r.event.step));
    judge_replay(r, usual);
  }
  return r;
}

}  // namespace nibble
