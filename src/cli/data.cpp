// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/cli.h"
#include "io/file.h"
#include "train/setup.h"

namespace nibble {
namespace {

struct Options {
  ConfigOptions config;
  MachineOptions machine;
};

void print_split(const char* name, const SplitSize& s) {
  if (s.documents == 0) return;
  fmt::print("{:<11} {:>9} documents {:>13} tokens {:>8.2f} MB {:>6.3f} bytes a token\n", name, s.documents,
             s.tokens, static_cast<double>(s.bytes) / 1e6,
             static_cast<double>(s.bytes) / static_cast<double>(std::max<std::int64_t>(s.tokens, 1)));
}

ExitCode run(const Options& o) {
  const RunConfig config = load_with(o.config, o.machine);
  const RunSetup setup(config);
  const PreparedData& d = setup.data();
  fmt::print("{} {}: tokenizer {}, {} tokens known\n", d.directory.string(),
             d.from_cache ? "was there and is intact" : "is new", d.tokenizer.name(),
             d.tokenizer.vocab_size());
  print_split("train", d.train_size);
  print_split("validation", d.validation_size);
  print_split("evaluation", d.evaluation_size);
  const SampleOrder order = setup.order(static_cast<std::uint64_t>(config.training.seed));
  fmt::print("{} steps of {} tokens read the training text {:.2f} times; validation on {} sequences of {}\n",
             config.training.steps, config.tokens_per_step(),
             order.epochs(config.training.steps, config.training.batch), setup.validation().count(),
             config.training.sequence);
  return 0;
}

}  // namespace

Verb add_data(CLI::App& app) {
  auto o = std::make_shared<Options>();
  add_config_options(app, o->config);
  add_machine_options(app, o->machine);
  app.footer(
      "Reads the text that [data] names, trains or loads the tokenizer, writes token shards below data.cache "
      "and prints\n"
      "the folder. On another machine data.prepared = \"that folder\" takes it as it is, without the text.");
  return [o] { return run(*o); };
}

}  // namespace nibble
