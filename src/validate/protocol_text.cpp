// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "validate/protocol.h"

namespace nibble {

using nlohmann::json;

namespace {

json arm_json(const ArmSpec& a) {
  return {{"name", a.name}, {"directory", a.directory}, {"recipe", a.recipe},
          {"pair", a.pair}, {"seed", a.seed},           {"sr_seed", a.sr_seed}};
}

ArmSpec arm_from(const json& j) {
  return {j.at("name"), j.at("directory"), j.at("recipe"), j.at("pair"), j.at("seed"), j.at("sr_seed")};
}

json window_json(const DecisionWindow& w) {
  return {{"name", w.name}, {"after_step", w.after_step}, {"last_step", w.last_step}, {"limit", w.limit}};
}

DecisionWindow window_from(const json& j) {
  return {j.at("name"), j.at("after_step"), j.at("last_step"), j.at("limit")};
}

json alarms_json(const AlarmRules& a) {
  json j = {{"drift_octaves", a.drift_octaves},
            {"drift_after", a.drift_after},
            {"flushed", a.flushed},
            {"sqnr_db", a.sqnr_db},
            {"scale_max", a.scale_max},
            {"scale_zero", a.scale_zero},
            {"gemm_warning", a.gemm_warning},
            {"gemm_warning_floor", a.gemm_warning_floor},
            {"gemm_fault", a.gemm_fault},
            {"gemm_fault_floor", a.gemm_fault_floor},
            {"gain_fault", a.gain_fault},
            {"bias_fault", a.bias_fault},
            {"bias_sigmas", a.bias_sigmas},
            {"full_codes", a.full_codes},
            {"gradient_steps", a.gradient_steps},
            {"gradient_fault", a.gradient_fault}};
  // Younger than the first protocols: written where they say something, so that the hash of an older protocol
  // stays what its arms carry.
  const AlarmRules usual;
  if (a.rise_octaves != usual.rise_octaves) j["rise_octaves"] = a.rise_octaves;
  if (a.rise_window != usual.rise_window) j["rise_window"] = a.rise_window;
  if (a.output_error != usual.output_error) j["output_error"] = a.output_error;
  return j;
}

json noise_json(const NoiseRule& n) {
  return {{"assumed_sigma", n.assumed_sigma},
          {"aa_factor", n.aa_factor},
          {"aa_share", n.aa_share},
          {"aa_degrees", n.aa_degrees},
          {"spread_from_pairs", n.spread_from_pairs},
          {"stored_rms", n.stored_rms},
          {"stored_arms", n.stored_arms},
          {"stored_from", n.stored_from}};
}

NoiseRule noise_from(const json& j) {
  return {.assumed_sigma = j.at("assumed_sigma"),
          .aa_factor = j.at("aa_factor"),
          .aa_share = j.at("aa_share"),
          .aa_degrees = j.at("aa_degrees"),
          .spread_from_pairs = j.at("spread_from_pairs"),
          .stored_rms = j.at("stored_rms").get<std::map<std::string, double>>(),
          .stored_arms = j.at("stored_arms"),
          .stored_from = j.at("stored_from")};
}

AlarmRules alarms_from(const json& j) {
  return {.drift_octaves = j.at("drift_octaves"),
          .drift_after = j.at("drift_after"),
          .rise_octaves = j.value("rise_octaves", AlarmRules{}.rise_octaves),
          .rise_window = j.value("rise_window", AlarmRules{}.rise_window),
          .output_error = j.value("output_error", AlarmRules{}.output_error),
          .flushed = j.at("flushed"),
          .sqnr_db = j.at("sqnr_db"),
          .scale_max = j.at("scale_max"),
          .scale_zero = j.at("scale_zero"),
          .gemm_warning = j.at("gemm_warning"),
          .gemm_warning_floor = j.at("gemm_warning_floor"),
          .gemm_fault = j.at("gemm_fault"),
          .gemm_fault_floor = j.at("gemm_fault_floor"),
          .gain_fault = j.at("gain_fault"),
          .bias_fault = j.at("bias_fault"),
          .bias_sigmas = j.at("bias_sigmas"),
          .full_codes = j.at("full_codes"),
          .gradient_steps = j.at("gradient_steps"),
          .gradient_fault = j.at("gradient_fault")};
}

}  // namespace

std::string canonical_text(const Protocol& p) {
  json arms = json::array(), windows = json::array();
  for (const auto& a : p.arms) arms.push_back(arm_json(a));
  for (const auto& w : p.windows) windows.push_back(window_json(w));
  json j = {
      {"schema", p.schema},
      {"name", p.name},
      {"model", p.model},
      {"parameters", p.parameters},
      {"steps", p.steps},
      {"tokens_per_step", p.tokens_per_step},
      {"warmup_steps", p.warmup_steps},
      {"decay_start", p.decay_start},
      {"metric", p.metric},
      {"confidence", p.confidence},
      {"arms", arms},
      {"eval_steps", p.eval_steps},
      {"switch_steps", p.switch_steps},
      {"windows", windows},
      {"abort",
       {{"consecutive", p.abort.consecutive},
        {"limit", p.abort.limit},
        {"sigma_multiplier", p.abort.sigma_multiplier},
        {"false_alarm", p.abort.false_alarm},
        {"first_step", p.abort.first_step}}},
      {"noise", noise_json(p.noise)},
      {"alarms", alarms_json(p.alarms)},
      {"contract", p.contract},
  };
  // Absent without tasks, so that the text of such a protocol, and its hash, are those of earlier versions.
  if (!p.tasks.names.empty())
    j["tasks"] = {{"names", p.tasks.names},
                  {"hash", p.tasks.hash},
                  {"steps", p.tasks.steps},
                  {"resamples", p.tasks.resamples}};
  return j.dump(1) + "\n";
}

Protocol protocol_from_text(const std::string& text) try {
  const json j = json::parse(text);
  Protocol p;
  p.schema = j.at("schema");
  check(p.schema == 1, "the protocol has schema {}, this binary reads 1", p.schema);
  p.name = j.at("name"), p.model = j.at("model"), p.parameters = j.at("parameters");
  p.steps = j.at("steps"), p.tokens_per_step = j.at("tokens_per_step");
  p.warmup_steps = j.at("warmup_steps"), p.decay_start = j.at("decay_start");
  p.metric = j.at("metric"), p.confidence = j.at("confidence");
  for (const auto& a : j.at("arms")) p.arms.push_back(arm_from(a));
  for (const auto& w : j.at("windows")) p.windows.push_back(window_from(w));
  p.eval_steps = j.at("eval_steps").get<std::vector<std::int64_t>>();
  p.switch_steps = j.at("switch_steps").get<std::vector<std::int64_t>>();
  const auto& a = j.at("abort");
  p.abort = {a.at("consecutive"), a.at("limit"), a.at("sigma_multiplier"), a.at("false_alarm"),
             a.at("first_step")};
  p.noise = noise_from(j.at("noise"));
  p.alarms = alarms_from(j.at("alarms"));
  p.contract = j.at("contract").get<std::map<std::string, std::string>>();
  if (j.contains("tasks")) {
    const auto& t = j.at("tasks");
    p.tasks = {t.at("names").get<std::vector<std::string>>(), t.at("hash"),
               t.at("steps").get<std::vector<std::int64_t>>(), t.at("resamples")};
  }
  return p;
} catch (const json::exception& e) {
  fail("the protocol cannot be read ({}); it is written by `nibble validate` and not meant to be edited",
       e.what());
}

std::string protocol_hash(const Protocol& p) {
  const std::string text = canonical_text(p);
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace nibble
