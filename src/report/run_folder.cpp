// SPDX-License-Identifier: Apache-2.0
#include "report/run_folder.h"

#include "base/error.h"

namespace nibble {

void require_comparison(const std::filesystem::path& run) {
  const auto has = [&run](const char* file) { return std::filesystem::exists(run / file); };
  check_usage(std::filesystem::is_directory(run),
              "{} is no folder; name the folder of a comparison: runs/NAME", run.string());
  if (has("verdict.json")) return;
  if (has("protocol.json")) {
    fail_usage(
        "{} has no verdict yet: the comparison is not finished. Continue it with `nibble validate CONFIG "
        "--resume`",
        run.string());
  }
  if (has("metrics.jsonl")) {
    fail_usage(
        "{} is a single training run; report needs a comparison. Run `nibble validate CONFIG` and name its "
        "folder",
        run.string());
  }
  fail_usage(
      "{} holds no comparison (no protocol.json); name the folder that `nibble validate` wrote: runs/NAME",
      run.string());
}

}  // namespace nibble
