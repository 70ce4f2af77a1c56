// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "report/report.h"

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

/// Calls take(line) for every whole line. A last line without its line feed was cut by a crash and is left
/// out.
void for_each_line(const fs::path& path, const std::function<void(const json&)>& take) {
  const std::string text = slurp(path);
  std::size_t start = 0;
  for (int number = 1; start < text.size(); ++number) {
    const auto end = text.find('\n', start);
    if (end == std::string::npos) return;
    try {
      take(json::parse(text.begin() + static_cast<std::ptrdiff_t>(start),
                       text.begin() + static_cast<std::ptrdiff_t>(end)));
    } catch (const json::exception& e) {
      fail("{} line {}: {}", path.string(), number, e.what());
    }
    start = end + 1;
  }
}

/// A number, or one of the strings that stand for what JSON cannot say.
double number(const json& j) {
  if (j.is_number()) return j.get<double>();
  const auto text = j.get<std::string>();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

HeaderEvent header_from(const json& j) {
  HeaderEvent h;
  check(j.at("schema") == 1, "the log has schema {}, this binary reads 1", j.at("schema").dump());
  h.run = j.at("run"), h.arm = j.at("arm"), h.recipe = j.at("recipe"), h.backend = j.at("backend");
  h.version = j.at("version"), h.protocol = j.at("protocol"), h.config = j.at("config");
  h.data = j.at("data"), h.init = j.at("init");
  h.seed = std::stoull(j.at("seed").get<std::string>());
  h.sr_seed = std::stoull(j.at("sr_seed").get<std::string>());
  h.steps = j.at("steps"), h.tokens_per_step = j.at("tokens_per_step"), h.parameters = j.at("parameters");
  h.warmup_steps = j.at("warmup_steps"), h.decay_start = j.at("decay_start"), h.emulated = j.at("emulated");
  return h;
}

TrainEvent train_from(const json& j) {
  TrainEvent e{.step = j.at("step"), .tokens = j.at("tokens"), .loss = number(j.at("loss"))};
  e.lr = number(j.at("lr")), e.grad_norm = number(j.at("grad_norm"));
  e.tokens_per_s = number(j.at("tokens_per_s")), e.step_ms = number(j.at("step_ms"));
  if (j.contains("mfu")) e.mfu = number(j.at("mfu"));
  e.batch_hash = std::stoull(j.at("batch_hash").get<std::string>(), nullptr, 16);
  return e;
}

OperandName where_from(const json& j) {
  return {j.at("layer"), j.at("block"), j.at("gemm"), j.at("operand")};
}

QuantEvent quant_from(const json& j) {
  QuantEvent e{.step = j.at("step"), .where = where_from(j), .format = j.at("format")};
  e.amax = number(j.at("amax")), e.amax_drift = number(j.at("amax_drift")),
  e.flushed = number(j.at("flushed"));
  e.saturated = number(j.at("saturated")), e.zero_blocks = number(j.at("zero_blocks"));
  e.scale_max = number(j.at("scale_max")), e.scale_subnormal = number(j.at("scale_subnormal"));
  e.scale_zero = number(j.at("scale_zero")), e.sqnr_db = number(j.at("sqnr_db"));
  e.mse = number(j.at("mse")), e.bias = number(j.at("bias"));
  e.scale_log2 = j.at("scale_log2").get<std::array<std::int64_t, 16>>();
  return e;
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
  return j.dump(1) + "\n";
}

ReportContext context_from_json(const std::string& text) try {
  const json j = json::parse(text);
  ReportContext c;
  c.title = j.at("title"), c.command = j.at("command"), c.bf16_share_flops = j.at("bf16_share_flops");
  for (const auto& e : j.at("environment")) c.environment.emplace_back(e.at(0), e.at(1));
  for (const auto& r : j.at("plan")) c.plan.push_back(plan_from(r));
  if (j.contains("bigram")) c.bigram = BigramFigure{j.at("bigram").at("loss"), j.at("bigram").at("text")};
  return c;
} catch (const json::exception& e) {
  fail("report_context.json cannot be read: {}", e.what());
}

ArmSeries read_metrics(const fs::path& path) {
  ArmSeries arm;
  std::map<std::int64_t, TrainEvent> train;
  std::map<std::int64_t, EvalPoint> evals;
  for_each_line(path, [&](const json& j) {
    const auto type = j.at("type").get<std::string>();
    if (type == "header") {
      arm.header = header_from(j);
    } else if (type == "train") {
      const TrainEvent e = train_from(j);
      train[e.step] = e;
    } else if (type == "val" && j.at("set") == "validation") {
      evals[j.at("step")] = {j.at("step"), j.at("tokens"), number(j.at("loss"))};
    } else if (type == "switch") {
      arm.switches.push_back({j.at("step"), j.at("from"), j.at("to"), j.at("what")});
    }
  });
  arm.name = arm.header.arm;
  for (auto& [step, e] : train) arm.train.push_back(e);
  for (auto& [step, e] : evals) arm.evals.push_back(e);
  return arm;
}

std::vector<AlarmEvent> read_alarms(const fs::path& path) {
  std::vector<AlarmEvent> out;
  for_each_line(path, [&](const json& j) {
    if (j.at("type") != "alarm") return;
    out.push_back({j.at("step"), severity_from(j.at("severity")), j.at("rule"), where_from(j), j.at("text")});
  });
  return out;
}

std::vector<QuantEvent> read_telemetry(const fs::path& path) {
  std::vector<QuantEvent> out;
  for_each_line(path, [&](const json& j) {
    if (j.at("type") == "tensor") out.push_back(quant_from(j));
  });
  return out;
}

ReportData read_run(const fs::path& run) {
  ReportData d;
  d.protocol = protocol_from_text(slurp(run / "protocol.json"));
  d.verdict = verdict_from_json(slurp(run / "verdict.json"));
  d.context = context_from_json(slurp(run / "report_context.json"));
  for (const auto& spec : d.protocol.arms) {
    const fs::path log = run / spec.directory / "metrics.jsonl";
    // After an abort the later arms never ran.
    if (!fs::exists(log) && d.verdict.abort) continue;
    ArmSeries arm = read_metrics(log);
    arm.name = spec.name, arm.pair = spec.pair;
    d.arms.push_back(std::move(arm));
    const fs::path telemetry = run / spec.directory / "telemetry.jsonl";
    if (spec.name == "candidate" && spec.pair == 1 && fs::exists(telemetry))
      d.quant = read_telemetry(telemetry);
  }
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
