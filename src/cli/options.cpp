// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

namespace nibble {

void add_machine_options(CLI::App& app, MachineOptions& options) {
  app.add_option("--backend", options.backend, "Where to compute: ref (plain loops, slow on purpose) or cpu")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads; 0: one a hardware thread. Never changes a result")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
}

void add_config_options(CLI::App& app, ConfigOptions& options) {
  app.add_option("FILE.toml", options.path, "The configuration")->required();
  app.add_option("--set", options.overrides, "Override a key: --set training.steps=200 (TOML value syntax)");
}

const char* version() { return NIBBLE_VERSION; }

}  // namespace nibble
