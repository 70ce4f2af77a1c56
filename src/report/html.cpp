// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/integrity.h"
#include "report/page_style.h"
#include "report/plots.h"
#include "report/report.h"
#include "report/svg.h"
#include "report/task_table.h"
#include "telemetry/alarms.h"
#include "telemetry/console_sink.h"

namespace nibble {
namespace {

std::string percent(double share, int digits = 2) {
  return std::isfinite(share) ? fmt::format("{:+.{}f} %", 100 * share, digits) : std::string("not finite");
}

std::string upper(std::string text) {
  for (auto& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string figure(const std::string& value, const std::string& what) {
  return fmt::format("<div><b>{}</b><span>{}</span></div>", value, escaped(what));
}

/// Text whose figures do not lose their unit to the next line.
std::string prose(const std::string& text) {
  std::string out = escaped(text);
  for (auto at = out.find(" %"); at != std::string::npos; at = out.find(" %", at))
    out.replace(at, 2, "&nbsp;%");
  return out;
}

std::string row(const std::string& term, const std::string& html) {
  return html.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>", escaped(term), html);
}

std::string section(const std::string& title, const std::string& intro, const std::string& body) {
  return fmt::format("<section><h2>{}</h2>{}{}</section>\n", escaped(title),
                     intro.empty() ? "" : "<p class='note'>" + intro + "</p>", body);
}

const char* gap_title(const Verdict& v) {
  // Only a verdict whose windows were judged has a gap of its final window.
  if (v.outcome == Outcome::Aborted) return "gap when aborted";
  return v.windows.empty() ? "last gap before it broke" : "relative gap, final window";
}

std::string figures(const Verdict& v) {
  std::string out = figure(std::isfinite(v.relative_gap) ? percent(v.relative_gap) : "unknown", gap_title(v));
  if (!v.identical && std::isfinite(v.gap_ci95[0]) && std::isfinite(v.relative_gap)) {
    out += figure(fmt::format("{:+.2f} to {:+.2f} %", 100 * v.gap_ci95[0], 100 * v.gap_ci95[1]),
                  "95 % interval");
  }
  out += figure(fmt::format("{:.2f} %", 100 * v.limit), "limit");
  out += figure(fmt::format("{:.2f} %", 100 * v.noise_floor), "noise of one pair, σ");
  if (v.two_arm_gap) out += figure(percent(*v.two_arm_gap), "mean of both candidate arms");
  if (v.extra_tokens)
    out += figure(fmt::format("{:+.1f} %", 100 * *v.extra_tokens), "tokens for the same loss");
  return "<div class='figures'>" + out + "</div>";
}

/// Whether the two candidates stand above the baseline, in plain words.
std::string noise_sentence(const Verdict& v) {
  if (v.identical || v.windows.empty() || v.abort) return "";
  if (v.inside_noise) {
    return "The gap is inside the noise: this run cannot tell the candidate from the baseline, and a true "
           "gap of zero "
           "cannot be excluded.";
  }
  return fmt::format("The gap is outside the noise: the candidate is {} than the baseline.",
                     v.relative_gap > 0 ? "worse" : "better");
}

std::string alarm_list(const Verdict& v) {
  std::string out;
  constexpr std::size_t kMost = 4;  // the page opens with the verdict, not with a log
  std::vector<AlarmGroup> alarms = grouped(v.alarms);
  std::stable_sort(alarms.begin(), alarms.end(),
                   [](auto& a, auto& b) { return a.first.severity > b.first.severity; });
  for (std::size_t i = 0; i < std::min(kMost, alarms.size()); ++i) {
    const AlarmGroup& a = alarms[i];
    out += fmt::format("<div class='alarm {0}'><b>{0}</b> · {1}{2} · {3}</div>", name(a.first.severity),
                       a.arms.empty() ? "" : escaped(fmt::format("{}", fmt::join(a.arms, ", "))) + " · ",
                       a.when(), escaped(a.first.text));
  }
  if (alarms.size() > kMost)
    out += fmt::format("<p class='note'>and {} more in metrics.jsonl</p>", alarms.size() - kMost);
  return out;
}

std::string verdict_box(const ReportData& d) {
  const Verdict& v = d.verdict;
  std::string meta =
      row("Claim", prose(v.claim)) + row("Rule", prose(v.rule)) + row("Noise", prose(v.noise_source)) +
      row("Stored noise", prose(d.context.unused_floor)) +
      row("Pairs", fmt::format("{}{}", v.pairs, v.candidate_aa ? ", and one A/A arm" : "")) +
      row("Would decide", prose(v.more_data)) +
      row("Protocol",
          fmt::format("<code>{}</code> {}", escaped(v.protocol_hash),
                      v.preregistered ? "frozen before the first step, carried by every arm"
                                      : "<b>not the one the arms carry: not pre-registered</b>")) +
      row("Command", "<code>" + escaped(d.context.command) + "</code>");
  return fmt::format(
      "<div class='verdict {0}'><span class='word'>{1}</span><span class='label'>{2}</span><p "
      "class='reason'>{3}</p>"
      "<p class='reason note'>{4}</p>{5}{6}<dl class='meta'>{7}</dl></div>{8}",
      name(v.outcome), upper(name(v.outcome)), escaped(v.label), prose(v.reason), noise_sentence(v),
      figures(v), plot_windows(v), meta, alarm_list(v));
}

std::string header(const ReportData& d) {
  const Protocol& p = d.protocol;
  const ArmSeries* cand = find_arm(d, "candidate");
  std::string how;
  if (cand != nullptr) {
    const HeaderEvent& h = cand->header;
    how = " · " + escaped(h.backend) + " backend";
    if (!h.products.empty())
      how += ", " + escaped(h.products);
    else if (h.emulated)  // logs of before products were counted
      how += ", quantised GEMMs emulated exactly";
    if (h.emulated) how += ", sums " + escaped(h.accumulate);
  }
  const std::string banner = change_banner(d);
  return (banner.empty() ? "" : "<div class='alarm fault'><b>" + escaped(banner) + "</b></div>") +
         fmt::format(
             "<h1>{}</h1><p class='sub'>{} against {} · {} · {} parameters · {} steps × {} tokens = {} "
             "tokens{}</p>",
             escaped(d.context.title.empty() ? p.name : d.context.title), escaped(d.verdict.candidate.recipe),
             escaped(d.verdict.baseline.recipe), escaped(p.model),
             short_count(static_cast<double>(p.parameters)), p.steps, p.tokens_per_step,
             short_count(static_cast<double>(p.steps * p.tokens_per_step)), how);
}

std::string bigram_note(const ReportData& d) {
  if (!d.context.bigram) return "";
  const auto& b = *d.context.bigram;
  const double loss = d.verdict.baseline.loss;
  const bool learned = loss <= b.loss;
  return fmt::format(
      " The baseline ends at {:.4f}, {} an interpolated bigram model of the same tokens ({:.4f}; {}): {}.",
      loss, learned ? "at or below" : "above", b.loss, escaped(b.text),
      learned ? "it has learned more than which token follows which"
              : "<b>it has learned too little for the gap to mean much; train longer</b>");
}

/// The two operands of a GEMM, one under the other.
std::string operands(const std::string& text) {
  std::string out = escaped(text);
  if (const auto bar = out.find(" | "); bar != std::string::npos) out.replace(bar, 3, "<br/>");
  return out;
}

std::string plan_section(const ReportData& d) {
  if (d.context.plan.empty()) return "";
  std::string rows;
  std::int64_t total = 0, high = 0;
  int high_count = 0;
  for (const auto& r : d.context.plan) {
    total += r.parameters;
    if (!r.quantised) high += r.parameters, ++high_count;
    rows += fmt::format(
        "<tr><td class='mono'>{}</td><td class='n'>{}</td><td class='n'>{}</td><td><span class='tag "
        "{}'>{}</span></td>"
        "<td>{}</td><td>{}</td><td>{}</td></tr>",
        escaped(r.layer), escaped(r.shape), short_count(static_cast<double>(r.parameters)),
        r.quantised ? "four" : "", r.quantised ? "4 bit" : "high", operands(r.fprop), operands(r.dgrad),
        operands(r.wgrad));
  }
  std::string intro = fmt::format(
      "What each linear layer of the candidate does in each GEMM, first operand above the second. {} of {} "
      "linears "
      "({:.0f} % of "
      "their parameters, {:.0f} % of their FLOPs) stay in high precision; embeddings, head, norms, softmax, "
      "scan and "
      "convolution are never quantised.",
      high_count, d.context.plan.size(),
      total > 0 ? 100.0 * static_cast<double>(high) / static_cast<double>(total) : 0,
      100 * d.context.bf16_share_flops);
  for (const ArmSeries& arm : d.arms) {
    if (arm.name != "candidate" || arm.pair != 1) continue;
    if (!arm.switches.empty()) intro += " This is the plan of the first step.";
    for (const SwitchEvent& e : arm.switches)
      intro += fmt::format(" From step {} on {} GEMMs ran as in {} instead of {}.", e.step, escaped(e.what),
                           escaped(e.to), escaped(e.from));
  }
  const std::string table =
      "<div class='scroll'><table><tr><th>layer</th><th class='n'>shape</th><th class='n'>parameters</th>"
      "<th>precision</th><th>forward</th><th>data gradient</th><th>weight gradient</th></tr>" +
      rows + "</table></div>";
  const bool is_long = d.context.plan.size() > 40;
  return section("Precision plan", intro,
                 is_long ? "<details><summary>Show all layers</summary>" + table + "</details>" : table);
}

std::string arms_section(const ReportData& d) {
  std::string rows;
  const auto speeds = speed_rows(d.arms);
  for (std::size_t i = 0; i < d.arms.size(); ++i) {
    const auto& a = d.arms[i];
    const EvalPoint last = a.evals.empty() ? EvalPoint{} : a.evals.back();
    const double base_ms = speeds.empty() ? 0 : speeds[0].step_ms;
    rows += fmt::format(
        "<tr><td>{}</td><td class='n'>{}</td><td>{}</td><td class='n'>{}</td><td class='n'>{}</td><td "
        "class='n'>{}</td>"
        "<td class='n'>{:.5f}</td><td class='n'>{:.0f}</td><td class='n'>{}</td><td class='n'>{}</td></tr>",
        escaped(a.name), a.pair, escaped(a.header.recipe), a.header.seed, a.header.sr_seed, last.step,
        last.loss, speeds[i].step_ms, short_count(speeds[i].tokens_per_s),
        base_ms > 0 ? fmt::format("{:.2f}×", speeds[i].step_ms / base_ms) : "");
  }
  return section(
      "Arms and speed",
      "Median step time without the first ten steps, optimizer and clipping included, on this machine.",
      "<div class='scroll'><table><tr><th>arm</th><th class='n'>pair</th><th>recipe</th><th "
      "class='n'>seed</th>"
      "<th class='n'>rounding seed</th><th class='n'>last step</th><th class='n'>validation loss</th>"
      "<th class='n'>ms a step</th><th class='n'>tokens/s</th><th class='n'>of the baseline</th></tr>" +
          rows + "</table></div>");
}

std::string environment_section(const ReportData& d) {
  std::string rows;
  for (const auto& [key, value] : d.context.environment) rows += row(key, escaped(value));
  for (const auto& [key, value] : d.protocol.contract)
    rows += row(key, "<code>" + escaped(value) + "</code>");
  return rows.empty()
             ? ""
             : section("Environment and contract", "Equal in every arm, or the comparison is refused.",
                       "<dl class='meta'>" + rows + "</dl>");
}

const char* kHowToRead =
    "<li>The gap is (candidate - baseline) / baseline of the validation loss: positive means that the "
    "candidate is "
    "worse. NVIDIA's plots carry the opposite sign.</li>"
    "<li>All arms start from the same bytes, read the same batches and are evaluated in the same bf16 "
    "forward on the same "
    "sequences, so the gap is what training in the candidate's precision did to the weights.</li>"
    "<li>Evaluations of one run move together, so averaging more of them hardly narrows the interval; more "
    "pairs do.</li>"
    "<li>Flushed: non-zero values that decode to zero. SQNR: signal to quantisation noise of the operand as "
    "it enters the "
    "GEMM (a Gaussian has about 20 dB to nearest, 17 dB stochastic). Drift: amax against its recent mean; a "
    "steady rise is "
    "what ends runs.</li>";

const char* noise_text(const ReportData& d) {
  if (spread_is_noise(d)) {
    return "The noise is the spread of the pairs: each has its own seed, and its two arms share start and "
           "batches, so what differs between the pairs' gaps is what another seed would change.";
  }
  if (!d.verdict.candidate_aa) {
    return "The noise is assumed. An A/A arm, the candidate again with another stochastic-rounding key, "
           "would "
           "measure it.";
  }
  return "The noise is measured by the A/A arm: the candidate again, with another stochastic-rounding key. A "
         "baseline that is disturbed by rounding noise understates it a hundredfold and is no substitute.";
}

std::string how_to_read(const ReportData& d) {
  return fmt::format("<ul><li>{}</li>{}</ul>", noise_text(d), kHowToRead);
}

std::string noise_floor(const ReportData& d) {
  if (spread_is_noise(d)) {
    return "<h2>Noise: the spread of the pairs</h2><p class='note'>Mean gap of every pair in every decision "
           "window.</p>" +
           pair_table(d);
  }
  return "<h2>Noise floor: the A/A gap</h2><p class='note'>Candidate against itself, only the rounding key "
         "differs.</p>" +
         plot_aa(d);
}

std::string caveats_section(const Verdict& v) {
  if (v.caveats.empty()) return "";
  std::string items;
  for (const auto& c : v.caveats) items += "<li>" + prose(c) + "</li>";
  return section("What this run cannot say", "", "<ul>" + items + "</ul>");
}

std::string telemetry_section(const ReportData& d) {
  const RunTelemetry& t = d.telemetry;
  std::string out;
  if (!t.quant.empty() || !t.gemms.empty())
    out += section(
        "Layers that deserve BF16",
        "By the second half of the run. A layer in BF16 costs speed; try the list with nibble ablate or "
        "in another pair before it becomes the recipe.",
        bf16_candidates(t));
  out +=
      section("Telemetry of the candidate's quantised operands",
              "A row is a layer, a column a measured step (of a long run the worst of neighbouring steps). "
              "Strong colour is where four bits hurt.",
              heat_maps(t));
  if (!t.quant.empty())
    out += section("Ten worst operands", "Lowest SQNR at the last measured step.", worst_table(t.quant)) +
           section("Ends of the block scales",
                   "Scales pile up at an end when the tensor scale no longer fits.", scale_table(t.quant));
  const std::string weights = weight_maps(t);
  if (!weights.empty())
    out += section(
        "Weights, residual stream, attention",
        "Oscillation: movement of the decoded weights over that of the master weights in a step; above "
        "1 weights gather where the rounding flips.",
        weights);
  return out;
}

}  // namespace

std::string report_html(const ReportData& d) {
  const std::string body =
      header(d) + verdict_box(d) +
      section(
          "Gap to the baseline",
          "Relative gap of the validation loss at every evaluation, with the noise of one pair around zero.",
          plot_gap(d)) +
      section("Loss curves", "Validation and training loss of every arm." + bigram_note(d), plot_losses(d)) +
      "<section><div class='pair'><div><h2>Paired training loss</h2><p class='note'>Same batches, so the "
      "data's noise "
      "cancels.</p>" +
      plot_training_difference(d) + "</div><div>" + noise_floor(d) + "</div></div></section>\n" +
      task_section(d) + telemetry_section(d) + plan_section(d) + arms_section(d) +
      section("How to read this", "", how_to_read(d)) + caveats_section(d.verdict) + environment_section(d);
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
      "content='width=device-width, "
      "initial-scale=1'><title>{}: {}</title>\n<style>{}</style></head>\n<body><main>{}<footer>Written by "
      "nibble {}. This page "
      "stands alone: it loads nothing.</footer></main></body></html>\n",
      upper(name(d.verdict.outcome)), escaped(d.context.title.empty() ? d.protocol.name : d.context.title),
      kPageStyle, body, escaped(d.arms.empty() ? "" : d.arms.front().header.version));
}

}  // namespace nibble
