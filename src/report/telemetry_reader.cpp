// SPDX-License-Identifier: Apache-2.0
#include "report/telemetry_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string_view>

#include "base/error.h"
#include "report/flat_json.h"
#include "telemetry/statistics.h"

namespace nibble {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Calls take(line, number) for every whole line.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view, std::int64_t)>& take) {
  std::ifstream in(path, std::ios::binary);
  check(in.good(), "cannot read {}; name the folder of a finished run", path.string());
  std::string buffer(std::size_t{1} << 22, '\0');
  std::size_t kept = 0;
  std::int64_t number = 0;
  while (in) {
    if (kept == buffer.size()) buffer.resize(2 * buffer.size());
    in.read(buffer.data() + kept, static_cast<std::streamsize>(buffer.size() - kept));
    const std::string_view text(buffer.data(), kept + static_cast<std::size_t>(in.gcount()));
    std::size_t start = 0;
    for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', start)) {
      take(text.substr(start, end - start), ++number);
      start = end + 1;
    }
    kept = text.size() - start;
    std::copy(text.begin() + static_cast<std::ptrdiff_t>(start), text.end(), buffer.begin());
  }
}

/// The step of a line, or -1: without reading the rest.
std::int64_t step_of(std::string_view line) {
  constexpr std::string_view kKey = "\"step\":";
  const auto at = line.find(kKey);
  std::int64_t step = -1;
  if (at != std::string_view::npos)
    std::from_chars(line.data() + at + kKey.size(), line.data() + line.size(), step);
  return step;
}

/// Which column a measured step belongs to: the first and the last step have their own.
class Columns {
 public:
  Columns(std::vector<std::int64_t> steps, std::size_t columns) : steps_(std::move(steps)) {
    std::sort(steps_.begin(), steps_.end());
    steps_.erase(std::unique(steps_.begin(), steps_.end()), steps_.end());
    count_ = std::min(steps_.size(), std::max<std::size_t>(columns, 3));
  }
  std::size_t of(std::int64_t step) const {
    const auto i =
        static_cast<std::size_t>(std::lower_bound(steps_.begin(), steps_.end(), step) - steps_.begin());
    const std::size_t last = steps_.size() - 1;
    if (i == 0 || count_ == steps_.size()) return i;
    return i == last ? count_ - 1 : 1 + (i - 1) * (count_ - 2) / (last - 1);
  }

 private:
  std::vector<std::int64_t> steps_;
  std::size_t count_ = 0;
};

double larger(double a, double b) { return std::isnan(a) || b > a ? b : a; }
double smaller(double a, double b) { return std::isnan(a) || b < a ? b : a; }
double further(double a, double b) { return std::isnan(a) || std::abs(b) > std::abs(a) ? b : a; }

void merge(QuantEvent& a, const QuantEvent& b) {
  a.step = std::max(a.step, b.step);
  for (const Statistic& s : operand_statistics()) {
    double &ours = a.*s.value, theirs = b.*s.value;
    const bool low_is_bad = s.value == &QuantEvent::sqnr_db || s.value == &QuantEvent::cosine ||
                            s.value == &QuantEvent::scale_inv_min || s.value == &QuantEvent::code_entropy;
    const bool is_signed = s.value == &QuantEvent::amax_drift || s.value == &QuantEvent::bias;
    ours = low_is_bad ? smaller(ours, theirs) : is_signed ? further(ours, theirs) : larger(ours, theirs);
  }
  for (std::size_t i = 0; i < 16; ++i) {
    a.scale_log2[i] += b.scale_log2[i];
    a.codes[i] += b.codes[i];
  }
}

void merge(GemmEvent& a, const GemmEvent& b) {
  a.step = std::max(a.step, b.step);
  a.output_error = larger(a.output_error, b.output_error);
  a.explained = larger(a.explained, b.explained);
}

void merge(WeightEvent& a, const WeightEvent& b) {
  a.step = std::max(a.step, b.step);
  a.update_ratio = larger(a.update_ratio, b.update_ratio);
  a.gradient_zeros = larger(a.gradient_zeros, b.gradient_zeros);
  a.gradient_rms = larger(a.gradient_rms, b.gradient_rms);
  a.oscillation = larger(a.oscillation, b.oscillation);
  a.changed = larger(a.changed, b.changed);
}

void merge(LayerEvent& a, const LayerEvent& b) {
  a.step = std::max(a.step, b.step);
  a.residual_rms = larger(a.residual_rms, b.residual_rms);
  a.residual_amax = larger(a.residual_amax, b.residual_amax);
  a.attention_logit_max = larger(a.attention_logit_max, b.attention_logit_max);
}

