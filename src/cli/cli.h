// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "train/run_config.h"

namespace nibble {

/// What a verb gives back to the shell: 0 done or verdict pass, 1 error, 2 bad usage or configuration, 3
/// verdict fail or aborted by the rule, 4 inconclusive, 5 non-finite loss or gradient, 128 + n after a
/// signal.
using ExitCode = int;

/// A verb puts its options on `app` and returns what to run when it is chosen.
using Verb = std::function<ExitCode()>;

Verb add_train(CLI::App& app);
Verb add_validate(CLI::App& app);
Verb add_ablate(CLI::App& app);
Verb add_probe(CLI::App& app);
Verb add_branch(CLI::App& app);
Verb add_replay(CLI::App& app);
Verb add_watch(CLI::App& app);
Verb add_explain(CLI::App& app);
Verb add_data(CLI::App& app);
Verb add_plan(CLI::App& app);
Verb add_compare(CLI::App& app);
Verb add_forecast(CLI::App& app);
Verb add_report(CLI::App& app);
Verb add_quantize(CLI::App& app);
Verb add_verify_model(CLI::App& app);
Verb add_eval(CLI::App& app);
Verb add_doctor(CLI::App& app);
Verb add_bench(CLI::App& app);
/// `bench --verdict`: puts its options on `app`; the verb runs it when asked for, else `otherwise`.
Verb with_verdict_bench(CLI::App& app, Verb otherwise);
/// Adds `bench --report`: the time and size of the report of a long run.
Verb with_report_bench(CLI::App& app, Verb otherwise);
/// `bench --formats`: likewise.
Verb with_formats_bench(CLI::App& app, Verb otherwise);

/// --backend and --threads, which every verb that computes has.
struct MachineOptions {
  std::string backend;  ///< empty: the configuration's, or cpu
  int threads = -1;     ///< negative: the configuration's, or one a hardware thread
};
void add_machine_options(CLI::App& app, MachineOptions& options);
/// The same as settings of a configuration: {"training.threads=2"}.
std::vector<std::string> settings_of(const MachineOptions& machine);

/// FILE.toml and --set section.key=value, which every verb that reads a configuration has.
struct ConfigOptions {
  std::string path;
  std::vector<std::string> overrides;
};
void add_config_options(CLI::App& app, ConfigOptions& options);

/// The configuration with --set, --backend and --threads laid over it.
RunConfig load_with(const ConfigOptions& config, const MachineOptions& machine);

/// `nibble VERB FILE ...` as it can be typed again, quoted for a shell.
std::string command_line(const std::string& verb, const ConfigOptions& config, const MachineOptions& machine);

/// The device and the stream that a verb computes on. Throws Error{Usage} for a backend that this binary
/// lacks, Error{Runtime} when there is no such device.
struct Workplace {
  Workplace(std::string_view backend, int threads);
  explicit Workplace(const RunConfig& config);  ///< with its GEMM tuning
  explicit Workplace(
      const MachineOptions& machine);  ///< for verbs without a configuration: cpu if none is named
  std::unique_ptr<Device> device;
  Stream stream;
};

}  // namespace nibble
