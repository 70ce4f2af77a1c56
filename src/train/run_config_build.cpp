// SPDX-License-Identifier: Apache-2.0
// From words to the model and the recipes of a run, and the checks that need no data.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "backend/device.h"
#include "base/error.h"
#include "base/nearest.h"
#include "models/hf_names.h"
#include "quant/format_names.h"
#include "telemetry/statistics.h"
#include "train/run_config.h"

namespace nibble {
namespace {

void at_least(const char* key, std::int64_t value, std::int64_t least) {
  check_usage(value >= least, "{} = {} must be at least {}", key, value, least);
}

/// Written so that NaN fails.
void between(const char* key, double value, double low, double high) {
  check_usage(value >= low && value <= high, "{} = {} must lie between {} and {}", key, value, low, high);
}

void one_of(const char* key, const std::string& value, const std::vector<std::string>& words) {
  check_usage(std::find(words.begin(), words.end(), value) != words.end(),
              "{} = \"{}\" is not known{} It is one of {}.", key, value, did_you_mean(value, words, 1),
              fmt::join(words, ", "));
}

void one_of(const char* key, const std::optional<std::string>& value, const std::vector<std::string>& words) {
  if (value) one_of(key, *value, words);
}

/// A name with a path in it would put a run, and what it moves out of the way, somewhere else; a zero byte
/// would cut the name short.
void check_name(const std::string& name) {
  check_usage(!name.empty(), "training.name is empty; it is the folder of the run below training.runs");
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return c != '/' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
  });
  check_usage(plain && name != "." && name != "..",
              "training.name = \"{}\" must be the name of one folder, without path separators or control "
              "characters; training.runs says where that folder lies",
              name);
}

void check_training(const RunConfig& c) {
  at_least("training.steps", c.training.steps, 1);
  at_least("training.batch", c.training.batch, 1);
  at_least("training.sequence", c.training.sequence, 1);
  at_least("training.micro_batch", c.training.micro_batch, 0);
  at_least("training.seed", c.training.seed, 0);
  at_least("training.threads", c.training.threads, 0);
  check_usage(c.training.batch % c.micro_batch() == 0,
              "training.micro_batch = {} must divide training.batch = {}", c.micro_batch(), c.training.batch);
  one_of("training.backend", c.training.backend, {"ref", "cpu", "cuda"});
  backend_from_name(c.training.backend);  // refuses the backends that this binary was built without
  one_of("training.recompute", c.training.recompute, {"none", "light", "block"});
  check_name(c.training.name);
  check_usage(c.parallel.data == 1, "parallel.data = {}: this version trains on one rank", c.parallel.data);
}

void check_optimizer(const RunConfig& c) {
  const double huge = std::numeric_limits<float>::max();
  between("optimizer.lr", c.optimizer.lr, 0, huge);
  between("optimizer.beta1", c.optimizer.beta1, 0, 1 - 1e-9);
  between("optimizer.beta2", c.optimizer.beta2, 0, 1 - 1e-9);
  between("optimizer.eps", c.optimizer.eps, 0, huge);
  between("optimizer.weight_decay", c.optimizer.weight_decay, 0, huge);
  between("optimizer.clip", c.optimizer.clip, 0, huge);
  one_of("schedule.kind", c.schedule.kind, {"wsd", "cosine", "linear", "constant"});
  at_least("schedule.warmup_steps", c.schedule.warmup_steps, 0);
  between("schedule.decay_fraction", c.schedule.decay_fraction, 0, 1);
  between("schedule.final_ratio", c.schedule.final_ratio, 0, 1);
}

