// SPDX-License-Identifier: Apache-2.0
#include "validate/compare.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/cli.h"
#include "io/file.h"

namespace nibble {
namespace {

struct Options {
  std::string a, b, by = "step", noise, limit, json, text;
  double window = 0.25;
  std::int64_t from = 0;
  int rows = 12;
  bool interpolate = false;
};

ExitCode run(const Options& o) {
  CompareOptions c{.by_tokens = o.by == "tokens", .interpolate = o.interpolate, .window = o.window};
  if (o.from > 0) c.from = o.from;
  if (!o.noise.empty()) c.noise = pair_noise_from(o.noise);
  if (!o.limit.empty()) c.limit = share_from(o.limit);
  const auto a = read_curve(o.a);  // first, so that it is named first when both are wrong
  const CurveComparison result = compare_curves(a, read_curve(o.b), c);
  const std::string text = compare_text(result, o.rows);
  fmt::print("{}", text);
  if (!o.text.empty()) write_file(o.text, text);
  if (!o.json.empty()) write_json(o.json, compare_json(result));
  return result.limit ? exit_code(result.outcome) : 0;
}

}  // namespace

Verb add_compare(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("A", o->a, "The reference: a run's folder or a log, PATH or PATH#key=value,...")->required();
  app.add_option("B", o->b, "The candidate, likewise")->required();
  app.add_option("--by", o->by, "Pair points of equal step or of equal tokens")
      ->check(CLI::IsMember({"step", "tokens"}));
  app.add_flag("--interpolate", o->interpolate, "Read B between its points where A has one and B has not");
  app.add_option("--window", o->window, "Last share of the pairs that the mean gap is taken over")
      ->check(CLI::Range(0.01, 1.0));
  app.add_option("--from", o->from, "Instead of --window: all pairs from this step (or token) on")
      ->check(CLI::PositiveNumber);
  app.add_option("--noise", o->noise,
                 "Noise of one pair: a share, a percentage, or a noise_floor.json or verdict.json");
  app.add_option("--limit", o->limit, "Judge against a limit: 0.015 or 1.5%. Sets the exit code");
  app.add_option("--rows", o->rows, "Checkpoints to print")->check(CLI::Range(2, 100000));
  app.add_option("--json", o->json, "Write everything as JSON to this file");
  app.add_option("--text", o->text, "Write the printed text to this file");
  app.footer(
      "Reads nibble runs, TensorBoard event files, MLPerf logs, CSV, and text with step and loss in its "
      "lines.\n"
      "After #: metric=train|validation; tag=NAME of event files; step=, loss=, tokens= name CSV columns, "
      "any\n"
      "other key chooses rows of a CSV; tokens_per_step=N. Example:\n"
      "  nibble compare bf16/events 'curves.csv#recipe=nvfp4,system=gb200' --by tokens\n"
      "Exit code: 0; with --limit 0 pass, 3 fail, 4 inconclusive.");
  return [o] { return run(*o); };
}

}  // namespace nibble
