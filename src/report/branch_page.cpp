// SPDX-License-Identifier: Apache-2.0
#include "report/branch_page.h"

#include <cmath>

#include "report/page_style.h"
#include "report/plots.h"
#include "report/report.h"
#include "report/svg.h"

namespace nibble {
namespace {

/// An arm's log with steps and tokens counted from the checkpoint, as the charts of a comparison take them.
ArmSeries series_of(const Branch& b, const RunLog& log, const char* name, const std::string& label) {
  ArmSeries arm{.header = log.header, .name = name};
  arm.header.recipe = label;
  arm.train = log.train;
  for (TrainEvent& e : arm.train) {
    e.step -= b.from;
    e.tokens = e.step * b.tokens_per_step;
  }
  // An arm that outlived a branch that broke has no partner there.
  const std::int64_t last = b.rows.empty() ? b.from : b.rows.back().step;
  for (const EvalEvent& e : log.evaluations)
    if (e.step > b.from && e.step <= last)
      arm.evals.push_back({e.step - b.from, (e.step - b.from) * b.tokens_per_step, e.loss});
  return arm;
}

/// The branch as a comparison that began at the checkpoint: no warm-up, no abort rule, one window.
ReportData as_comparison(const Branch& b) {
  ReportData d;
  Protocol& p = d.protocol;
  p.steps = b.until - b.from, p.tokens_per_step = b.tokens_per_step, p.parameters = b.parameters;
  p.decay_start = std::min(std::max(b.branch_log.header.decay_start - b.from, std::int64_t{0}), p.steps);
  p.windows = {{"branch", p.steps / 2, p.steps, b.limit.value_or(0)}};
  p.abort.first_step = 0;
  d.verdict.noise_floor = b.noise.sigma;
  d.arms.push_back(series_of(b, b.branch_log, "baseline", b.label));
  d.arms.push_back(series_of(b, b.candidate_log, "candidate", b.recipe));
  if (!b.aa_log.evaluations.empty()) d.arms.push_back(series_of(b, b.aa_log, "candidate_aa", b.recipe));
  return d;
}

std::string section(const std::string& title, const std::string& intro, const std::string& body) {
  return fmt::format("<section><h2>{}</h2>{}{}</section>\n", escaped(title),
                     intro.empty() ? "" : "<p class='note'>" + escaped(intro) + "</p>", body);
}

std::string figure(const std::string& value, const std::string& what) {
  return fmt::format("<div><b>{}</b><span>{}</span></div>", value, escaped(what));
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:+.3f} %", 100 * share) : std::string("not finite");
}

std::string box(const Branch& b) {
  const char* css = !b.broken.empty() || (b.limit && b.outcome == Outcome::Fail) ? "fail"
                    : b.inside_noise()                                           ? "pass"
                                                                                 : "inconclusive";
  const char* word = !b.broken.empty() ? "NOT FINITE" : b.inside_noise() ? "INSIDE THE NOISE" : "GAP";
  std::string sentences;
  for (const std::string& s : branch_sentences(b)) sentences += "<p class='reason'>" + escaped(s) + "</p>";
  std::string figures = figure(percent(b.gap), "gap, mean over the second half");
  figures += figure(fmt::format("{} to {}", percent(b.ci95[0]), percent(b.ci95[1])), "95 % interval");
  figures += figure(fmt::format("{:.3f} %", 100 * b.noise.sigma), "noise of the pair, σ");
  if (b.limit) figures += figure(fmt::format("{:.2f} %", 100 * *b.limit), "limit");
  return fmt::format(
      "<div class='verdict {}'><span class='word'>{}</span><div class='figures'>{}</div>{}</div>", css, word,
      figures, sentences);
}

std::string table(const Branch& b) {
  std::string rows;
  for (const BranchRow& r : b.rows) {
    const std::string aa = r.aa ? percent((*r.aa - r.candidate) / r.candidate) : "";
    rows += fmt::format(
        "<tr><td class='n'>{}</td><td class='n'>{}</td><td class='n'>{:.5f}</td><td class='n'>{:.5f}</td>"
        "<td class='n'>{}</td><td class='n'>{}</td></tr>",
        r.step, short_count(static_cast<double>(r.tokens)), r.branch, r.candidate,
        r.step == b.from ? "same" : percent(r.gap), r.step == b.from ? "" : aa);
  }
  return fmt::format(
      "<div class='scroll'><table><tr><th class='n'>step</th><th class='n'>tokens since</th><th "
      "class='n'>{}</th>"
      "<th class='n'>{}</th><th class='n'>gap</th><th class='n'>A/A gap</th></tr>{}</table></div>",
      escaped(b.label), escaped(b.recipe), rows);
}

std::string cost_table(const Branch& b) {
  std::string rows;
  for (const BranchCost& c : b.costs)
    rows += fmt::format(
        "<tr><td>{}</td><td>{}</td><td class='n'>{}</td><td class='n'>{:.2f} %</td><td "
        "class='n'>{}</td></tr>",
        escaped(c.arm), escaped(c.label), short_count(static_cast<double>(c.tokens)),
        100 * static_cast<double>(c.tokens) / static_cast<double>(b.run_steps * b.tokens_per_step),
        short_duration(c.seconds));
  return "<div class='scroll'><table><tr><th>arm</th><th>computes in</th><th class='n'>tokens</th>"
         "<th class='n'>of the run</th><th class='n'>time of its steps</th></tr>" +
         rows + "</table></div>";
}

}  // namespace

std::string branch_html(const Branch& b) {
  const ReportData d = as_comparison(b);
  std::string body = fmt::format(
      "<h1>Health check at step {}</h1><p class='sub'>{} against {} from {} · {} parameters · {} steps × {} "
      "tokens "
      "= {:.2f} % of the run</p>{}",
      b.from, escaped(b.recipe), escaped(b.label), escaped(b.checkpoint),
      short_count(static_cast<double>(b.parameters)), b.until - b.from, b.tokens_per_step,
      100 * static_cast<double>(b.until - b.from) / static_cast<double>(b.run_steps), box(b));
  body +=
      section("Gap to the branch",
              "Relative gap of the validation loss at every evaluation, with the noise of the pair around "
              "zero. Tokens are counted from the checkpoint.",
              plot_gap(d));
  body += section("Loss curves", "Both arms on the same batches, from the same weights and optimizer state.",
                  plot_losses(d));
  body +=
      "<section><div class='pair'><div><h2>Paired training loss</h2><p class='note'>Same batches, so the "
      "data's noise cancels.</p>" +
      plot_training_difference(d) +
      "</div><div><h2>A/A gap</h2><p class='note'>The candidate against itself under another rounding "
      "key.</p>" +
      (b.aa_log.evaluations.empty() ? "<p class='note'>No A/A arm was run (--aa).</p>" : plot_aa(d)) +
      "</div></div></section>\n";
  body += section("Evaluations", "", table(b)) + section("What it cost", "", cost_table(b));
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
      "content='width=device-width, initial-scale=1'><title>Health check at step "
      "{}</title>\n<style>{}</style>"
      "</head>\n<body><main>{}<footer>Written by nibble {}. This page stands alone: it loads "
      "nothing.</footer>"
      "</main></body></html>\n",
      b.from, kPageStyle, body, escaped(b.branch_log.header.version));
}

}  // namespace nibble
