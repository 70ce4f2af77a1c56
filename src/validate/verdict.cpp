// SPDX-License-Identifier: Apache-2.0
#include "validate/verdict.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace nibble {

using json = nlohmann::ordered_json;

namespace {

double number(const json& j) {
  return j.is_null() ? std::numeric_limits<double>::quiet_NaN() : j.get<double>();
}

std::array<double, 2> interval(const json& j) { return {number(j.at(0)), number(j.at(1))}; }

std::optional<double> maybe(const json& j, const char* key) {
  if (!j.contains(key) || j.at(key).is_null()) return {};
  return j.at(key).get<double>();
}

json or_null(const std::optional<double>& v) { return v ? json(*v) : json(nullptr); }

json to_json(const ArmResult& a) {
  return {{"name", a.name},     {"directory", a.directory}, {"recipe", a.recipe},
          {"seed", a.seed},     {"sr_seed", a.sr_seed},     {"step", a.step},
          {"tokens", a.tokens}, {"loss", a.loss},           {"window_loss", a.window_loss}};
}

ArmResult arm_from(const json& j) {
  return {j.at("name"),   j.at("directory"),    j.at("recipe"),
          j.at("seed"),   j.at("sr_seed"),      j.at("step"),
          j.at("tokens"), number(j.at("loss")), number(j.at("window_loss"))};
}

json to_json(const WindowResult& w) {
  return {{"name", w.name},
          {"after_step", w.after_step},
          {"last_step", w.last_step},
          {"evaluations", w.evaluations},
          {"relative_gap", w.gap},
          {"pair_gaps", w.pair_gaps},
          {"sigma", w.sigma},
          {"degrees", w.degrees},
          {"gap_ci95", w.ci95},
          {"bounds", w.bounds},
          {"limit", w.limit},
          {"aa_rms", or_null(w.aa_rms)},
          {"two_arm_gap", or_null(w.two_arm_gap)},
          {"verdict", name(w.outcome)}};
}

WindowResult window_from(const json& j) {
  WindowResult w;
  w.name = j.at("name"), w.after_step = j.at("after_step"), w.last_step = j.at("last_step");
  w.evaluations = j.at("evaluations"), w.gap = number(j.at("relative_gap"));
  for (const auto& g : j.at("pair_gaps")) w.pair_gaps.push_back(number(g));
  w.sigma = number(j.at("sigma")), w.degrees = j.value("degrees", 0);
  w.ci95 = interval(j.at("gap_ci95")), w.bounds = interval(j.at("bounds"));
  w.limit = number(j.at("limit")), w.aa_rms = maybe(j, "aa_rms"), w.two_arm_gap = maybe(j, "two_arm_gap");
  w.outcome = outcome_from(j.at("verdict"));
  return w;
}

json to_json(const AlarmEvent& a) {
  return {{"step", a.step},
          {"arm", a.arm},
          {"severity", name(a.severity)},
          {"rule", a.rule},
          {"layer", a.where.layer},
          {"block", a.where.block},
          {"gemm", a.where.gemm},
          {"operand", a.where.operand},
          {"text", a.text}};
}

AlarmEvent alarm_from(const json& j) {
  return {j.at("step"), severity_from(j.at("severity")),
          j.at("rule"), {j.at("layer"), j.at("block"), j.at("gemm"), j.at("operand")},
          j.at("text"), j.value("arm", std::string())};
}

json to_json(const AbortRecord& a) {
  return {{"step", a.step},           {"tokens", a.tokens}, {"gap", a.gap},
          {"threshold", a.threshold}, {"rule", a.rule},     {"arm", a.arm}};
}

AbortRecord abort_from(const json& j) {
  return {j.at("step"), j.at("tokens"), number(j.at("gap")), number(j.at("threshold")),
          j.at("rule"), j.at("arm")};
}

json to_json(const TaskComparison& t) {
  return {{"task", t.task},
          {"metric", t.metric},
          {"n", t.examples},
          {"higher_is_better", t.higher_is_better},
          {"baseline", t.baseline},
          {"candidate", t.candidate},
          {"difference", t.difference},
          {"ci95", t.ci95}};
}

TaskComparison task_from(const json& j) {
  return {j.at("task"),
          j.at("metric"),
          j.at("higher_is_better"),
          j.at("n"),
          number(j.at("baseline")),
          number(j.at("candidate")),
          number(j.at("difference")),
          interval(j.at("ci95"))};
}

template <class Range>
json list(const Range& items) {
  json out = json::array();
  for (const auto& item : items) out.push_back(to_json(item));
  return out;
}

}  // namespace

