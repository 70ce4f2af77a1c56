// SPDX-License-Identifier: Apache-2.0
#include "plan/throughput_table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>

#include "base/error.h"
#include "io/file.h"
#include "plan/recipes.h"

namespace nibble {
namespace {

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells;
  std::stringstream stream(line);
  std::string cell;
  while (std::getline(stream, cell, ',')) cells.push_back(cell);
  return cells;
}

/// "37556 (36108)": the first or the second figure; the first where there is one.
std::string pick(const std::string& cell, bool second) {
  const auto open = cell.find(" (");
  if (open == std::string::npos) return cell;
  return second ? cell.substr(open + 2, cell.find(')') - open - 2) : cell.substr(0, open);
}

/// "n/a" and nothing are 1, and so is 0, which the table writes for "off".
std::int64_t size_cell(const std::string& cell) {
  return std::max(1L, std::strtol(cell.c_str(), nullptr, 10));
}

struct Known {
  const char *label, *name;
  bool dense;
};
constexpr Known kKnown[] = {
    {"LLAMA3_8B", "llama-3.1-8b", true},
    {"LLAMA3_70B", "llama-3-70b", true},
    {"LLAMA3.1_405B", "llama-3.1-405b", true},
    {"DeepSeekV3", "deepseek-v3", false},
    {"GPT OSS 120B", "gpt-oss-120b", false},
    {"Qwen3_30B_a3B", "qwen3-30b-a3b", false},
    {"Qwen3_235B_a22B", "qwen3-235b-a22b", false},
    {"Kimi_K2", "kimi-k2", false},
    {"Nemotron_3_Nano", "nemotron-3-nano", false},
    {"Nemotron_3_Super", "nemotron-3-super", false},
    {"Nemotron_3_Ultra", "nemotron-3-ultra", false},
};

void describe(ThroughputRow& row) {
  for (const Known& k : kKnown) {
    // "DeepSeekV3 (w/o MTP)" is the same model trained differently.
    if (row.model != k.label && !row.model.starts_with(std::string(k.label) + " (")) continue;
    row.plan_model = k.name;
    row.dense = k.dense;
  }
}

std::string precision_of(const std::string& cell, bool second, const std::string& model) {
  std::string p = pick(cell, second);
  if (p.empty()) p = second ? "FP8-MX" : model.starts_with("LLAMA") ? "FP8-CS" : "BF16";
  return p == "FP8-CS" ? "FP8" : p == "FP8-MX" ? "MXFP8" : p;
}

ThroughputRow make_row(const std::vector<std::string>& c, bool second) {
  ThroughputRow row{.release = c[0], .model = c[2]};
  row.system = c[3].substr(c[3].find('-') + 1);
  std::transform(row.system.begin(), row.system.end(), row.system.begin(), ::tolower);
  row.precision = precision_of(c[5], second, c[2]);
  const auto cell = [&](int i) { return size_cell(pick(c[i], second)); };
  row.layout = {
      .gpus = cell(4), .tp = cell(10), .pp = cell(11), .cp = cell(12), .vp = cell(13), .ep = cell(14)};
  row.layout.fsdp = cell(9) > 1;
  row.layout.global_batch = cell(6);
  row.layout.micro_batch = cell(7);
  row.layout.sequence = cell(8);
  row.tokens_per_gpu_s = std::strtod(pick(c[15], second).c_str(), nullptr);
  row.tflops = std::strtod(pick(c[16], second).c_str(), nullptr);
  describe(row);
  return row;
}

/// The table's recipes, not the trainer's: its FP8 keeps the first and last block in BF16, its MXFP8 none;
/// which blocks its NVFP4 keeps is not published, and none is assumed.
const Recipe& table_recipe(const std::string& precision) {
  const std::pair<const char*, const char*> recipes[] = {
      {"BF16", "bf16"}, {"FP8", "fp8"}, {"MXFP8", "mxfp8"}, {"NVFP4", "nvfp4-all"}};
  for (const auto& [of_table, recipe] : recipes)
    if (precision == of_table) return find_plan_recipe(recipe);
  fail("the throughput table has a precision \"{}\" that has no recipe", precision);
}

Rate rate_of_precision(const std::string& p) {
  return p == "FP8" ? Rate::Fp8 : p == "MXFP8" ? Rate::Mxfp8 : p == "NVFP4" ? Rate::Fp4 : Rate::Bf16;
}

Workload workload_of(const ThroughputRow& row) {
  Workload work =
      make_workload(find_plan_model(row.plan_model), table_recipe(row.precision), row.layout.sequence);
  check_layout(work, row.layout);
  return work;
}

const Hardware& of_system(const std::vector<Hardware>& all, const std::string& system) {
  const auto it = std::find_if(all.begin(), all.end(), [&](const Hardware& h) { return h.name == system; });
  check(it != all.end(), "the throughput table has a system \"{}\" that the hardware table lacks", system);
  return *it;
}

/// Least sum of |log(predicted / published)| over `achieved` in [0.1, 1], by golden section. Workloads do not
/// depend on the share, so they are made once.
double best_fraction(const std::vector<const ThroughputRow*>& rows, Hardware hardware, Rate rate,
                     const StepConstants& constants) {
  std::vector<Workload> works;
  for (const ThroughputRow* row : rows) works.push_back(workload_of(*row));
  const auto cost = [&](double fraction) {
    hardware.rate(rate).achieved = fraction;
    double sum = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const StepTime t = step_time(works[i], rows[i]->layout, hardware, constants);
      sum += std::abs(std::log(t.tokens_per_gpu_s / rows[i]->tokens_per_gpu_s));
    }
    return sum;
  };
  double lo = 0.1, hi = 1;
  const double g = (std::sqrt(5.0) - 1) / 2;
  for (int i = 0; i < 24; ++i) {
    const double a = hi - g * (hi - lo), b = lo + g * (hi - lo);
    if (cost(a) < cost(b))
      hi = b;
    else
      lo = a;
  }
  return (lo + hi) / 2;
}

