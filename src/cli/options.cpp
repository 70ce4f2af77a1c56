// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "io/file.h"
#include "ops/gemm/gemm_tuning.h"

namespace nibble {

void add_machine_options(CLI::App& app, MachineOptions& options) {
  app.add_option("--backend", options.backend,
                 "Where to compute: ref (plain loops, slow on purpose), cpu or cuda");
  app.add_option("--threads", options.threads, "Threads; 0: one a hardware thread. Never changes a result")
      ->check(CLI::NonNegativeNumber);
}

void add_config_options(CLI::App& app, ConfigOptions& options) {
  app.add_option("FILE.toml", options.path, "The configuration")->required();
  app.add_option("--set", options.overrides, "Override a key: --set training.steps=200 (TOML value syntax)")
      ->take_all();
}

RunConfig load_with(const ConfigOptions& config, const MachineOptions& machine) {
  std::vector<std::string> sets = config.overrides;
  for (const std::string& set : settings_of(machine)) sets.push_back(set);
  return load_run_config(config.path, sets);
}

std::vector<std::string> settings_of(const MachineOptions& machine) {
  std::vector<std::string> sets;
  if (!machine.backend.empty()) sets.push_back(fmt::format("training.backend=\"{}\"", machine.backend));
  if (machine.threads >= 0) sets.push_back(fmt::format("training.threads={}", machine.threads));
  return sets;
}

namespace {

std::string shell_quoted(const std::string& word) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_-./=,:+", c);
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string command_line(const std::string& verb, const ConfigOptions& config,
                         const MachineOptions& machine) {
  std::string text = "nibble " + verb + " " + shell_quoted(config.path);
  for (const std::string& set : config.overrides) text += " --set " + shell_quoted(set);
  if (!machine.backend.empty()) text += " --backend " + machine.backend;
  if (machine.threads >= 0) text += fmt::format(" --threads {}", machine.threads);
  return text;
}

Workplace::Workplace(std::string_view backend, int threads)
    : device(open_device(backend_from_name(backend))),
      stream(backend_from_name(backend), *device, std::max(threads, 0)) {}

Workplace::Workplace(const RunConfig& config)
    : Workplace(config.training.backend, static_cast<int>(config.training.threads)) {
  if (!config.training.gemm_tuning.empty())
    use_gemm_tuning(*device, GemmTuning::parse(read_file(config.training.gemm_tuning)));
}

Workplace::Workplace(const MachineOptions& machine)
    : Workplace(machine.backend.empty() ? "cpu" : std::string_view(machine.backend), machine.threads) {}

}  // namespace nibble