const char* name(Outcome o) {
  switch (o) {
    case Outcome::Pass:
      return "pass";
    case Outcome::Fail:
      return "fail";
    case Outcome::Inconclusive:
      return "inconclusive";
    case Outcome::Aborted:
      return "aborted";
  }
  fail("a verdict has an unknown outcome {}", static_cast<int>(o));
}

Outcome outcome_from(const std::string& text) {
  for (const Outcome o : {Outcome::Pass, Outcome::Fail, Outcome::Inconclusive, Outcome::Aborted}) {
    if (text == name(o)) return o;
  }
  fail("'{}' is not a verdict; it is pass, fail, inconclusive or aborted", text);
}

int exit_code(Outcome o) {
  switch (o) {
    case Outcome::Pass:
      return 0;
    case Outcome::Fail:
    case Outcome::Aborted:
      return 3;
    case Outcome::Inconclusive:
      return 4;
  }
  fail("a verdict has an unknown outcome {}", static_cast<int>(o));
}

std::string verdict_to_json(const Verdict& v) {
  json j = {{"schema", 1},
            {"verdict", name(v.outcome)},
            {"relative_gap", v.relative_gap},
            {"gap_ci95", v.gap_ci95},
            {"noise_floor", v.noise_floor},
            {"limit", v.limit},
            {"step", v.step},
            {"tokens", v.tokens},
            {"baseline", to_json(v.baseline)},
            {"candidate", to_json(v.candidate)},
            {"rule", v.rule},
            {"label", v.label},
            {"reason", v.reason},
            {"more_data", v.more_data},
            {"claim", v.claim},
            {"noise_source", v.noise_source},
            {"pairs", v.pairs},
            {"inside_noise", v.inside_noise},
            {"identical", v.identical},
            {"two_arm_gap", or_null(v.two_arm_gap)},
            {"extra_tokens", or_null(v.extra_tokens)},
            {"protocol", v.protocol_hash},
            {"preregistered", v.preregistered}};
  j["candidate_aa"] = v.candidate_aa ? to_json(*v.candidate_aa) : json(nullptr);
  j["abort"] = v.abort ? to_json(*v.abort) : json(nullptr);
  j["windows"] = list(v.windows);
  j["alarms"] = list(v.alarms);
  j["caveats"] = v.caveats;
  j["tasks"] = list(v.tasks);
  return j.dump(2) + "\n";
}

Verdict verdict_from_json(const std::string& text) try {
  const json j = json::parse(text);
  check(j.at("schema") == 1, "verdict.json has schema {}, this binary reads 1", j.at("schema").dump());
  Verdict v;
  v.outcome = outcome_from(j.at("verdict"));
  v.relative_gap = number(j.at("relative_gap")), v.gap_ci95 = interval(j.at("gap_ci95"));
  v.noise_floor = number(j.at("noise_floor")), v.limit = number(j.at("limit"));
  v.step = j.at("step"), v.tokens = j.at("tokens");
  v.baseline = arm_from(j.at("baseline")), v.candidate = arm_from(j.at("candidate"));
  v.rule = j.at("rule"), v.label = j.at("label"), v.reason = j.at("reason");
  v.more_data = j.at("more_data"), v.claim = j.at("claim"), v.noise_source = j.at("noise_source");
  v.pairs = j.at("pairs"), v.inside_noise = j.at("inside_noise"), v.identical = j.at("identical");
  v.two_arm_gap = maybe(j, "two_arm_gap"), v.extra_tokens = maybe(j, "extra_tokens");
  v.protocol_hash = j.at("protocol"), v.preregistered = j.at("preregistered");
  if (!j.at("candidate_aa").is_null()) v.candidate_aa = arm_from(j.at("candidate_aa"));
  if (!j.at("abort").is_null()) v.abort = abort_from(j.at("abort"));
  for (const auto& w : j.at("windows")) v.windows.push_back(window_from(w));
  for (const auto& a : j.at("alarms")) v.alarms.push_back(alarm_from(a));
  v.caveats = j.at("caveats").get<std::vector<std::string>>();
  if (j.contains("tasks"))
    for (const auto& t : j.at("tasks")) v.tasks.push_back(task_from(t));
  return v;
} catch (const json::exception& e) {
  fail("verdict.json cannot be read: {}", e.what());
}

}  // namespace nibble