using PairKey = std::string;
PairKey pair_key(const ThroughputRow& r) {
  return r.release + "/" + r.model + "/" + r.system + "/" + std::to_string(r.layout.gpus);
}

void add_ratios(TableErrors& errors) {
  std::map<PairKey, std::vector<const RowError*>> groups;
  for (const RowError& e : errors.rows) groups[pair_key(*e.row)].push_back(&e);
  for (const auto& [key, group] : groups) {
    for (const RowError* a : group) {
      for (const RowError* b : group) {
        if (a->row->precision == b->row->precision || a->row->tokens_per_gpu_s < b->row->tokens_per_gpu_s)
          continue;
        RatioError r{a->row, b->row, a->row->tokens_per_gpu_s / b->row->tokens_per_gpu_s,
                     a->predicted / b->predicted};
        r.error = r.predicted / r.published - 1;
        errors.ratios.push_back(r);
      }
    }
  }
}

template <class E>
void summarise(const std::vector<E>& list, double& median, double& worst) {
  std::vector<double> errors;
  for (const E& e : list) {
    errors.push_back(e.error);
    worst = std::max(worst, std::abs(e.error));
  }
  median = median_absolute(errors);
}

}  // namespace

std::vector<ThroughputRow> read_throughput_table(const std::filesystem::path& path) {
  std::stringstream text(read_file(path));
  std::vector<ThroughputRow> rows;
  std::string line;
  std::getline(text, line);
  check(line.starts_with("rel,task,Model,System"), "{}: the first line is not the table's header",
        path.string());
  while (std::getline(text, line)) {
    const std::vector<std::string> c = split(line);
    check(c.size() == 17, "{}: a row has {} cells, not 17: {}", path.string(), c.size(), line);
    if (c[1] != "Pre-Training Performance") continue;
    rows.push_back(make_row(c, false));
    if (c[15].find(" (") != std::string::npos) rows.push_back(make_row(c, true));
  }
  return rows;
}

double predict(const ThroughputRow& row, const Hardware& hardware, const StepConstants& constants) {
  return step_time(workload_of(row), row.layout, hardware, constants).tokens_per_gpu_s;
}

std::vector<Hardware> fit_achieved(const std::vector<ThroughputRow>& rows, std::vector<Hardware> hardware,
                                   const StepConstants& constants) {
  for (Hardware& h : hardware) {
    for (const Rate r : {Rate::Fp8, Rate::Mxfp8, Rate::Fp4}) {
      std::vector<const ThroughputRow*> mine;
      for (const ThroughputRow& row : rows)
        if (row.dense && row.system == h.name && rate_of_precision(row.precision) == r) mine.push_back(&row);
      if (!mine.empty()) h.rate(r).achieved = best_fraction(mine, h, r, constants);
    }
  }
  return hardware;
}

TableErrors table_errors(const std::vector<ThroughputRow>& rows, const std::vector<Hardware>& hardware,
                         const StepConstants& constants) {
  TableErrors errors;
  for (const ThroughputRow& row : rows) {
    if (row.plan_model.empty()) continue;
    const double tokens = predict(row, of_system(hardware, row.system), constants);
    errors.rows.push_back({&row, tokens, tokens / row.tokens_per_gpu_s - 1});
  }
  add_ratios(errors);
  summarise(errors.rows, errors.median_rows, errors.worst_rows);
  summarise(errors.ratios, errors.median_ratios, errors.worst_ratios);
  return errors;
}

std::vector<ThroughputRow> dense_rows(const std::vector<ThroughputRow>& rows) {
  std::vector<ThroughputRow> out;
  for (const ThroughputRow& row : rows)
    if (row.dense) out.push_back(row);
  return out;
}

std::vector<ThroughputRow> dense_half(const std::vector<ThroughputRow>& rows, int which) {
  std::vector<ThroughputRow> out;
  int i = 0;
  for (const ThroughputRow& row : rows)
    if (row.dense && i++ % 2 == which) out.push_back(row);
  return out;
}

std::vector<ThroughputRow> dense_releases(const std::vector<ThroughputRow>& rows, bool late) {
  std::vector<ThroughputRow> out;
  for (const ThroughputRow& row : rows)
    if (row.dense && (row.release > "26.02.01") == late) out.push_back(row);
  return out;
}

std::vector<ThroughputRow> dense_model(const std::vector<ThroughputRow>& rows, const std::string& plan_model,
                                       bool others) {
  std::vector<ThroughputRow> out;
  for (const ThroughputRow& row : rows)
    if (row.dense && (row.plan_model != plan_model) == others) out.push_back(row);
  return out;
}

double median_absolute(std::vector<double> values) {
  if (values.empty()) return 0;
  for (double& v : values) v = std::abs(v);
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace nibble
