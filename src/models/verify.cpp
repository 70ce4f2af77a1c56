// SPDX-License-Identifier: Apache-2.0
#include "models/verify.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/safetensors.h"
#include "models/decoder.h"
#include "models/hf_checkpoint.h"
#include "models/parameters.h"

namespace nibble {
namespace {

/// The golden file's tokens: every position but a sequence's last predicts the next token.
struct Tokens {
  std::int64_t sequences = 0, length = 0;
  std::vector<std::int32_t> ids, targets;
};

Tokens read_tokens(const Safetensors& golden, std::int64_t vocab) {
  const SafetensorsEntry& t = golden.at("input_ids");
  check(t.dtype == DType::I64 && t.shape.size() == 2 && t.shape[1] >= 2,
        "{}: input_ids must be I64 [batch, sequence >= 2]", golden.path().string());
  Tokens out{t.shape[0], t.shape[1], {}, {}};
  for (std::int64_t id : t.copy_as<std::int64_t>()) {
    check(id >= 0 && id < vocab, "{}: input_ids holds {}, the model's vocabulary is {}",
          golden.path().string(), id, vocab);
    out.ids.push_back(static_cast<std::int32_t>(id));
  }
  out.targets.assign(out.ids.size(), -1);
  for (std::size_t i = 0; i + 1 < out.ids.size(); ++i)
    if ((i + 1) % static_cast<std::size_t>(out.length) != 0) out.targets[i] = out.ids[i + 1];
  return out;
}

double relative_frobenius(const std::vector<float>& ours, const std::vector<float>& golden) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    const double e = static_cast<double>(ours[i]) - golden[i];
    error += e * e;
    norm += static_cast<double>(golden[i]) * golden[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

void compare_gradients(const Safetensors& golden, const DecoderSpec& spec, const ParamStore& params,
                       VerifyReport& report) {
  for (const HfSlice& s : hf_slices(spec)) {
    const SafetensorsEntry* t = golden.find("grad." + hf_library_name(spec, s.hf_name));
    if (t == nullptr) continue;
    const ParamStore::Entry& e = params.at(s.internal);
    const std::int64_t row = e.info.size() / e.info.shape[0];
    const View<const float> ours = params.grad(e).slice(0, s.row_begin * row, s.rows * row);
    check(t->numel() == ours.numel(), "{}: {} has {} elements, the model's gradient {}",
          golden.path().string(), t->name, t->numel(), ours.numel());
    report.gradients.push_back({s.hf_name, relative_frobenius(params.read(ours), t->copy_as<float>())});
  }
  std::sort(report.gradients.begin(), report.gradients.end(),
            [](const auto& a, const auto& b) { return a.error > b.error; });
}

}  // namespace

VerifyReport verify_model(const std::filesystem::path& model_directory,
                          const std::filesystem::path& golden_path, Stream& stream, const Recipe& recipe) {
  const DecoderSpec spec = read_hf_spec(model_directory);
  const Safetensors golden = Safetensors::open_file(golden_path);
  const Tokens tokens = read_tokens(golden, spec.vocab);
  check(tokens.length <= spec.max_seq, "{}: sequences of {} tokens, the model takes {}", golden_path.string(),
        tokens.length, spec.max_seq);
  const std::int64_t count = tokens.sequences * tokens.length;
  const DType type = storage_of(recipe.base);

  check_recipe(recipe, linears(spec), count);
  ParamStore params(stream.device(), parameters(spec));
  load_hf_weights(Safetensors::open_model(model_directory), spec, params);
  params.refresh_copies(stream);
  Decoder model(stream.device(), spec, params, type);
  Arena arena(stream.device());
  Context ctx{.stream = stream,
              .arena = arena,
              .recipe = recipe,
              .activation = type,
              .residual = storage_of(recipe.residual),
              .residual_gradient = storage_of(recipe.residual_gradient),
              .seq_len = tokens.length};

  Device& device = stream.device();
  const ArenaScope scope(arena);
  const View<std::int32_t> ids = arena.take<std::int32_t>(count), targets = arena.take<std::int32_t>(count);
  to_device(device, ids, tokens.ids);
  to_device(device, targets, tokens.targets);
  const View<float> logits_TV = arena.take<float>(count, spec.vocab), loss_T = arena.take<float>(count);
  VerifyReport report;
  report.bounds_apply = recipe.base == Format::Fp32;
  {
    Context forward = ctx;
    model.logits(forward, ids, logits_TV);
  }
  const double predicted = static_cast<double>(count - tokens.sequences);
  model.train(ctx, ids, targets, loss_T, static_cast<float>(1 / predicted));
  const std::vector<float> logits = on_host(device, logits_TV), loss = on_host(device, loss_T);

  const std::vector<float> expected = golden.at("logits").copy_as<float>();
  check(expected.size() == logits.size(), "{}: logits have {} elements, the model gives {}",
        golden_path.string(), expected.size(), logits.size());
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
    const double difference = std::fabs(static_cast<double>(logits[i]) - expected[i]);
    worst = difference > worst || std::isnan(difference) ? difference : worst;
  }
  report.logit_error = worst / largest;
  for (float l : loss) report.loss += l / predicted;
  report.golden_loss = golden.at("loss").copy_as<float>().at(0);
  report.loss_error = std::fabs(report.loss - report.golden_loss) / std::fabs(report.golden_loss);
  compare_gradients(golden, spec, params, report);
  return report;
}

}  // namespace nibble
