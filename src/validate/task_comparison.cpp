// SPDX-License-Identifier: Apache-2.0
#include "validate/task_comparison.h"

#include "base/error.h"
#include "eval/results.h"
#include "io/hash.h"

namespace nibble {
namespace {

/// Evaluations of one kind of arm over all pairs and points: [evaluation][task].
std::vector<std::vector<StoredTask>> stored_of(const Protocol& p, const std::filesystem::path& run,
                                               const char* arm_name) {
  std::vector<std::vector<StoredTask>> out;
  for (const ArmSpec& arm : p.arms) {
    if (arm.name != arm_name) continue;
    for (const std::int64_t step : p.tasks.steps) {
      out.push_back(read_stored(run / arm.directory, step));
      check(out.back().size() == p.tasks.names.size(), "{} holds {} tasks, the protocol has {}",
            stored_path(run / arm.directory, step).string(), out.back().size(), p.tasks.names.size());
    }
  }
  check(!out.empty(), "there is no arm called {}", arm_name);
  return out;
}

Metric mean_metric(const std::vector<std::vector<StoredTask>>& evaluations, std::size_t task,
                   std::size_t metric) {
  std::vector<Metric> all;
  for (const auto& tasks : evaluations) {
    check(metric < tasks[task].metrics.size(), "task {} was not stored with the same metrics in all arms",
          tasks[task].task);
    all.push_back(tasks[task].metrics[metric]);
  }
  return mean_of(all);
}

}  // namespace

std::vector<TaskComparison> compare_tasks(const Protocol& p, const std::filesystem::path& run) {
  std::vector<TaskComparison> out;
  if (p.tasks.names.empty()) return out;
  const auto baseline = stored_of(p, run, "baseline"), candidate = stored_of(p, run, "candidate");
  for (std::size_t t = 0; t < p.tasks.names.size(); ++t) {
    const std::uint64_t key = xxh3_64("task bootstrap: " + p.tasks.names[t]);
    for (std::size_t m = 0; m < baseline.front()[t].metrics.size(); ++m) {
      const Metric base = mean_metric(baseline, t, m), cand = mean_metric(candidate, t, m);
      const PairedDifference d = paired_bootstrap(base, cand, key, p.tasks.resamples);
      out.push_back({.task = p.tasks.names[t],
                     .metric = base.name,
                     .higher_is_better = base.higher_is_better,
                     .examples = d.examples,
                     .baseline = d.baseline,
                     .candidate = d.candidate,
                     .difference = d.difference,
                     .ci95 = d.ci95});
    }
  }
  return out;
}

}  // namespace nibble
