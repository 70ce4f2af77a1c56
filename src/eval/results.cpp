// SPDX-License-Identifier: Apache-2.0
#include "eval/results.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace nibble {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson finite_or_null(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
}

std::int64_t examples_of(const TaskResult& r) { return static_cast<std::int64_t>(r.examples.size()); }

}  // namespace

std::string results_table(const std::vector<TaskResult>& results) {
  std::size_t width = 4;
  for (const TaskResult& r : results) width = std::max(width, r.task.size());
  std::string out = fmt::format("{:<{}}  {:<18} {:>5} {:>12} {:>10} {:>7}\n", "task", width, "metric",
                                "shots", "value", "stderr", "n");
  for (const TaskResult& r : results) {
    for (const Metric& m : r.metrics) {
      const Estimate e = estimate(m);
      const bool first = &m == &r.metrics.front();
      out += fmt::format("{:<{}}  {:<18} {:>5} {:>12.4f} {:>10.4f} {:>7}\n", first ? r.task : "", width,
                         m.name, r.shots, e.value, e.standard_error, examples_of(r));
    }
  }
  return out;
}

std::string results_json(const std::vector<TaskResult>& results,
                         const std::map<std::string, std::string>& about) {
  OrderedJson j = {{"results", OrderedJson::object()},
                   {"n-shot", OrderedJson::object()},
                   {"n-samples", OrderedJson::object()},
                   {"higher_is_better", OrderedJson::object()},
                   {"config", about}};
  for (const TaskResult& r : results) {
    OrderedJson values = {{"alias", r.task}}, better = OrderedJson::object();
    for (const Metric& m : r.metrics) {
      const Estimate e = estimate(m);
      values[m.name + ",none"] = e.value;
      values[m.name + "_stderr,none"] = finite_or_null(e.standard_error);
      better[m.name] = m.higher_is_better;
    }
    j["results"][r.task] = values;
    j["n-shot"][r.task] = r.shots;
    j["n-samples"][r.task] = {{"original", r.examples_all}, {"effective", examples_of(r)}};
    j["higher_is_better"][r.task] = better;
  }
  return j.dump(2) + "\n";
}

std::string samples_jsonl(const std::vector<Task>& tasks, const std::vector<TaskResult>& results) {
  std::string out;
  for (std::size_t t = 0; t < results.size(); ++t) {
    const TaskResult& r = results[t];
    for (std::size_t i = 0; i < r.examples.size(); ++i) {
      const ExampleResult& e = r.examples[i];
      OrderedJson arguments = OrderedJson::array(), answers = OrderedJson::array();
      for (std::size_t k = 0; k < e.scores.size(); ++k) {
        if (r.kind == TaskKind::Text)
          arguments.push_back({tasks[t].examples[i].choices[k]});
        else
          arguments.push_back({e.contexts[k], e.continuations[k]});
        answers.push_back({e.scores[k].log_likelihood, e.scores[k].greedy});
      }
      OrderedJson line = {{"task", r.task},
                          {"doc_id", i},
                          {"target", tasks[t].examples[i].gold},
                          {"arguments", arguments},
                          {"resps", answers}};
      for (const Metric& m : r.metrics) line[m.name] = m.sums[i] / m.weight(i);
      out += line.dump() + "\n";
    }
  }
  return out;
}

std::vector<TaskEvent> task_events(const std::vector<TaskResult>& results, std::int64_t step,
                                   std::int64_t tokens) {
  std::vector<TaskEvent> out;
  for (const TaskResult& r : results) {
    TaskEvent& event = out.emplace_back();
    event.step = step, event.tokens = tokens, event.task = r.task, event.examples = examples_of(r);
    for (const Metric& m : r.metrics) {
      const Estimate e = estimate(m);
      event.metrics.push_back({m.name, e.value, e.standard_error});
    }
  }
  return out;
}

std::filesystem::path stored_path(const std::filesystem::path& run, std::int64_t step) {
  return run / "eval" / fmt::format("step_{:08}.json", step);
}

void store_results(const std::filesystem::path& run, std::int64_t step,
                   const std::vector<TaskResult>& results) {
  OrderedJson tasks = OrderedJson::array();
  for (const TaskResult& r : results) {
    OrderedJson metrics = OrderedJson::array();
    for (const Metric& m : r.metrics)
      metrics.push_back({{"name", m.name},
                         {"higher_is_better", m.higher_is_better},
                         {"exponential", m.exponential},
                         {"sums", m.sums},
                         {"weights", m.weights}});
    tasks.push_back({{"task", r.task}, {"metrics", metrics}});
  }
  const std::filesystem::path path = stored_path(run, step);
  make_directories(path.parent_path());
  write_file_atomically(path, OrderedJson{{"schema", 1}, {"step", step}, {"tasks", tasks}}.dump() + "\n");
}

std::vector<StoredTask> read_stored(const std::filesystem::path& run, std::int64_t step) {
  const std::filesystem::path path = stored_path(run, step);
  const std::string where = path.string();
  const Json j = read_json(path);
  std::vector<StoredTask> out;
  for (const Json& task : json_get<Json>(j, "tasks", where)) {
    StoredTask& stored = out.emplace_back();
    stored.task = json_get<std::string>(task, "task", where);
    for (const Json& m : json_get<Json>(task, "metrics", where))
      stored.metrics.push_back({.name = json_get<std::string>(m, "name", where),
                                .higher_is_better = json_get<bool>(m, "higher_is_better", where),
                                .exponential = json_get<bool>(m, "exponential", where),
                                .sums = json_get<std::vector<double>>(m, "sums", where),
                                .weights = json_get<std::vector<double>>(m, "weights", where)});
  }
  return out;
}

}  // namespace nibble