void check_precision(const RunConfig& c) {
  find_recipe(c.precision.recipe);
  find_recipe(c.protocol.baseline);
  at_least("precision.sr_seed", c.precision.sr_seed, 0);
  one_of("precision.rht_signs", c.precision.rht_signs, {"fixed", "redrawn", "none"});
  for (const std::string& gemm : c.precision.rht_gemms)
    one_of("precision.rht_gemms", gemm, {"fprop", "dgrad", "wgrad"});
  one_of("precision.profile", c.precision.profile, profile_names());
  one_of("precision.non_finite", c.precision.non_finite, {"detect", "as_te"});
  one_of("precision.residual", c.precision.residual, {"bf16", "fp32"});
  one_of("precision.residual_gradient", c.precision.residual_gradient, {"bf16", "fp32"});
  one_of("precision.logits", c.precision.logits, {"bf16", "fp32"});
  one_of("precision.attention_qk", c.precision.attention_qk, {"bf16", "fp8", "nvfp4", "mxfp8"});
  one_of("precision.attention_pv", c.precision.attention_pv, {"bf16", "fp8", "nvfp4", "mxfp8"});
  one_of("precision.tensor_scale", c.precision.tensor_scale, {"current", "previous", "row", "none"});
  one_of("precision.accumulate", c.precision.accumulate, {"fp32", "truncating"});
  if (c.precision.amax_history) between("precision.amax_history", *c.precision.amax_history, 1, 1 << 20);
  if (c.precision.amax_margin) between("precision.amax_margin", *c.precision.amax_margin, -30, 30);
  for (const OverrideSection& o : c.precision.overrides) {
    one_of("precision.override.gemm", o.gemm, {"fprop", "dgrad", "wgrad"});
    one_of("precision.override.operand", o.operand, {"a", "b"});
    one_of("precision.override.tile", o.tile, {"row", "square"});
    one_of("precision.override.rounding", o.rounding, {"nearest", "stochastic", "stochastic_exact"});
    check_usage(!o.rotation || *o.rotation == 0 || is_rotation_size(*o.rotation),
                "precision.override.rotation = {} must be 0 or a power of two from 2 to 128",
                o.rotation.value_or(0));
    if (o.format) format_from_name(*o.format);
    at_least("precision.override.from_step", o.from_step, 0);
    check_usage(
        !o.until_step || *o.until_step > o.from_step,
        "precision.override.until_step = {} is not above from_step = {}, so the override holds for no "
        "step; until_step is the first step it no longer holds for",
        o.until_step.value_or(0), o.from_step);
  }
}

void check_switches(const RunConfig& c) {
  std::int64_t last = 1;
  for (const SwitchSection& s : c.precision.switches) {
    find_recipe(s.recipe);
    const std::int64_t step = step_of(s.at, c.training.steps, "precision.switch.at");
    check_usage(
        step >= 1 && step < c.training.steps,
        "precision.switch.at = {} is step {} of {}, and a switch comes after the first step and before "
        "the last; give a step from 1 to {}, or choose the recipe of the whole run with "
        "precision.recipe",
        s.at.text, step, c.training.steps, c.training.steps - 1);
    check_usage(step >= last,
                "precision.switch.at = {} is step {}, and the switch before it is at step {}; write the "
                "switches in the order of their steps",
                s.at.text, step, last);
    last = step;
    check_usage(!s.gemms.empty(),
                "precision.switch.gemms is empty, so the switch at {} changes nothing; list some of fprop, "
                "dgrad and wgrad, or leave the key out for all three",
                s.at.text);
    for (const std::string& gemm : s.gemms)
      one_of("precision.switch.gemms", gemm, {"fprop", "dgrad", "wgrad"});
  }
}

void check_telemetry(const TelemetrySection& t) {
  at_least("telemetry.every", t.every, 0);
  for (const std::string& gemm : t.gemms) one_of("telemetry.gemms", gemm, {"fprop", "dgrad", "wgrad"});
  for (const std::string& tensor : t.tensors)
    one_of("telemetry.tensors", tensor, {"x", "w", "dy", "activation", "weight", "gradient"});
  const std::vector<std::string> names = statistic_names();
  for (const std::string& s : t.statistics) one_of("telemetry.statistics", s, names);
  const AlarmRules& a = t.alarms;
  at_least("telemetry.alarms.drift_after", a.drift_after, 0);
  at_least("telemetry.alarms.rise_window", a.rise_window, 1);
  at_least("telemetry.alarms.gradient_steps", a.gradient_steps, 1);
  for (const auto& [key, share] :
       {std::pair{"flushed", a.flushed}, {"scale_max", a.scale_max}, {"scale_zero", a.scale_zero}})
    between((std::string("telemetry.alarms.") + key).c_str(), share, 0, 1);
}

