// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "report/integrity.h"
#include "report/report.h"
#include "report/run_folder.h"
#include "train/run_log.h"

namespace nibble {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  check(in.good(), "cannot read {}; name the folder of a finished `nibble validate` run", path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

json plan_json(const PlanRow& r) {
  return {{"layer", r.layer},         {"shape", r.shape}, {"parameters", r.parameters},
          {"quantised", r.quantised}, {"fprop", r.fprop}, {"dgrad", r.dgrad},
          {"wgrad", r.wgrad}};
}

PlanRow plan_from(const json& j) {
  return {j.at("layer"), j.at("shape"), j.at("parameters"), j.at("quantised"),
          j.at("fprop"), j.at("dgrad"), j.at("wgrad")};
}

}  // namespace

std::string context_to_json(const ReportContext& c) {
  json environment = json::array(), plan = json::array();
  for (const auto& [key, value] : c.environment) environment.push_back({key, value});
  for (const auto& r : c.plan) plan.push_back(plan_json(r));
  json j = {{"schema", 1},          {"title", c.title},
            {"command", c.command}, {"environment", environment},
            {"plan", plan},         {"bf16_share_flops", c.bf16_share_flops}};
  if (c.bigram) j["bigram"] = {{"loss", c.bigram->loss}, {"text", c.bigram->text}};
  if (!c.unused_floor.empty()) j["unused_floor"] = c.unused_floor;
  return j.dump(1) + "\n";
}

ReportContext context_from_json(const std::string& text) try {
  const json j = json::parse(text);
  ReportContext c;
  c.title = j.at("title"), c.command = j.at("command"), c.bf16_share_flops = j.at("bf16_share_flops");
  for (const auto& e : j.at("environment")) c.environment.emplace_back(e.at(0), e.at(1));
  for (const auto& r : j.at("plan")) c.plan.push_back(plan_from(r));
  if (j.contains("bigram")) c.bigram = BigramFigure{j.at("bigram").at("loss"), j.at("bigram").at("text")};
  c.unused_floor = j.value("unused_floor", "");
  return c;
} catch (const json::exception& e) {
  fail("report_context.json cannot be read: {}", e.what());
}

namespace {

ArmSeries series_of(RunLog log, const ArmSpec& spec) {
  ArmSeries arm{.header = std::move(log.header), .name = spec.name, .pair = spec.pair};
  arm.train = std::move(log.train);
  arm.switches = std::move(log.switches);
  for (const EvalEvent& e : log.evaluations) arm.evals.push_back({e.step, e.tokens, e.loss});
  return arm;
}

}  // namespace

ReportData read_run(const fs::path& run) {
  require_comparison(run);
  ReportData d;
  d.protocol = protocol_from_text(slurp(run / "protocol.json"));
  d.verdict = verdict_from_json(slurp(run / "verdict.json"));
  d.context = context_from_json(slurp(run / "report_context.json"));
  for (const auto& spec : d.protocol.arms) {
    const fs::path log = run / spec.directory / "metrics.jsonl";
    // After an abort the later arms never ran.
    if (!fs::exists(log) && d.verdict.abort) continue;
    d.arms.push_back(series_of(read_run_log(log), spec));
    const fs::path telemetry = run / spec.directory / "telemetry.jsonl";
    if (spec.name == "candidate" && spec.pair == 1 && fs::exists(telemetry))
      d.telemetry = read_telemetry(telemetry);
  }
  d.changes = changes_after_run(run, d);
  return d;
}

void write_report(const fs::path& html, const ReportData& data) {
  const fs::path part = html.string() + ".part";
  {
    std::ofstream out(part, std::ios::binary);
    out << report_html(data);
    out.flush();
    check(out.good(), "cannot write {}; free some space or name another folder", part.string());
  }
  fs::rename(part, html);
}

}  // namespace nibble
