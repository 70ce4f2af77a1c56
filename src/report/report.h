// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/telemetry_reader.h"
#include "telemetry/events.h"
#include "validate/protocol.h"
#include "validate/statistics.h"
#include "validate/verdict.h"

/// One comparison as one page that a person can send to colleagues.
///
/// Goals: report.html stands alone (inline CSS and SVG, no script, no network), reads in light and dark and
/// on paper, and says what the run cannot say. Everything in it can be rebuilt from the run's folder.
/// Non-goals: live pages.
namespace nibble {

/// One arm's log, as metrics.jsonl holds it.
struct ArmSeries {
  HeaderEvent header;
  std::string name;  ///< baseline, candidate, candidate_aa
  int pair = 1;
  std::vector<TrainEvent> train;
  std::vector<EvalPoint> evals;
  std::vector<SwitchEvent> switches;
};

/// One linear layer of the candidate's precision plan.
struct PlanRow {
  std::string layer;
  std::string shape;  ///< "256 x 768"
  std::int64_t parameters = 0;
  bool quantised = false;
  std::string fprop, dgrad, wgrad;  ///< "nvfp4 1x16 RNE | nvfp4 16x16 RNE", or "bf16"
};

struct SpeedRow {
  std::string arm;
  double tokens_per_s = 0;
  double step_ms = 0;  ///< median without warm-up
};

/// An interpolated bigram model of the same training tokens: what a model must beat to have learned anything.
struct BigramFigure {
  double loss = 0;   ///< nats a token on the same validation sequences
  std::string text;  ///< how it was made
};

/// What the logs do not hold; kept beside them as report_context.json.
struct ReportContext {
  std::string title;
  std::string command;  ///< exactly as typed
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<PlanRow> plan;
  double bf16_share_flops = 0;  ///< share of the linears' FLOPs that stay in BF16
  std::optional<BigramFigure> bigram;
  std::string unused_floor;  ///< a stored noise floor that was not used, and why; empty: there is none
};

struct ReportData {
  ReportContext context;
  Protocol protocol;
  Verdict verdict;
  std::vector<ArmSeries> arms;  ///< pair 1 first: baseline, candidate, candidate_aa
  RunTelemetry telemetry;       ///< of pair 1's candidate
  std::vector<std::string>
      changes;  ///< what was changed after the run (integrity.h); the report opens with it
};

/// The page. Pure: the same data give the same bytes.
std::string report_html(const ReportData& data);
/// A dozen lines for a terminal, no escape codes.
std::string summary_text(const Verdict& v);
/// The same, opened by what was changed after the run.
std::string summary_text(const ReportData& data);
/// The same for a merge request or a chat.
std::string summary_markdown(const ReportData& data);
/// Median speed of every arm without the first ten steps.
std::vector<SpeedRow> speed_rows(const std::vector<ArmSeries>& arms);

std::string context_to_json(const ReportContext& c);
ReportContext context_from_json(const std::string& text);

/// Reads RUN/{protocol.json, verdict.json, report_context.json} and each arm's metrics.jsonl and the
/// candidate's telemetry.jsonl. A step that was logged twice (a resumed run) counts as it was logged last.
/// Throws Error naming the file, the line and the remedy.
ReportData read_run(const std::filesystem::path& run);

/// Writes report.html (atomically: a reader never sees half a page).
void write_report(const std::filesystem::path& html, const ReportData& data);

}  // namespace nibble