void check_rest(const RunConfig& c) {
  check_usage(c.model.preset.empty() || c.model.path.empty(),
              "model.preset and model.path are both given; a model comes from one of them");
  between("data.validation_fraction", c.data.validation_fraction, 0, 0.9);
  at_least("data.vocab_size", c.data.vocab_size, 257);
  check_usage(!c.data.corpus.empty() || !c.data.files.empty(),
              "[data] names no text: give data.corpus or data.files");
  at_least("checkpoint.every", c.checkpoint.every, 0);
  at_least("checkpoint.keep", c.checkpoint.keep, 1);
  at_least("metrics.progress", c.metrics.progress, 1);
  check_telemetry(c.telemetry);
  at_least("eval.every", c.eval.every, 0);
  at_least("eval.sequences", c.eval.sequences, 1);
  at_least("eval.every_steps", c.eval.every_steps, 0);
  at_least("eval.limit", c.eval.limit, 0);
  at_least("protocol.pairs", c.protocol.pairs, 1);
  at_least("protocol.task_points", c.protocol.task_points, 1);
  between("protocol.limit", c.protocol.limit, 0, 1);
  at_least("ablation.seeds", c.ablation.seeds, 0);
  at_least("faults.inject_nan_step", c.faults.inject_nan_step, -1);
}

RecipeOverride to_override(const OverrideSection& o) {
  RecipeOverride out{.layers = o.layers, .from_step = o.from_step};
  if (o.gemm) out.gemm = *o.gemm == "fprop" ? Gemm::Fprop : *o.gemm == "dgrad" ? Gemm::Dgrad : Gemm::Wgrad;
  if (o.operand) out.operand = *o.operand == "a" ? Operand::A : Operand::B;
  if (o.until_step) out.until_step = *o.until_step;
  if (o.format) out.format = format_from_name(*o.format);
  if (o.tile) out.tile = *o.tile == "row" ? Tile::Row : Tile::Square;
  if (o.rounding) {
    out.rounding = *o.rounding == "nearest"      ? Rounding::NearestEven
                   : *o.rounding == "stochastic" ? Rounding::Stochastic
                                                 : Rounding::StochasticExact;
  }
  if (o.rotation) out.rotation = static_cast<int>(*o.rotation);
  return out;
}

GemmSet to_gemms(const std::vector<std::string>& names) {
  GemmSet gemms{};
  for (const Gemm g : kGemms)
    gemms[static_cast<std::size_t>(g)] = std::find(names.begin(), names.end(), name(g)) != names.end();
  return gemms;
}

SwitchEdit to_switch(const SwitchSection& s, std::int64_t steps) {
  return {.from_step = step_of(s.at, steps, "precision.switch.at"),
          .gemms = to_gemms(s.gemms),
          .recipe = s.recipe};
}

std::optional<int> to_int(const std::optional<std::int64_t>& value) {
  if (!value) return std::nullopt;
  return static_cast<int>(std::clamp<std::int64_t>(*value, -1, std::numeric_limits<int>::max()));
}

/// One of the words that check_precision lets pass.
Format attention_format(const std::string& word) {
  return word == "fp8"     ? Format::Fp8E4M3
         : word == "mxfp8" ? Format::Mxfp8E4M3
         : word == "nvfp4" ? Format::Nvfp4
                           : Format::Bf16;
}

TensorScaling tensor_scaling(const std::string& word) {
  return word == "previous" ? TensorScaling::Previous
         : word == "row"    ? TensorScaling::Row
         : word == "none"   ? TensorScaling::Unit
                            : TensorScaling::Tensor;
}

