// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "plan/throughput_table.h"

namespace nibble {
namespace {

std::string percent(double x) { return fmt::format("{:+.1f} %", 100 * x); }

std::string row_lines(const TableErrors& errors) {
  std::string out = fmt::format("  {:<9}{:<22}{:<7}{:>5} {:<6}{:>10}{:>11}{:>9}\n", "release", "model",
                                "system", "GPUs", "kind", "published", "predicted", "error");
  for (const RowError& e : errors.rows) {
    out += fmt::format("  {:<9}{:<22}{:<7}{:>5} {:<6}{:>10.0f}{:>11.0f}{:>9}\n", e.row->release, e.row->model,
                       e.row->system, e.row->layout.gpus, e.row->precision, e.row->tokens_per_gpu_s,
                       e.predicted, percent(e.error));
  }
  return out;
}

std::string ratio_lines(const TableErrors& errors) {
  std::string out;
  for (const RatioError& r : errors.ratios) {
    out += fmt::format("  {:<9}{:<22}{:<7}{:>6}/{:<6} published {:.2f}, predicted {:.2f}  {:>8}\n",
                       r.fast->release, r.fast->model, r.fast->system, r.fast->precision, r.slow->precision,
                       r.published, r.predicted, percent(r.error));
  }
  return out;
}

std::string summary(const char* what, const TableErrors& e) {
  return fmt::format(
      "{:<58} {:>3} rows: median |error| {:4.1f} %, worst {:5.1f} %; {:>3} ratios: median {:4.1f} %, worst "
      "{:5.1f} %\n",
      what, e.rows.size(), 100 * e.median_rows, 100 * e.worst_rows, e.ratios.size(), 100 * e.median_ratios,
      100 * e.worst_ratios);
}

std::string fractions(const std::vector<Hardware>& fitted) {
  std::string out;
  for (const Hardware& h : fitted) {
    if (h.name != "h100" && h.name != "b200" && h.name != "gb200" && h.name != "gb300") continue;
    out += fmt::format("  {:<7}", h.name);
    for (const Rate r : kRates)
      if (h.native(r)) out += fmt::format(" {} {:.3f}", name(r), h.rate(r).achieved);
    out += "\n";
  }
  return out;
}

std::string sparse_summary(const std::vector<ThroughputRow>& rows, const std::vector<Hardware>& hardware) {
  std::map<std::string, std::vector<ThroughputRow>> models;
  int unknown = 0;
  for (const ThroughputRow& row : rows) {
    if (row.dense) continue;
    if (row.plan_model.empty())
      ++unknown;
    else
      models[row.plan_model].push_back(row);
  }
  std::string out = "mixtures of experts and hybrids, from published totals, nothing fitted to them:\n";
  for (const auto& [name, list] : models) out += summary(("  " + name).c_str(), table_errors(list, hardware));
  out += fmt::format("  {} rows of models without a description are left out\n", unknown);
  return out;
}

}  // namespace

std::string calibration_text(const std::filesystem::path& path) {
  const std::vector<ThroughputRow> rows = read_throughput_table(path);
  const std::vector<ThroughputRow> a = dense_half(rows, 0), b = dense_half(rows, 1);
  const std::vector<Hardware> fitted = fit_achieved(a, hardware_table());
  const TableErrors held_out = table_errors(b, fitted);
  std::string out =
      "achieved shares of the dense peaks, fitted to one half of the dense rows:\n" + fractions(fitted);
  out += "\nthe other half, row by row:\n" + row_lines(held_out) + "\nratios between precisions in it:\n" +
         ratio_lines(held_out) + "\n";
  out += summary("dense, fitted on every second row: that half", table_errors(a, fitted));
  out += summary("dense, fitted on every second row: THE OTHER HALF", held_out);
  const std::vector<Hardware> mirrored = fit_achieved(b, hardware_table());
  out += summary("dense, halves exchanged", table_errors(a, mirrored));
  const std::vector<ThroughputRow> late = dense_releases(rows, true), early = dense_releases(rows, false);
  out += summary("dense, fitted up to 26.02.01: the later releases",
                 table_errors(late, fit_achieved(early, hardware_table())));
  for (const char* model : {"llama-3.1-8b", "llama-3-70b", "llama-3.1-405b"}) {
    const std::vector<ThroughputRow> unseen = dense_model(rows, model, false);
    out += summary(fmt::format("dense, fitted without any row of {}: it", model).c_str(),
                   table_errors(unseen, fit_achieved(dense_model(rows, model, true), hardware_table())));
  }
  out += summary("dense, the hardware table as it is: all rows",
                 table_errors(dense_rows(rows), hardware_table()));
  const std::filesystem::path other = path.parent_path() / "other_throughput.csv";
  if (std::filesystem::exists(other)) {
    const std::vector<ThroughputRow> more = read_throughput_table(other);
    const TableErrors errors = table_errors(more, fitted);
    out +=
        "\nfigures of other sources (BF16 of Blackwell is fitted to the tutorial, FP4 of B200 and B300 to "
        "MLPerf; batch sizes of the tutorial are assumed):\n" +
        row_lines(errors) + summary("  together", errors);
  }
  return out + "\n" + sparse_summary(rows, fitted);
}

}  // namespace nibble
