// SPDX-License-Identifier: Apache-2.0
#include "report/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "report/svg.h"
#include "telemetry/console_sink.h"

namespace nibble {
namespace {

constexpr std::size_t kMostPoints = 1200;  // more than the chart has pixels

std::string tokens_tick(double v) { return v == 0 ? "0" : short_count(v); }
std::string percent_tick(double v) {
  if (std::abs(v) < 1e-12) return "0";
  return fmt::format("{}{:.3g}", v < 0 ? "−" : "+", std::abs(v));
}
std::string loss_tick(double v) { return fmt::format("{:.3g}", v); }

std::string swatch(const std::string& css_colour, const std::string& text, const char* kind = "") {
  const std::string style = std::string(kind) == "box" ? "background" : "border-color";
  return fmt::format("<span><i class='{}' style='{}:var({})'></i>{}</span>", kind, style, css_colour,
                     escaped(text));
}

double total_tokens(const ReportData& d) {
  return static_cast<double>(d.protocol.steps * d.protocol.tokens_per_step);
}

double tokens_of_step(const ReportData& d, std::int64_t step) {
  return static_cast<double>(step * d.protocol.tokens_per_step);
}

void shade_phases(Plot& plot, const ReportData& d) {
  const Protocol& p = d.protocol;
  const double end = total_tokens(d), warm = tokens_of_step(d, p.warmup_steps),
               decay = tokens_of_step(d, p.decay_start);
  if (warm > 0) plot.phase(0, warm, "warm-up", "p-a");
  plot.phase(warm, decay, "stable", "p-b");
  if (decay < end) plot.phase(decay, end, "decay", "p-a");
}

void shade_windows(Plot& plot, const ReportData& d) {
  for (const auto& w : d.protocol.windows) {
    plot.phase(tokens_of_step(d, w.after_step), tokens_of_step(d, w.last_step), "", "p-w");
  }
}

Plot::Frame frame(const char* y_title, Plot::Format y_format, double height) {
  Plot::Frame f;
  f.height = height;
  f.x_title = "trained tokens", f.y_title = y_title;
  f.x_format = tokens_tick, f.y_format = std::move(y_format);
  return f;
}

const char* css_of(const std::string& arm) {
  return arm == "baseline" ? "base" : arm == "candidate" ? "cand" : "aa";
}

const char* colour_of(const std::string& arm) {
  return arm == "baseline" ? "--base" : arm == "candidate" ? "--cand" : "--aa";
}

std::string arm_label(const ArmSeries& a) {
  const std::string recipe = a.header.recipe.empty() ? a.name : a.header.recipe;
  if (a.name == "baseline") return recipe + " (baseline)";
  return a.name == "candidate" ? recipe + " (candidate)" : recipe + " (A/A: other rounding key)";
}

/// Every point of a short series, or the mean of equal buckets of a long one.
std::vector<Point> thinned(const std::vector<Point>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<Point> out;
  const std::size_t bucket = (points.size() + kMostPoints - 1) / kMostPoints;
  for (std::size_t i = 0; i < points.size(); i += bucket) {
    const std::size_t end = std::min(points.size(), i + bucket);
    Point mean;
    for (std::size_t j = i; j < end; ++j) mean.x += points[j].x, mean.y += points[j].y;
    const auto n = static_cast<double>(end - i);
    out.push_back({mean.x / n, mean.y / n});
  }
  return out;
}

/// On a narrow screen a chart keeps its width and scrolls: its words stay readable.
std::string boxed(const std::string& svg) { return "<div class='chart'>" + svg + "</div>"; }

Range padded(double lo, double hi, double share) {
  const double pad = std::max((hi - lo) * share, 1e-9);
  return {lo - pad, hi + pad};
}

/// What the pointer on an evaluation shows.
std::function<std::string(const Point&)> said(const std::string& who, bool is_gap) {
  return [who, is_gap](const Point& p) {
    return fmt::format("{} after {} tokens: ", who, short_count(p.x)) +
           (is_gap ? fmt::format("{:+.3f} %", p.y) : fmt::format("{:.5f}", p.y));
  };
}

std::vector<Point> gap_points(const std::vector<GapPoint>& gaps) {
  std::vector<Point> out;
  for (const auto& g : gaps) out.push_back({static_cast<double>(g.tokens), 100 * g.gap});
  return out;
}

/// Relative difference of two arms' training losses on the same batches, in per cent.
std::vector<Point> training_difference(const ArmSeries& base, const ArmSeries& other) {
  std::map<std::int64_t, double> losses;
  for (const auto& e : base.train) losses[e.step] = e.loss;
  std::vector<Point> out;
  for (const auto& e : other.train) {
    const auto at = losses.find(e.step);
    if (at == losses.end() || !(at->second > 0) || !std::isfinite(e.loss)) continue;
    out.push_back({static_cast<double>(e.tokens), 100 * (e.loss - at->second) / at->second});
  }
  return out;
}

std::vector<Point> smoothed(const std::vector<Point>& points, int half) {
  std::vector<double> y;
  for (const auto& p : points) y.push_back(p.y);
  const auto mean = centred_mean(y, half);
  std::vector<Point> out = points;
  for (std::size_t i = 0; i < out.size(); ++i) out[i].y = mean[i];
  return out;
}

/// The value below which the given share of |y| lies: the scale of a noisy chart without its outliers.
double reach_of(const std::vector<Point>& points, double share) {
  std::vector<double> y;
  for (const auto& p : points) y.push_back(std::abs(p.y));
  if (y.empty()) return 1;
  std::sort(y.begin(), y.end());
  return std::max(y[static_cast<std::size_t>(share * static_cast<double>(y.size() - 1))], 1e-6);
}

}  // namespace

const ArmSeries* find_arm(const ReportData& d, const std::string& name) {
  for (const auto& a : d.arms) {
    if (a.pair == 1 && a.name == name) return &a;
  }
  return nullptr;
}

/// Where the candidate's precision changed.
void mark_switches(Plot& plot, const ReportData& d) {
  const ArmSeries* candidate = find_arm(d, "candidate");
  if (candidate == nullptr) return;
  for (const SwitchEvent& s : candidate->switches)
    plot.mark(tokens_of_step(d, s.step), fmt::format("{}: {}", s.what, s.to), "switch");
}

std::string plot_losses(const ReportData& d) {
  // The first steps fall from ln(vocabulary) and would press everything else against the floor.
  const double first_shown = 0.04 * total_tokens(d);
  double lo = HUGE_VAL, hi = -HUGE_VAL;
  const auto widen = [&](double v) {
    if (std::isfinite(v)) lo = std::min(lo, v), hi = std::max(hi, v);
  };
  for (const auto& a : d.arms) {
    for (const auto& e : a.train) {
      if (a.pair == 1 && static_cast<double>(e.tokens) >= first_shown) widen(e.loss);
    }
    for (const auto& e : a.evals) {
      if (a.pair == 1) widen(e.loss);
    }
  }
  if (d.context.bigram) widen(d.context.bigram->loss);
  if (lo > hi) return "<p class='note'>No losses were logged.</p>";
  Plot plot(frame("loss, nats a token", loss_tick, 330), {0, total_tokens(d)}, padded(lo, hi, 0.04));
  shade_phases(plot, d);
  std::string legend;
  for (const auto& a : d.arms) {
    if (a.pair != 1) continue;
    std::vector<Point> train;
    for (const auto& e : a.train) train.push_back({static_cast<double>(e.tokens), e.loss});
    plot.line(thinned(train), std::string(css_of(a.name)) + " thin");
    legend += swatch(colour_of(a.name), arm_label(a));
  }
  for (const auto& a : d.arms) {
    if (a.pair != 1 || a.evals.empty()) continue;
    std::vector<Point> evals;
    for (const auto& e : a.evals) evals.push_back({static_cast<double>(e.tokens), e.loss});
    plot.line(evals, css_of(a.name));
    plot.dots(evals, 2.8, css_of(a.name), said(a.name == "candidate_aa" ? "A/A" : a.name, false));
    plot.end_label(evals.back().y,
                   fmt::format("{} {:.4f}", a.name == "candidate_aa" ? "A/A" : a.name, evals.back().y),
                   css_of(a.name));
  }
  if (d.context.bigram)
    plot.level(d.context.bigram->loss, fmt::format("bigram {:.3f}", d.context.bigram->loss), "bigram");
  mark_switches(plot, d);
  return boxed(plot.svg("Training and validation loss of every arm against trained tokens")) +
         "<div class='legend'>" + legend +
         "<span>dots: validation on fixed sequences, bf16 forward · faint: training loss</span></div>";
}

std::string plot_gap(const ReportData& d) {
  const ArmSeries *base = find_arm(d, "baseline"), *cand = find_arm(d, "candidate"),
                  *aa = find_arm(d, "candidate_aa");
  if (base == nullptr || cand == nullptr) return "<p class='note'>One of the arms is missing.</p>";
  const Verdict& v = d.verdict;
  const auto gaps = gap_points(paired_gaps(base->evals, cand->evals));
  const auto other = aa == nullptr ? std::vector<Point>{} : gap_points(paired_gaps(base->evals, aa->evals));
  const double sigma = 100 * v.noise_floor, limit = 100 * d.protocol.final_window().limit;
  const double abort =
      100 * std::max(d.protocol.abort.limit, d.protocol.abort.sigma_multiplier * v.noise_floor);
  double lo = -2.2 * sigma, hi = std::max({limit, 2.2 * sigma, std::min(abort, 2 * limit)});
  for (const auto* series : {&gaps, &other}) {
    for (const auto& p : *series) {
      const bool counts = p.x >= tokens_of_step(d, d.protocol.abort.first_step);
      if (counts && std::isfinite(p.y)) lo = std::min(lo, p.y), hi = std::max(hi, p.y);
    }
  }
  Plot plot(frame("gap of validation loss, %", percent_tick, 330), {0, total_tokens(d)},
            padded(lo, hi, 0.06));
  shade_phases(plot, d);
  shade_windows(plot, d);
  plot.band(-2 * sigma, 2 * sigma, "band2");
  plot.band(-sigma, sigma, "band1");
  plot.segment({0, 0}, {total_tokens(d), 0}, "zero");
  // A branch has no abort rule, and a limit only where one was given.
  const bool one_line = std::abs(abort - limit) < 0.02 * limit;
  if (limit > 0)
    plot.level(limit, fmt::format("{} {:.2f} %", one_line ? "limit, abort" : "limit", limit), "limit");
  if (!one_line && d.protocol.abort.limit > 0)
    plot.level(abort, fmt::format("abort {:.2f} %", abort), "abort");
  for (const auto& w : d.protocol.windows) {
    if (&w == &d.protocol.final_window()) continue;
    plot.segment({tokens_of_step(d, w.after_step), 100 * w.limit},
                 {tokens_of_step(d, w.last_step), 100 * w.limit}, "limit");
  }
  if (!other.empty()) plot.line(other, "aa"), plot.dots(other, 2.4, "aa", said("A/A", true));
  plot.line(gaps, "cand"), plot.dots(gaps, 3.2, "cand", said("candidate", true));
  if (!gaps.empty()) plot.end_label(gaps.back().y, fmt::format("candidate {:+.2f} %", gaps.back().y), "cand");
  if (!other.empty()) plot.end_label(other.back().y, fmt::format("A/A {:+.2f} %", other.back().y), "aa");
  mark_switches(plot, d);
  if (v.abort) {
    const bool aborted = v.outcome == Outcome::Aborted;
    plot.mark(static_cast<double>(v.abort->tokens), aborted ? "aborted" : "not finite", "fired");
  }
  return boxed(plot.svg("Relative gap of the candidate's validation loss to the baseline's")) +
         "<div class='legend'>" + swatch("--cand", "candidate - baseline") +
         (other.empty() ? "" : swatch("--aa", "A/A arm - baseline")) +
         swatch("--band1", fmt::format("±σ, ±2σ of one pair (σ = {:.2f} %)", sigma), "box") +
         (limit > 0 ? swatch("--limit", "limit (short line: the stable window's)") : "") +
         swatch("--window", "decision windows", "box") + "</div>";
}

std::string plot_training_difference(const ReportData& d) {
  const ArmSeries *base = find_arm(d, "baseline"), *cand = find_arm(d, "candidate");
  if (base == nullptr || cand == nullptr || cand->train.size() < 2)
    return "<p class='note'>Nothing to pair.</p>";
  const auto raw = training_difference(*base, *cand);
  const int half = std::max<int>(3, static_cast<int>(raw.size() / 100));
  const auto mean = smoothed(raw, half);
  const double reach = 1.15 * std::max(reach_of(raw, 0.98), reach_of(mean, 1.0));
  auto f = frame("training loss, %", percent_tick, 250);
  f.width = 540, f.right = 16, f.x_ticks = 5;
  Plot plot(f, {0, total_tokens(d)}, {-reach, reach});
  shade_phases(plot, d);
  plot.segment({0, 0}, {total_tokens(d), 0}, "zero");
  plot.line(thinned(raw), "cand thin");
  plot.line(thinned(mean), "cand");
  return boxed(plot.svg("Relative difference of the training losses on the same batches")) +
         "<div class='legend'>" +
         swatch("--cand", fmt::format("centred mean of {} steps; faint: every step", 2 * half + 1)) +
         "</div>";
}

std::string plot_aa(const ReportData& d) {
  const ArmSeries *cand = find_arm(d, "candidate"), *aa = find_arm(d, "candidate_aa");
  if (cand == nullptr || aa == nullptr || aa->evals.empty()) {
    return "<p class='note'>No A/A arm was run: the noise is assumed, and an assumed noise is never enough "
           "to pass.</p>";
  }
  const auto gaps = gap_points(paired_gaps(cand->evals, aa->evals));
  const double sigma = 100 * d.verdict.noise_floor;
  const double reach = 1.15 * std::max({reach_of(gaps, 1.0), sigma, 1e-3});
  auto f = frame("A/A gap of validation loss, %", percent_tick, 250);
  f.width = 540, f.right = 76, f.x_ticks = 5;
  Plot plot(f, {0, total_tokens(d)}, {-reach, reach});
  shade_phases(plot, d);
  shade_windows(plot, d);
  plot.band(-sigma, sigma, "band1");
  plot.segment({0, 0}, {total_tokens(d), 0}, "zero");
  plot.end_label(sigma, fmt::format("+σ {:.2f} %", sigma), "cand");
  plot.end_label(-sigma, "-σ", "cand");
  plot.line(gaps, "aa"), plot.dots(gaps, 2.6, "aa", said("A/A", true));
  return boxed(plot.svg("Gap between the candidate and the candidate with another rounding key")) +
         "<div class='legend'>" + swatch("--aa", "same seed and batches, other stochastic-rounding key") +
         "</div>";
}

bool spread_is_noise(const ReportData& d) { return d.verdict.pairs >= d.protocol.noise.spread_from_pairs; }

std::string pair_table(const ReportData& d) {
  const auto& windows = d.verdict.windows;
  if (windows.empty()) return "<p class='note'>No decision window was reached.</p>";
  std::string head = "<tr><th>pair</th>", rows, means = "<tr><td>mean</td>",
              spreads = "<tr><td>σ of one pair</td>";
  for (const auto& w : windows) {
    head += "<th class='n'>" + escaped(w.name) + "</th>";
    means += fmt::format("<td class='n'>{:+.2f} %</td>", 100 * w.gap);
    spreads += fmt::format("<td class='n'>{:.2f} %</td>", 100 * w.sigma);
  }
  for (std::size_t pair = 0; pair < windows.front().pair_gaps.size(); ++pair) {
    rows += fmt::format("<tr><td>{}</td>", pair + 1);
    for (const auto& w : windows)
      rows += fmt::format("<td class='n'>{:+.2f} %</td>", 100 * w.pair_gaps.at(pair));
    rows += "</tr>";
  }
  return "<div class='scroll'><table>" + head + "</tr>" + rows + means + "</tr>" + spreads +
         "</tr></table></div>";
}

std::string plot_windows(const Verdict& v) {
  if (v.windows.empty()) return "";
  double lo = 0, hi = 0;
  for (const auto& w : v.windows) {
    lo = std::min(lo, 100 * w.ci95[0]);
    hi = std::max({hi, 100 * w.ci95[1], 100 * w.limit});
  }
  constexpr double kRow = 34;
  const auto rows = static_cast<double>(v.windows.size());
  Plot::Frame f;
  f.height = 62 + kRow * rows, f.top = 8, f.left = 96, f.bottom = 44, f.right = 132;
  f.x_title = "relative gap, % (positive: the candidate is worse)", f.x_format = percent_tick;
  f.y_ticks = 0;
  Plot plot(f, padded(lo, hi, 0.06), {0, rows});
  plot.segment({0, 0}, {0, rows}, "zero");
  for (std::size_t i = 0; i < v.windows.size(); ++i) {
    const auto& w = v.windows[i];
    const double y = rows - 0.5 - static_cast<double>(i);
    plot.segment({100 * w.ci95[0], y}, {100 * w.ci95[1], y}, "base");
    for (const double end : {w.bounds[0], w.bounds[1]})
      plot.segment({100 * end, y - 0.14}, {100 * end, y + 0.14}, "base");
    plot.segment({100 * w.limit, y - 0.36}, {100 * w.limit, y + 0.36}, "limit");
    plot.dots({{100 * w.gap, y}}, 4.5, "cand");
    plot.row_label(y, w.name);
    plot.end_label(y, name(w.outcome), "ink");
  }
  return boxed(plot.svg("Gap and interval of each decision window beside its limit")) +
         "<div class='legend'><span>dot: mean gap · bar: 95 % interval · ticks on it: the one-sided bounds "
         "the rule uses "
         "· red: limit</span></div>";
}

}  // namespace nibble
