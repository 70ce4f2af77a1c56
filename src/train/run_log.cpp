// SPDX-License-Identifier: Apache-2.0
#include "train/run_log.h"

#include <array>
#include <functional>
#include <limits>
#include <map>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "telemetry/statistics.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

/// Calls take(line) for every whole line.
void for_each_line(const fs::path& path, const std::function<void(const Json&)>& take) {
  const std::string text = read_file(path);
  std::size_t start = 0;
  for (int line = 1; start < text.size(); ++line) {
    const auto end = text.find('\n', start);
    if (end == std::string::npos) return;
    try {
      take(Json::parse(text.begin() + static_cast<std::ptrdiff_t>(start),
                       text.begin() + static_cast<std::ptrdiff_t>(end)));
    } catch (const Json::exception& e) {
      fail("{} line {}: {}", path.string(), line, e.what());
    }
    start = end + 1;
  }
}

/// A number, or one of the strings that stand for what JSON cannot say.
double number(const Json& j) {
  if (j.is_number()) return j.get<double>();
  const auto text = j.get<std::string>();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

HeaderEvent header_from(const Json& j) {
  HeaderEvent h;
  check(j.at("schema") == 1, "the log has schema {}, this binary reads 1", j.at("schema").dump());
  h.run = j.at("run"), h.arm = j.at("arm"), h.recipe = j.at("recipe"), h.backend = j.at("backend");
  h.version = j.at("version"), h.protocol = j.at("protocol"), h.config = j.at("config");
  h.data = j.at("data"), h.init = j.at("init");
  h.seed = std::stoull(j.at("seed").get<std::string>());
  h.sr_seed = std::stoull(j.at("sr_seed").get<std::string>());
  h.steps = j.at("steps"), h.tokens_per_step = j.at("tokens_per_step"), h.parameters = j.at("parameters");
  h.warmup_steps = j.at("warmup_steps"), h.decay_start = j.at("decay_start"), h.emulated = j.at("emulated");
  h.accumulate = j.value("accumulate", "fp32");  // logs of before there was a choice
  h.products = j.value("products", "");
  return h;
}

TrainEvent train_from(const Json& j) {
  TrainEvent e{.step = j.at("step"), .tokens = j.at("tokens"), .loss = number(j.at("loss"))};
  e.lr = number(j.at("lr")), e.grad_norm = number(j.at("grad_norm"));
  e.tokens_per_s = number(j.at("tokens_per_s")), e.step_ms = number(j.at("step_ms"));
  if (j.contains("mfu")) e.mfu = number(j.at("mfu"));
  e.batch_hash = std::stoull(j.at("batch_hash").get<std::string>(), nullptr, 16);
  return e;
}

EvalEvent eval_from(const Json& j) {
  EvalEvent e{.step = j.at("step"), .tokens = j.at("tokens"), .loss = number(j.at("loss"))};
  e.eval_tokens = j.at("eval_tokens"), e.set = j.at("set");
  return e;
}

/// A key that has another called KEY_stderr is a metric. Metrics come in the order of their names.
TaskEvent task_from(const Json& j) {
  TaskEvent e{.step = j.at("step"),
              .tokens = j.at("tokens"),
              .task = j.at("task"),
              .examples = j.at("n"),
              .metrics = {}};
  for (const auto& [key, value] : j.items()) {
    const auto error = j.find(key + "_stderr");
    if (error != j.end()) e.metrics.push_back({key, number(value), number(*error)});
  }
  return e;
}

OperandName where_from(const Json& j) {
  return {j.at("layer"), j.at("block"), j.at("gemm"), j.at("operand")};
}

AlarmEvent alarm_from(const Json& j) {
  AlarmEvent e;
  e.step = j.at("step"), e.severity = severity_from(j.at("severity")), e.rule = j.at("rule");
  e.where = where_from(j), e.text = j.at("text");
  if (j.contains("value")) e.value = number(j.at("value"));
  if (j.contains("threshold")) e.threshold = number(j.at("threshold"));
  if (j.contains("remedy")) e.remedy = j.at("remedy");
  return e;
}

QuantEvent quant_from(const Json& j) {
  QuantEvent e{.step = j.at("step"), .where = where_from(j), .format = j.at("format")};
  for (const Statistic& s : operand_statistics()) {
    // Logs of before 0.2 call cur_amax amax.
    const auto found = j.contains(s.name) || s.value != &QuantEvent::amax ? j.find(s.name) : j.find("amax");
    e.*s.value = found == j.end() ? std::numeric_limits<double>::quiet_NaN() : number(*found);
  }
  using Bins = std::array<std::int64_t, 16>;
  if (j.contains(kScaleHistogram)) e.scale_log2 = j.at(kScaleHistogram).get<Bins>();
  if (j.contains(kCodeHistogram)) e.codes = j.at(kCodeHistogram).get<Bins>();
  return e;
}

template <class Key, class Event>
std::vector<Event> in_order(std::map<Key, Event>& by_key) {
  std::vector<Event> out;
  for (auto& [key, event] : by_key) out.push_back(std::move(event));
  return out;
}

}  // namespace

RunLog read_run_log(const fs::path& path) {
  RunLog log;
  std::map<std::int64_t, TrainEvent> train;
  std::map<std::int64_t, EvalEvent> evaluations;
  std::map<std::pair<std::int64_t, std::string>, TaskEvent> tasks;
  for_each_line(path, [&](const Json& j) {
    const auto type = j.at("type").get<std::string>();
    if (type == "header") {
      log.header = header_from(j);
    } else if (type == "train") {
      train[j.at("step")] = train_from(j);
    } else if (type == "val" && j.at("set") == "validation") {
      evaluations[j.at("step")] = eval_from(j);
    } else if (type == "task") {
      TaskEvent e = task_from(j);
      const std::pair key(e.step, e.task);
      tasks[key] = std::move(e);
    } else if (type == "alarm") {
      log.alarms.push_back(alarm_from(j));
    } else if (type == "switch") {
      log.switches.push_back({j.at("step"), j.at("from"), j.at("to"), j.at("what")});
    }
  });
  log.train = in_order(train);
  log.evaluations = in_order(evaluations);
  log.tasks = in_order(tasks);
  return log;
}

std::vector<QuantEvent> read_telemetry_log(const fs::path& path) {
  std::vector<QuantEvent> out;
  for_each_line(path, [&](const Json& j) {
    if (j.at("type") == "tensor") out.push_back(quant_from(j));
  });
  return out;
}

}  // namespace nibble
