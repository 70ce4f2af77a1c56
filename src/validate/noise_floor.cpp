// SPDX-License-Identifier: Apache-2.0
#include "validate/noise_floor.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "io/hash.h"

namespace nibble {

using nlohmann::json;

std::map<std::string, std::string> noise_settings(std::map<std::string, std::string> maths_values) {
  for (const char* key : {"training.seed", "precision.sr_seed", "training.backend"}) maths_values.erase(key);
  return maths_values;
}

std::string noise_floor_to_json(const NoiseFloor& f) {
  const json j = {{"schema", f.schema},
                  {"recipe", f.recipe},
                  {"parameters", f.parameters},
                  {"validation", f.validation},
                  {"settings", f.settings},
                  {"aa_rms", f.aa_rms},
                  {"arms", f.arms},
                  {"protocols", f.protocols}};
  return j.dump(2) + "\n";
}

NoiseFloor read_noise_floor(const std::filesystem::path& path) try {
  check_usage(std::filesystem::is_regular_file(path),
              "--noise-floor {}: no such file; name the noise_floor.json of an earlier `nibble validate` run",
              path.string());
  const json j = json::parse(read_file(path));
  NoiseFloor f;
  f.file = path.string();
  f.schema = j.at("schema");
  check_usage(f.schema == 1, "{} has schema {}, this binary reads 1", path.string(), f.schema);
  f.recipe = j.at("recipe"), f.parameters = j.at("parameters"), f.validation = j.at("validation");
  f.settings = j.at("settings").get<std::map<std::string, std::string>>();
  f.aa_rms = j.at("aa_rms").get<std::map<std::string, double>>();
  f.arms = j.at("arms"), f.protocols = j.at("protocols").get<std::vector<std::string>>();
  const bool sound = std::all_of(f.aa_rms.begin(), f.aa_rms.end(),
                                 [](const auto& w) { return w.second >= 0 && w.second < 1; });
  check_usage(f.arms >= 1 && !f.aa_rms.empty() && sound, "{} holds no measured noise ({} arms, {} windows)",
              path.string(), f.arms, f.aa_rms.size());
  return f;
} catch (const json::exception& e) {
  fail_usage("{} is no noise floor ({}); it is written by `nibble validate` as noise_floor.json",
             path.string(), e.what());
}

std::string FloorDifference::text() const { return fmt::format("{}: {} there, {} here", what, there, here); }

std::vector<FloorDifference> floor_differences(const NoiseFloor& floor, const NoiseFloor& now) {
  std::vector<FloorDifference> out;
  const auto compare = [&](const std::string& what, const std::string& there, const std::string& here) {
    if (there != here) out.push_back({what, there, here});
  };
  compare("parameters", std::to_string(floor.parameters), std::to_string(now.parameters));
  compare("recipe", floor.recipe, now.recipe);
  compare("evaluation set", floor.validation, now.validation);
  std::map<std::string, std::string> keys = floor.settings;
  keys.insert(now.settings.begin(), now.settings.end());
  const auto value = [](const NoiseFloor& f, const std::string& key) {
    const auto it = f.settings.find(key);
    return it == f.settings.end() ? std::string("unset") : it->second;
  };
  for (const auto& [key, unused] : keys) compare(key, value(floor, key), value(now, key));
  return out;
}

void require_same_experiment(const NoiseFloor& floor, const NoiseFloor& now) {
  const std::vector<FloorDifference> differences = floor_differences(floor, now);
  if (differences.empty()) return;
  constexpr std::size_t kMost = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, differences.size()); ++i)
    text += (i == 0 ? "" : "; ") + differences[i].text();
  if (differences.size() > kMost) text += fmt::format("; and {} more", differences.size() - kMost);
  fail_usage(
      "the noise floor {} is of another experiment ({}): its noise says nothing about this one. Only the "
      "seeds may "
      "differ; measure it again with the A/A arm (protocol.aa_arm = true)",
      floor.file, text);
}

std::string unused_floor_sentence(const std::vector<FloorDifference>& differences, bool aa_arm) {
  constexpr std::size_t kMost = 3;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(kMost, differences.size()); ++i) names.push_back(differences[i].what);
  std::string what = fmt::format("{}", fmt::join(names, ", "));
  if (differences.size() > kMost) what += fmt::format(" and {} more", differences.size() - kMost);
  return fmt::format("protocol.noise_floor is not used: the runs behind it differ in {}; {}.", what,
                     aa_arm ? "this run's A/A arm measures the noise instead"
                            : "set protocol.aa_arm = true to measure this run's noise");
}

NoiseRule with_stored_floor(NoiseRule rule, const NoiseFloor& floor) {
  rule.stored_rms = floor.aa_rms;
  rule.stored_arms = floor.arms;
  rule.stored_from = xxh3_128_hex(std::string_view(noise_floor_to_json(floor)));
  return rule;
}

std::optional<NoiseFloor> measured_floor(NoiseFloor experiment, const Protocol& protocol,
                                         const std::vector<PairData>& pairs, const NoiseFloor* given) {
  int own = 0;
  for (const PairData& pair : pairs) {
    if (pair.candidate_aa.empty()) continue;
    const bool complete = pair.candidate_aa.back().step >= protocol.final_window().last_step &&
                          pair.candidate_aa.size() == pair.candidate.size();
    if (!complete) return {};
    ++own;
  }
  if (own == 0) return {};
  for (const DecisionWindow& window : protocol.windows) {
    const Noise noise = noise_of(pairs, window, protocol.noise);
    if (!noise.aa_rms) return {};
    experiment.aa_rms[window.name] = *noise.aa_rms;
  }
  const std::string hash = protocol_hash(protocol);
  if (given != nullptr) {
    experiment.arms = given->arms;
    experiment.protocols = given->protocols;
  }
  experiment.arms += own;
  experiment.protocols.insert(experiment.protocols.end(), static_cast<std::size_t>(own), hash);
  return experiment;
}

}  // namespace nibble