RecipeEdits to_edits(const RunConfig& c) {
  const PrecisionSection& p = c.precision;
  RecipeEdits edits{.weights_2d = p.weights_2d,
                    .rht = p.rht,
                    .rht_size = to_int(p.rht_size),
                    .sr = p.sr,
                    .sr_exact = p.sr_exact,
                    .sr_bits = to_int(p.sr_bits),
                    .sr_headroom = p.sr_headroom,
                    .bf16_first = to_int(p.bf16_first),
                    .bf16_last = to_int(p.bf16_last),
                    .keep_bf16 = p.keep_bf16,
                    .wgrad_sign_mismatch = c.faults.wgrad_sign_mismatch,
                    .stuck_random_bits = c.faults.stuck_random_bits,
                    .scale_binade_layers = c.faults.scale_binade_layers};
  for (const OverrideSection& o : p.overrides) edits.overrides.push_back(to_override(o));
  for (const SwitchSection& s : p.switches) edits.switches.push_back(to_switch(s, c.training.steps));
  if (!p.rht_gemms.empty()) edits.rht_gemms = to_gemms(p.rht_gemms);
  if (p.rht_signs) {
    edits.rht_signs = *p.rht_signs == "fixed"     ? RotationSigns::Fixed
                      : *p.rht_signs == "redrawn" ? RotationSigns::Redrawn
                                                  : RotationSigns::None;
  }
  if (p.profile) edits.profile = profile_from_name(*p.profile);
  if (p.non_finite) edits.non_finite = *p.non_finite == "detect" ? NonFinite::Detect : NonFinite::AsTe;
  if (p.residual) edits.residual = *p.residual == "bf16" ? Format::Bf16 : Format::Fp32;
  if (p.residual_gradient)
    edits.residual_gradient = *p.residual_gradient == "bf16" ? Format::Bf16 : Format::Fp32;
  if (p.logits) edits.logits = *p.logits == "bf16" ? Format::Bf16 : Format::Fp32;
  if (p.attention_qk) edits.attention_qk = attention_format(*p.attention_qk);
  if (p.attention_pv) edits.attention_pv = attention_format(*p.attention_pv);
  edits.attention_backward = p.attention_backward;
  edits.amax_history = to_int(p.amax_history);
  edits.amax_margin = p.amax_margin ? std::optional(static_cast<int>(*p.amax_margin)) : std::nullopt;
  if (p.tensor_scale) edits.tensor_scaling = tensor_scaling(*p.tensor_scale);
  if (p.accumulate)
    edits.accumulate = *p.accumulate == "fp32" ? Accumulation::Fp32 : Accumulation::Truncating;
  return edits;
}

}  // namespace

std::int64_t step_of(const StepMark& mark, std::int64_t steps, const char* key) {
  std::string_view text = mark.text;
  const bool share = !text.empty() && text.back() == '%';
  if (share) text.remove_suffix(1);
  const bool plain =
      !text.empty() && text.find_first_not_of(share ? "0123456789." : "0123456789") == text.npos;
  const char* end = text.data() + text.size();
  double percent = 0;
  std::int64_t count = 0;
  const auto read =
      share ? std::from_chars(text.data(), end, percent) : std::from_chars(text.data(), end, count);
  check_usage(
      plain && read.ec == std::errc() && read.ptr == end && percent <= 100,
      "{} = \"{}\" is no step; give a count of steps such as 820, or a share of training.steps such as "
      "\"82%\"",
      key, mark.text);
  return share ? std::llround(percent * static_cast<double>(steps) / 100) : count;
}

void check_run_config(const RunConfig& config) {
  check_training(config);
  check_optimizer(config);
  check_precision(config);
  check_switches(config);
  check_rest(config);
}

DecoderSpec model_of(const RunConfig& config) {
  const ModelSection& m = config.model;
  if (m.path.empty()) {
    if (m.preset.empty()) return make_spec(m.fields);
    return make_spec(merged(find_preset(m.preset).fields, m.fields));
  }
  check_usage(
      m.fields == ModelFields{},
      "model.path = \"{}\": the folder's config.json describes the model, so no other key of [model] may be "
      "given",
      m.path);
  const std::filesystem::path file = std::filesystem::path(m.path) / "config.json";
  std::ifstream in(file, std::ios::binary);
  check_usage(in.good(), "model.path: cannot read {}; it must be a Hugging Face folder", file.string());
  std::stringstream text;
  text << in.rdbuf();
  return spec_from_config_json(text.str(), file.string());
}

Recipe candidate_recipe(const RunConfig& config) {
  RecipeEdits edits = to_edits(config);
  const Recipe& named = find_recipe(config.precision.recipe);
  // What the model's source says of it stands in for the scaled counts, never for what the user says.
  // A recipe with counts of its own has them for every model.
  std::optional<int> first = edits.bf16_first, last = edits.bf16_last;
  if (!config.model.preset.empty()) {
    const ModelPreset& preset = find_preset(config.model.preset);
    if (!first) first = preset.bf16_first;
    if (!last) last = preset.bf16_last;
  }
  if (quantizes(named) && named.of_blocks > 0) {
    edits.bf16_first = first;
    edits.bf16_last = last;
  }
  for (SwitchEdit& s : edits.switches) {
    if (find_recipe(s.recipe).of_blocks == 0) continue;
    s.bf16_first = first;
    s.bf16_last = last;
  }
  return edited(named, edits);
}

Recipe baseline_recipe(const RunConfig& config) { return find_recipe(config.protocol.baseline); }

}  // namespace nibble
