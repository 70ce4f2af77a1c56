// SPDX-License-Identifier: Apache-2.0
#include "validate/curve_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "io/file.h"
#include "train/run_log.h"

namespace nibble {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kEventName = "tfevents";

std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().filename().string().find(kEventName) != std::string::npos)
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // their names begin with the time they were opened
  return files;
}

std::vector<std::string> folders_with(const fs::path& folder, const char* file) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().filename() == file)
      found.push_back(entry.path().parent_path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void add_identity(Curve& curve, const HeaderEvent& h) {
  curve.identity["recipe"] = h.recipe;
  curve.identity["seed"] = fmt::format("{}", h.seed);
  curve.identity["data"] = h.data;
  curve.identity["init"] = h.init;
  curve.identity["parameters"] = fmt::format("{}", h.parameters);
  curve.identity["tokens per step"] = fmt::format("{}", h.tokens_per_step);
}

Curve read_nibble(const CurveSource& source, const fs::path& log_file) {
  detail::check_options(source, {"metric"}, "a nibble run");
  const RunLog log = read_run_log(log_file);
  Curve curve{.source = source.text, .format = "nibble run"};
  const auto it = source.options.find("metric");
  const std::string metric = it == source.options.end() ? "validation" : it->second;
  check_usage(metric == "train" || metric == "validation", "{}: metric={} is neither train nor validation",
              source.text, metric);
  curve.validation = metric == "validation";
  curve.metric = curve.validation ? "validation loss" : "training loss";
  if (curve.validation) {
    // Step 0 is the evaluation of the start values, which both arms share.
    for (const EvalEvent& e : log.evaluations)
      if (e.step > 0) curve.points.push_back({.step = e.step, .tokens = e.tokens, .loss = e.loss});
  } else {
    for (const TrainEvent& e : log.train)
      curve.points.push_back({.step = e.step, .tokens = e.tokens, .loss = e.loss});
  }
  add_identity(curve, log.header);
  return curve;
}

Curve read_folder(const CurveSource& source) {
  if (fs::exists(source.path / "metrics.jsonl")) return read_nibble(source, source.path / "metrics.jsonl");
  const auto files = event_files(source.path);
  if (!files.empty()) return detail::read_tensorboard(source, files);
  const auto arms = folders_with(source.path, "metrics.jsonl");
  check_usage(arms.empty(), "{} holds several arms; name one of: {}", source.path.string(),
              fmt::join(arms, ", "));
  fail("{} holds neither metrics.jsonl nor TensorBoard event files; name a run's folder or a log file",
       source.path.string());
}

/// The first line that is neither empty nor a comment.
std::string_view first_line(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (!line.empty() && line[0] != '#' && line != "\r") return line;
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return {};
}

bool looks_like_csv(const fs::path& path, std::string_view text) {
  if (path.extension() == ".csv") return true;
  const std::string_view line = first_line(text);
  // A header has no digits' worth of numbers in it: its first cell is a name.
  return line.find(',') != std::string_view::npos && line.find(':') == std::string_view::npos &&
         std::isalpha(static_cast<unsigned char>(line[0])) && line.find("loss") != std::string_view::npos;
}

Curve read_file_of(const CurveSource& source) {
  const MappedFile file(source.path);
  const std::string_view text = file.text();
  check(!text.empty(), "{} is empty", source.path.string());
  if (source.path.filename().string().find(kEventName) != std::string::npos)
    return detail::read_tensorboard(source, {source.path});
  if (source.path.filename() == "metrics.jsonl") return read_nibble(source, source.path);
  if (text.find(":::MLLOG") != std::string_view::npos) return detail::read_mlperf_log(source, text);
  if (looks_like_csv(source.path, text)) return detail::read_csv(source, text);
  return detail::read_text_log(source, text);
}

void add_tokens(Curve& curve, const std::string& text) {
  std::int64_t each = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), each);
  check_usage(error == std::errc() && end == text.data() + text.size() && each > 0,
              "{}: tokens_per_step={} is not a positive whole number", curve.source, text);
  check_usage(curve.points.empty() || !curve.points.front().tokens,
              "{}: the file says its tokens itself; leave tokens_per_step out", curve.source);
  for (CurvePoint& p : curve.points) p.tokens = p.step * each;
}

}  // namespace

namespace detail {

void finish_points(Curve& curve) {
  auto& points = curve.points;
  std::stable_sort(points.begin(), points.end(),
                   [](const CurvePoint& a, const CurvePoint& b) { return a.step < b.step; });
  std::vector<CurvePoint> kept;
  for (const CurvePoint& p : points) {
    if (!kept.empty() && kept.back().step == p.step)
      kept.back() = p;
    else
      kept.push_back(p);
  }
  if (kept.size() < points.size())
    curve.notes.push_back(
        fmt::format("{} points of a step that was logged again were left out", points.size() - kept.size()));
  points = std::move(kept);
}

void check_options(const CurveSource& source, const std::vector<std::string>& known, const char* format) {
  for (const auto& entry : source.options) {
    const std::string& key = entry.first;
    check_usage(key == "tokens_per_step" || std::find(known.begin(), known.end(), key) != known.end(),
                "{}: {} has no option \"{}\"; it has {} and tokens_per_step", source.text, format, key,
                fmt::join(known, ", "));
  }
}

}  // namespace detail

CurveSource parse_curve_source(const std::string& text) {
  CurveSource source{.path = text, .options = {}, .text = text};
  const auto hash = text.rfind('#');
  // A file whose name has a # in it is still a file.
  if (hash == std::string::npos || fs::exists(source.path)) return source;
  source.path = text.substr(0, hash);
  std::string_view rest = std::string_view(text).substr(hash + 1);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const auto equals = item.find('=');
    check_usage(equals != std::string_view::npos && equals > 0,
                "{}: \"{}\" after # is not key=value; write for example {}#tag=loss", text, item,
                source.path.string());
    source.options[std::string(item.substr(0, equals))] = item.substr(equals + 1);
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
  }
  return source;
}

Curve read_curve(const std::string& text) {
  const CurveSource source = parse_curve_source(text);
  check(fs::exists(source.path), "{} does not exist; name a run's folder or a log file",
        source.path.string());
  Curve curve = fs::is_directory(source.path) ? read_folder(source) : read_file_of(source);
  detail::finish_points(curve);
  if (const auto it = source.options.find("tokens_per_step"); it != source.options.end())
    add_tokens(curve, it->second);
  check(!curve.points.empty(), "{}: no {} was found in it ({})", text, curve.metric, curve.format);
  return curve;
}

}  // namespace nibble
