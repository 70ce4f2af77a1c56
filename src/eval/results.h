// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "telemetry/events.h"

namespace nibble {

/// A row a metric: task, metric, value, standard error, examples.
std::string results_table(const std::vector<TaskResult>& results);

/// results.json under the keys of lm-eval-harness: results{task{"acc,none", "acc_stderr,none"}}, n-shot,
/// n-samples, higher_is_better, config (`about`, in its order of names).
std::string results_json(const std::vector<TaskResult>& results,
                         const std::map<std::string, std::string>& about);

/// A line an example: task, doc_id, target, arguments [[context, continuation], ...], resps
/// [[log-likelihood, greedy], ...], and what the example gives to each metric.
std::string samples_jsonl(const std::vector<Task>& tasks, const std::vector<TaskResult>& results);

/// One event a task, for the logs of a run.
std::vector<TaskEvent> task_events(const std::vector<TaskResult>& results, std::int64_t step,
                                   std::int64_t tokens);

/// What a run keeps of one evaluation: RUN/eval/step_00000300.json, the metrics example by example, from
/// which arms are compared.
struct StoredTask {
  std::string task;
  std::vector<Metric> metrics;
};
std::filesystem::path stored_path(const std::filesystem::path& run, std::int64_t step);
void store_results(const std::filesystem::path& run, std::int64_t step,
                   const std::vector<TaskResult>& results);
/// Throws Error{Runtime} naming the file.
std::vector<StoredTask> read_stored(const std::filesystem::path& run, std::int64_t step);

}  // namespace nibble