QuantEvent quant_from(const FlatJson& j) {
  QuantEvent e{.step = j.integer("step")};
  e.where = {j.text("layer"), static_cast<int>(j.integer("block")), j.text("gemm"), j.text("operand")};
  e.format = j.text("format");
  for (const Statistic& s : operand_statistics()) e.*s.value = j.number_or(s.name, kNone);
  // Logs of before 0.2 call cur_amax amax.
  if (!j.has("cur_amax")) e.amax = j.number_or("amax", kNone);
  e.scale_log2 = j.bins_or_zero(kScaleHistogram);
  e.codes = j.bins_or_zero(kCodeHistogram);
  return e;
}

GemmEvent gemm_from(const FlatJson& j) {
  return {.step = j.integer("step"),
          .where = {j.text("layer"), static_cast<int>(j.integer("block")), j.text("gemm"), ""},
          .output_error = j.number(kOutputError),
          .explained = j.number("explained")};
}

WeightEvent weight_from(const FlatJson& j) {
  return {.step = j.integer("step"),
          .layer = j.text("layer"),
          .block = static_cast<int>(j.integer("block")),
          .update_ratio = j.number("update_ratio"),
          .gradient_zeros = j.number("gradient_zeros"),
          .gradient_rms = j.number("gradient_rms"),
          .oscillation = j.number("oscillation"),
          .changed = j.number("changed")};
}

LayerEvent layer_from(const FlatJson& j) {
  return {.step = j.integer("step"),
          .layer = j.text("layer"),
          .residual_rms = j.number("residual_rms"),
          .residual_amax = j.number("residual_amax"),
          .attention_logit_max = j.number(kLogitMax)};
}

/// The events of one kind, by what they are about and by column.
template <class Event>
class Cells {
 public:
  void add(const std::string& key, std::size_t column, Event event) {
    const auto [it, is_new] = rows_.try_emplace(key, rows_.size());
    if (is_new) cells_.emplace_back();
    std::map<std::size_t, Event>& row = cells_[it->second];
    const auto at = row.find(column);
    if (at == row.end())
      row.emplace(column, std::move(event));
    else
      merge(at->second, event);
  }
  /// By step, then in the order in which they were first met: the order of the log.
  std::vector<Event> take() {
    std::vector<Event> out;
    for (auto& row : cells_)
      for (auto& [column, event] : row) out.push_back(std::move(event));
    std::stable_sort(out.begin(), out.end(), [](const Event& a, const Event& b) { return a.step < b.step; });
    return out;
  }

 private:
  std::map<std::string, std::size_t, std::less<>> rows_;
  std::vector<std::map<std::size_t, Event>> cells_;
};

}  // namespace

RunTelemetry read_telemetry(const std::filesystem::path& path, std::size_t columns) {
  std::vector<std::int64_t> steps;
  for_each_line(path, [&](std::string_view line, std::int64_t) {
    const std::int64_t step = step_of(line);
    if (step >= 0 && (steps.empty() || steps.back() != step)) steps.push_back(step);
  });
  const Columns map(std::move(steps), columns);
  Cells<QuantEvent> quant;
  Cells<GemmEvent> gemms;
  Cells<WeightEvent> weights;
  Cells<LayerEvent> layers;
  FlatJson j;
  std::string key;
  const auto key_of = [&](std::initializer_list<const char*> names) -> const std::string& {
    key.clear();
    for (const char* name : names) key.append(j.raw_text(name)).push_back('|');
    return key;
  };
  for_each_line(path, [&](std::string_view line, std::int64_t number) {
    try {
      j.parse(line);
      const std::string_view type = j.raw_text("type");
      const std::size_t column = j.has("step") ? map.of(j.integer("step")) : 0;
      if (type == "tensor") quant.add(key_of({"layer", "gemm", "operand"}), column, quant_from(j));
      if (type == "gemm") gemms.add(key_of({"layer", "gemm"}), column, gemm_from(j));
      if (type == "weight") weights.add(key_of({"layer"}), column, weight_from(j));
      if (type == "layer") layers.add(key_of({"layer"}), column, layer_from(j));
    } catch (const Error& e) {
      fail("{} line {}: {}; the run can be reported without the file", path.string(), number, e.what());
    }
  });
  return {quant.take(), gemms.take(), weights.take(), layers.take()};
}

}  // namespace nibble
