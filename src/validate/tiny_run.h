// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "io/file.h"
#include "train/run_log.h"
#include "train/setup.h"
#include "train/trainer.h"

/// Tests only: a folder with a text, the configuration of a model whose step takes milliseconds, and runs of
/// it.
namespace nibble {

class TinyPlace {
 public:
  TinyPlace() {
    std::string name = (std::filesystem::path(::testing::TempDir()) / "nibble-tiny-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make " << name;
    path_ = name;
    std::string text;
    unsigned state = 7;
    const char* words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat ", "and ", "ran.\n"};
    while (text.size() < 30000) text += words[((state = state * 1664525u + 1013904223u) >> 24) % 8];
    write_file(path_ / "text.txt", text);
  }
  ~TinyPlace() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TinyPlace(const TinyPlace&) = delete;
  TinyPlace& operator=(const TinyPlace&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path run() const { return path_ / "runs" / "tiny"; }

  RunConfig config(const std::vector<std::string>& sets = {}) const {
    return parse_run_config(fmt::format(R"([model]
blocks = 3
vocab_size = 384
hidden = 32
ffn = 64
heads = 2
kv_heads = 2
head_dim = 16
max_sequence = 32
activation = "relu2"
rope_theta = 10000
[data]
corpus = ""
files = ["{0}/text.txt"]
tokenizer = "byte"
cache = "{0}/cache"
[optimizer]
lr = 3e-3
[schedule]
warmup_steps = 4
[training]
name = "tiny"
runs = "{0}/runs"
steps = 40
batch = 4
micro_batch = 2
sequence = 32
threads = 1
[checkpoint]
every = 10
keep = 9
[telemetry]
every = 0
[eval]
every = 4
sequences = 2
)",
                                        path_.string()),
                            "test", sets);
  }

  /// Trains into run(), as `nibble train` does. What is not finite ends it.
  void train(const RunConfig& config) const {
    const RunSetup setup(config);
    const auto device = open_device(BackendKind::Cpu);
    Stream stream(BackendKind::Cpu, *device, 1);
    const auto seed = static_cast<std::uint64_t>(config.training.seed);
    Learner learner(stream, setup.learner(candidate_recipe(config), seed,
                                          static_cast<std::uint64_t>(config.precision.sr_seed)));
    const SampleOrder order = setup.order(seed);
    RunPlan plan = setup.plan(learner, stream.kind());
    plan.directory = run_directory(config);
    plan.eval_steps = plain_eval_steps(config.training.steps, config.eval.every);
    std::filesystem::create_directories(plan.directory);
    write_file(plan.directory / "run.toml", to_toml(config));
    const SignalGuard signals;
    try {
      run_training(learner, {order, setup.validation(), setup.data().tokenizer}, plan, nullptr, signals);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::NonFinite) throw;
    }
  }

 private:
  std::filesystem::path path_;
};

}  // namespace nibble
