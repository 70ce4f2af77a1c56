// SPDX-License-Identifier: Apache-2.0
#include "train/setup.h"

#include <algorithm>

#include "base/error.h"
#include "io/file.h"
#include "io/hash.h"
#include "models/parameters.h"
#include "recipe/product.h"
#include "train/checkpoint.h"

namespace nibble {
namespace {

Recomputation recompute_from(const std::string& name) {
  return name == "light"   ? Recomputation::Light
         : name == "block" ? Recomputation::Block
                           : Recomputation::None;
}

/// The bundled texts: ./data, or the source tree's data beside build/PRESET/nibble.
std::filesystem::path bundled_data_root() {
  std::error_code ignored;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path candidates[] = {"data", binary.parent_path() / "../../data",
                                              binary.parent_path() / "../share/nibble/data"};
  for (const auto& c : candidates)
    if (std::filesystem::is_directory(c / "austen", ignored)) return c;
  fail(
      "the bundled texts (data/austen) were not found beside the working directory or the binary; run nibble "
      "from its source tree, or name your own files in data.files");
}

std::vector<std::filesystem::path> paths(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

Corpus corpus_of(const DataSection& d) {
  if (d.files.empty()) return bundled_corpus(d.corpus, bundled_data_root());
  return corpus_of_files("files", paths(d.files), paths(d.validation_files), d.validation_fraction);
}

TokenizerChoice tokenizer_of(const DataSection& d) {
  TokenizerChoice choice;
  if (d.tokenizer == "byte" || d.tokenizer == "bytes") {
    choice.kind = "bytes";
  } else if (d.tokenizer == "bpe") {
    choice.kind = "bpe";
    choice.training.vocab_size = static_cast<int>(d.vocab_size);
  } else {
    choice.kind = "load";
    choice.path = d.tokenizer;
  }
  return choice;
}

PreparedData prepared(const RunConfig& c) {
  if (!c.data.prepared.empty()) return open_prepared(c.data.prepared);
  return prepare({.corpus = corpus_of(c.data), .tokenizer = tokenizer_of(c.data), .cache = c.data.cache});
}

}  // namespace

RunSetup::RunSetup(const RunConfig& config)
    : config_(config),
      model_(model_of(config)),
      data_(prepared(config)),
      validation_(data_.validation, config.training.sequence, config.eval.sequences, model_.vocab) {
  check_patterns(config.telemetry.layers, linears(model_), "telemetry.layers");
  order(static_cast<std::uint64_t>(config.training.seed));  // throws now rather than after the first arm
}

SampleOrder RunSetup::order(std::uint64_t seed) const {
  return SampleOrder(data_.train, config_.training.sequence, seed, model_.vocab);
}

NgramBaseline RunSetup::ngrams() const {
  return ngram_baseline(data_.train.all(), data_.validation.all(), data_.tokenizer.vocab_size());
}

LearnerConfig RunSetup::learner(const Recipe& recipe, std::uint64_t seed, std::uint64_t sr_seed) const {
  const RunConfig& c = config_;
  return {.model = model_,
          .recipe = recipe,
          .optimizer = {.beta1 = c.optimizer.beta1,
                        .beta2 = c.optimizer.beta2,
                        .eps = c.optimizer.eps,
                        .weight_decay = c.optimizer.weight_decay,
                        .clip = c.optimizer.clip},
          .schedule = {.kind = schedule_from_name(c.schedule.kind),
                       .peak = c.optimizer.lr,
                       .steps = c.training.steps,
                       .warmup_steps = c.schedule.warmup_steps,
                       .decay_fraction = c.schedule.decay_fraction,
                       .final_ratio = c.schedule.final_ratio},
          .sequence = c.training.sequence,
          .batch = c.training.batch,
          .micro_batch = c.micro_batch(),
          .recompute = recompute_from(c.training.recompute),
          .seed = seed,
          .sr_seed = sr_seed,
          .record_steps = c.training.record_steps,
          .native = c.precision.native(),
          .repeatable = c.training.repeatable,
          .inject_nan_step = c.faults.inject_nan_step,
          .lost_micro_batches = c.faults.lost_micro_batches && quantizes(recipe)};
}

RunPlan RunSetup::plan(const Learner& learner, BackendKind backend) const {
  const LearnerConfig& l = learner.config();
  RunPlan plan;
  plan.checkpoint_every = config_.checkpoint.every;
  plan.checkpoint_keep = static_cast<int>(config_.checkpoint.keep);
  plan.telemetry_every = config_.telemetry.every;
  plan.telemetry = {.layers = config_.telemetry.layers,
                    .gemms = config_.telemetry.gemms,
                    .tensors = config_.telemetry.tensors,
                    .statistics = config_.telemetry.statistics};
  plan.alarms = config_.telemetry.alarms;
  plan.tensorboard = config_.metrics.tensorboard;
  plan.identity = contract();
  plan.identity["precision"] = maths_hash(config_, true);
  HeaderEvent& h = plan.header;
  h.run = config_.training.name;
  h.recipe = l.recipe.name;
  h.backend = name_of(backend);
  h.version = nibble_version();
  h.config = plan.identity.at("precision");
  h.data = plan.identity.at("data");
  h.init = weights_hash(learner.params());
  h.seed = l.seed;
  h.sr_seed = l.sr_seed;
  h.steps = l.schedule.steps;
  h.tokens_per_step = l.batch * l.sequence;
  h.parameters = param_count(model_);
  h.warmup_steps = l.schedule.warmup_steps;
  h.decay_start = l.schedule.decay_start();
  h.accumulate = l.recipe.accumulate == Accumulation::Truncating ? "truncating" : "fp32";
  const std::vector<LinearInfo> all = linears(l.model);
  const std::int64_t tokens = l.micro_batch * l.sequence;
  h.emulated = emulates(l.recipe, all, tokens, learner.native()) || l.recipe.attention.quantizes();
  h.products = count_products(l.recipe, all, 0, tokens, learner.native()).text();
  const std::string native = native_blocks(l.recipe, all, tokens, learner.native());
  if (!native.empty()) plan.identity[kNativeIdentity] = native;
  return plan;
}

std::map<std::string, std::string> RunSetup::contract() const {
  std::map<std::string, std::string> contract{{"config", maths_hash(config_, false)},
                                              {"data", hex64(data_.fingerprint)},
                                              {"tokenizer", hex64(data_.tokenizer.fingerprint())},
                                              {"validation", hex64(validation_.hash())}};
  if (!config_.training.gemm_tuning.empty())
    contract["gemm_tuning"] = hex64(xxh3_64(read_file(config_.training.gemm_tuning)));
  return contract;
}

std::string weights_hash(const ParamStore& params) {
  Xxh3 hash;
  for (const ParamStore::Entry& e : params.entries()) {
    hash.update(e.info.name);
    hash.update(std::as_bytes(std::span<const float>(params.read(params.master(e)))));
  }
  return hash.digest128_hex();
}

std::string maths_hash(const RunConfig& config, bool with_precision) {
  Xxh3 hash;
  for (const auto& [key, value] : maths_values(config))
    if (with_precision || !key.starts_with("precision.")) hash.update(fmt::format("{} = {}\n", key, value));
  return hash.digest128_hex();
}

std::filesystem::path run_directory(const RunConfig& config) {
  return std::filesystem::path(config.training.runs) / config.training.name;
}

std::optional<std::filesystem::path> open_run_directory(const std::filesystem::path& directory, bool resume) {
  std::optional<std::filesystem::path> moved;
  if (!resume && std::filesystem::exists(directory) && !std::filesystem::is_empty(directory)) {
    int n = 1;
    const auto old = [&] {
      return std::filesystem::path(fmt::format("{}.previous-{}", directory.string(), n));
    };
    while (std::filesystem::exists(old())) ++n;
    std::filesystem::rename(directory, old());
    moved = old();
  }
  std::filesystem::create_directories(directory);
  return moved;
}

std::vector<std::int64_t> plain_eval_steps(std::int64_t steps, std::int64_t every) {
  if (every <= 0) every = std::max<std::int64_t>(1, steps / 20);
  std::vector<std::int64_t> out;
  for (std::int64_t s = 0; s < steps; s += every) out.push_back(s);
  out.push_back(steps);
  return out;
}

const char* nibble_version() { return NIBBLE_VERSION; }

}  // namespace nibble
