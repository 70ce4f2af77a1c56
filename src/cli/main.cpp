// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>

#include "base/error.h"
#include "cli/cli.h"
#include "models/parameters.h"
#include "models/registry.h"
#include "train/setup.h"

namespace nibble {
namespace {

constexpr const char* kAbout =
    "nibble pretrains language models in NVFP4 and tells, on the hardware you have, whether NVFP4 will "
    "converge "
    "for your model.";
constexpr const char* kStart =
    "Start with `nibble validate configs/quickstart.toml` (minutes, no GPU needed), and `nibble watch "
    "runs/quickstart` beside it.\n"
    "`nibble help VERB` says more, `nibble help config` lists every key of a configuration; docs/howto has a "
    "page a task.\n";
constexpr const char* kExitCodes =
    "Exit codes: 0 done or verdict PASS; 1 error; 2 bad usage or configuration; 3 verdict FAIL or aborted by "
    "the "
    "rule; 4 inconclusive; 5 non-finite loss or gradient; of replay: 6 the recipe, 7 the data, 8 the stack "
    "is at "
    "fault; 128 + n after signal n, state saved.";

struct Row {
  const char* name;
  const char* summary;
  Verb (*add)(CLI::App&);
};

constexpr Row kVerbs[] = {
    {"validate", "Train a baseline and a candidate on the same batches and judge the gap", add_validate},
    {"ablate", "Train a recipe without each of its ingredients and rank what they are worth", add_ablate},
    {"probe", "Measure what quantising each layer costs and propose which to keep in BF16", add_probe},
    {"train", "Train one model", add_train},
    {"branch", "Health check of a run: train on from its checkpoint in another recipe and print the gap",
     add_branch},
    {"replay", "Train the steps before a spike or a NaN again and say what is at fault", add_replay},
    {"watch", "Show runs as they train, in a browser or in this terminal", add_watch},
    {"explain", "Print what every linear layer will do in every GEMM, before a step is run", add_explain},
    {"data", "Tokenise the text of a configuration and say what it holds", add_data},
    {"plan", "Predict speed, memory, time to equal loss and cost on given GPUs", add_plan},
    {"compare", "Lay any two runs side by side: the gap, its interval, what one pair may claim", add_compare},
    {"forecast", "Forecast the gap at a real size and length, from pilots and the literature", add_forecast},
    {"report", "Write a comparison's report.html again, or a run's logs as one table", add_report},
    {"quantize", "Quantise the tensors of a safetensors file: statistics, and the bytes", add_quantize},
    {"verify-model", "Check a Hugging Face checkpoint against golden logits and gradients", add_verify_model},
    {"eval", "Score a checkpoint on likelihood tasks, as lm-eval-harness does", add_eval},
    {"doctor", "Say what this machine does natively and what is emulated; self-tests", add_doctor},
    {"bench", "Measure quantisers, GEMMs and training steps beside their baselines", add_bench},
};

/// One word a line: enough for `complete -W "$(nibble completion)" nibble`.
void print_completion() {
  for (const Row& r : kVerbs) fmt::print("{}\n", r.name);
  fmt::print("help\ncompletion\n");
}

/// Topics of `nibble help` that are not verbs.
bool print_topic(const std::string& topic) {
  if (topic == "config") {
    fmt::print("{}", config_reference());
  } else if (topic == "presets") {
    for (const ModelPreset& p : model_presets())
      fmt::print("  {:<22} {:>15} parameters  {}\n", p.name, param_count(preset_spec(p.name)), p.summary);
  } else if (topic == "recipes") {
    for (const Recipe& r : recipe_catalog()) fmt::print("  {:<10} {} {}\n", r.name, r.summary, r.source);
  } else {
    return false;
  }
  return true;
}

int run(int argc, char** argv) {
  CLI::App app(kAbout, "nibble");
  app.set_version_flag("--version", fmt::format("nibble {}", nibble_version()));
  app.footer(std::string(kStart) + kExitCodes);
  app.require_subcommand(0, 1);
  std::map<CLI::App*, Verb> verbs;
  for (const Row& r : kVerbs) {
    CLI::App* sub = app.add_subcommand(r.name, r.summary);
    sub->footer(kExitCodes);  // unless the verb has its own
    verbs[sub] = r.add(*sub);
  }
  std::string topic;
  CLI::App* help = app.add_subcommand("help", "Help on a verb, or on config, presets, recipes");
  help->add_option("TOPIC", topic, "A verb, or config, presets, recipes");
  CLI::App* completion =
      app.add_subcommand("completion", "Words for a shell: complete -W \"$(nibble completion)\" nibble");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return 2;
  }
  if (completion->parsed()) return print_completion(), 0;
  if (help->parsed() && !topic.empty()) {
    if (print_topic(topic)) return 0;
    const auto known = app.get_subcommands([&](const CLI::App* a) { return a->get_name() == topic; });
    check_usage(!known.empty(), "there is no verb or topic \"{}\"; `nibble help` lists the verbs", topic);
    CLI::App* sub = known.front();
    fmt::print("{}", sub->help("nibble"));
    return 0;
  }
  for (auto& [sub, verb] : verbs)
    if (sub->parsed()) return verb();
  const bool asked = help->parsed();
  app.clear();  // or the help of `help` would be printed
  fmt::print("{}", app.help());
  return asked ? 0 : 2;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  try {
    return nibble::run(argc, argv);
  } catch (const nibble::Error& e) {
    fmt::print(stderr, "nibble: {}\n", e.what());
    return e.exit_code();
  } catch (const std::exception& e) {
    fmt::print(stderr, "nibble: {}\n", e.what());
    return 1;
  }
}
