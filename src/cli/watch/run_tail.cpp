// SPDX-License-Identifier: Apache-2.0
#include "cli/watch/run_tail.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/metrics_csv.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A number, or the words that the log has for what is none.
double number(const json& j, const char* key) {
  const auto it = j.find(key);
  if (it == j.end() || !it->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return it->get<double>();
}

/// Keeps rows ascending: a step that is logged again replaces what followed it.
template <class Row>
void put(std::vector<Row>& rows, const Row& row) {
  while (!rows.empty() && rows.back().step >= row.step) rows.pop_back();
  rows.push_back(row);
}

std::string read_range(const fs::path& path, std::int64_t from, std::int64_t count) {
  std::ifstream in(path, std::ios::binary);
  std::string out(static_cast<std::size_t>(count), '\0');
  in.seekg(from);
  in.read(out.data(), count);
  out.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return out;
}

/// Means of equal buckets, so that a page of a long run stays small.
std::vector<WatchRow> thinned(const std::vector<WatchRow>& rows, std::size_t begin, std::size_t most) {
  const std::size_t count = rows.size() - begin, bucket = (count + most - 1) / std::max<std::size_t>(most, 1);
  if (bucket <= 1) return {rows.begin() + static_cast<std::ptrdiff_t>(begin), rows.end()};
  std::vector<WatchRow> out;
  for (std::size_t i = begin; i < rows.size(); i += bucket) {
    const std::size_t end = std::min(rows.size(), i + bucket);
    WatchRow mean;
    for (std::size_t j = i; j < end; ++j) {
      mean.loss += rows[j].loss, mean.grad_norm += rows[j].grad_norm,
          mean.tokens_per_s += rows[j].tokens_per_s;
      mean.step_ms += rows[j].step_ms;
    }
    const auto n = static_cast<double>(end - i);
    mean.loss /= n, mean.grad_norm /= n, mean.tokens_per_s /= n, mean.step_ms /= n;
    mean.step = rows[end - 1].step, mean.lr = rows[end - 1].lr;
    out.push_back(mean);
  }
  return out;
}

/// "tiny" of runs/tiny, runs/tiny/ and "." inside it.
std::string name_of_folder(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

RunTail::RunTail(std::string name, fs::path log) : path_(std::move(log)) { run_.name = std::move(name); }

bool RunTail::still_the_same(std::int64_t size) const {
  if (size < read_) return false;
  const auto length = static_cast<std::int64_t>(last_line_.size());
  return read_range(path_, read_ - length, length) == last_line_;
}

void RunTail::forget() {
  const std::string name = run_.name;
  const int generation = run_.generation + 1;
  run_ = WatchedRun{.name = name, .generation = generation};
  alarms_.clear();
  read_ = 0;
  last_line_.clear();
}

void RunTail::poll() {
  std::error_code error;
  const auto found = fs::file_size(path_, error);
  if (error) return;
  const auto size = static_cast<std::int64_t>(found);
  if (!still_the_same(size)) forget();
  if (size == read_) return;
  const std::string text = read_range(path_, read_, size - read_);
  std::size_t start = 0;
  for (auto end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
    take(std::string_view(text).substr(start, end - start));
    last_line_ = text.substr(start, end - start + 1);
    start = end + 1;
  }
  read_ += static_cast<std::int64_t>(start);
}

void RunTail::take(std::string_view line) {
  const json j = json::parse(line, nullptr, false);
  if (!j.is_object() || !j.contains("type") || !j["type"].is_string()) {
    ++run_.passed_over;
    return;
  }
  const auto type = j["type"].get<std::string>();
  const auto whole = [&](const char* key) {
    return j.contains(key) && j[key].is_number() ? j[key].get<std::int64_t>() : 0;
  };
  const auto text = [&](const char* key) {
    return j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : std::string();
  };
  if (type == "header") {
    run_.recipe = text("recipe"), run_.backend = text("backend");
    run_.steps = whole("steps"), run_.parameters = whole("parameters"),
    run_.tokens_per_step = whole("tokens_per_step");
  } else if (type == "train") {
    put(run_.rows, WatchRow{whole("step"), number(j, "loss"), number(j, "grad_norm"), number(j, "lr"),
                            number(j, "tokens_per_s"), number(j, "step_ms")});
  } else if (type == "val" && text("set") == "validation") {
    put(run_.evaluations, WatchEvaluation{whole("step"), number(j, "loss")});
  } else if (type == "alarm") {
    put_alarm(text("severity"), {.step = whole("step"),
                                 .rule = text("rule"),
                                 .where = {text("layer"), 0, text("gemm"), text("operand")},
                                 .text = text("text")});
  } else if (type == "switch") {
    run_.alarms.push_back("switch, step " + std::to_string(whole("step")) + ": " + text("what") + " " +
                          text("from") + " to " + text("to"));
    ++run_.alarm_events;
  }
}

void RunTail::put_alarm(const std::string& severity, AlarmEvent alarm) {
  ++run_.alarm_events;
  const std::string subject = severity + "|" + alarm_subject(alarm.rule, alarm.where);
  const std::int64_t step = alarm.step;
  const auto [it, is_new] =
      alarms_.try_emplace(subject, AlarmGroup{.first = std::move(alarm)}, run_.alarms.size());
  if (is_new) run_.alarms.emplace_back();
  AlarmGroup& group = it->second.first;
  ++group.count;
  group.last_step = std::max(group.last_step, step);
  run_.alarms[it->second.second] = severity + ", " + group.when() + ": " + group.first.text;
}

WatchedRuns::WatchedRuns(std::vector<fs::path> folders) : folders_(std::move(folders)) { poll(); }

void WatchedRuns::poll() {
  const std::lock_guard lock(mutex_);
  for (const fs::path& folder : folders_) {
    for (const auto& [arm, place] : arms_below(folder)) {
      const fs::path log = place / "metrics.jsonl";
      const bool known =
          std::any_of(tails_.begin(), tails_.end(), [&](const RunTail& t) { return t.path() == log; });
      if (known) continue;
      const std::string run = name_of_folder(folder);
      tails_.emplace_back(arm.empty()            ? run
                          : folders_.size() == 1 ? arm
                                                 : fmt::format("{}/{}", run, arm),
                          log);
    }
  }
  for (RunTail& t : tails_) t.poll();
}

std::vector<WatchedRun> WatchedRuns::copy() const {
  const std::lock_guard lock(mutex_);
  std::vector<WatchedRun> out;
  for (const RunTail& t : tails_) out.push_back(t.run());
  return out;
}

std::string WatchedRuns::news(std::vector<Seen>& seen, std::size_t most) const {
  const std::lock_guard lock(mutex_);
  json all = json::array();
  seen.resize(tails_.size());
  for (std::size_t i = 0; i < tails_.size(); ++i) {
    const WatchedRun& run = tails_[i].run();
    Seen& s = seen[i];
    const bool anew =
        s.generation != run.generation || s.rows > run.rows.size() || s.evaluations > run.evaluations.size();
    if (anew) s = {.generation = run.generation};
    if (!anew && s.rows == run.rows.size() && s.evaluations == run.evaluations.size() &&
        s.alarm_events == run.alarm_events)
      continue;
    json rows = json::array(), evaluations = json::array();
    for (const WatchRow& r : thinned(run.rows, s.rows, most))
      rows.push_back({r.step, r.loss, r.grad_norm, r.lr, r.tokens_per_s, r.step_ms});
    for (std::size_t k = s.evaluations; k < run.evaluations.size(); ++k)
      evaluations.push_back({run.evaluations[k].step, run.evaluations[k].loss});
    all.push_back({{"run", i},
                   {"anew", anew},
                   {"name", run.name},
                   {"recipe", run.recipe},
                   {"backend", run.backend},
                   {"steps", run.steps},
                   {"parameters", run.parameters},
                   {"rows", rows},
                   {"evaluations", evaluations},
                   {"alarms", run.alarms}});
    s = {run.generation, run.rows.size(), run.evaluations.size(), run.alarm_events};
  }
  // Not finite becomes null, which a chart leaves out; bytes that are no UTF-8 are replaced.
  return all.empty() ? "" : all.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace nibble
