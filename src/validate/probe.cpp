// SPDX-License-Identifier: Apache-2.0
// Measures every linear of a model under a recipe, one at a time, and chooses which to keep.
#include "validate/probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "layers/amax_state.h"
#include "models/decoder.h"
#include "models/parameters.h"
#include "ops/embedding/embedding.h"
#include "ops/loss/cross_entropy.h"

namespace nibble {
namespace {

double flops_of(const LinearInfo& l) { return static_cast<double>(l.n) * static_cast<double>(l.k); }

/// `recipe` for the linears that are not kept, BF16 for those that are; blocks, patterns and switches of its
/// own do not count. It is resolved a linear at a time, so one that keeps all is allowed here.
Recipe with_kept(Recipe recipe, const std::vector<LinearInfo>& linears, const std::vector<bool>& kept) {
  recipe.first_blocks = recipe.last_blocks = 0;
  recipe.attention = {};
  recipe.keep_bf16.clear();
  recipe.switches.clear();
  for (std::size_t i = 0; i < linears.size(); ++i)
    if (kept[i]) recipe.keep_bf16.push_back(linears[i].name);
  return recipe;
}

Recipe in_fp32(Recipe recipe) {
  recipe.base = Format::Fp32;
  recipe.residual = Format::Fp32;
  recipe.residual_gradient = Format::Fp32;
  return recipe;
}

std::vector<bool> all_but(std::size_t count, std::size_t one) {
  std::vector<bool> kept(count, true);
  kept[one] = false;
  return kept;
}

std::vector<bool> only(std::size_t count, std::size_t one) {
  std::vector<bool> kept(count, false);
  kept[one] = true;
  return kept;
}

/// What the GEMMs of one linear report, added up over the batches in the backend's memory.
class OneLinear final : public QuantObserver {
 public:
  OneLinear(Device& device, const LinearInfo& linear)
      : device_(&device), position_(linear.position), sums_(device, sizeof(Sums)) {
    device.zero(sums_.data(), sums_.bytes());
  }

  OperandSums* operand(const LinearInfo& linear, Gemm gemm, Operand operand, const QuantSpec&) override {
    if (linear.position != position_) return nullptr;
    return &sums_.as<Sums>()->operands[static_cast<int>(gemm)][static_cast<int>(operand)];
  }
  DifferenceSums* product(const LinearInfo& linear, Gemm gemm) override {
    if (linear.position != position_) return nullptr;
    return &sums_.as<Sums>()->products[static_cast<int>(gemm)];
  }

  struct Sums {
    OperandSums operands[3][2];
    DifferenceSums products[3];
  };
  Sums read() const {
    Sums out;
    device_->copy_to_host(&out, sums_.data(), sizeof out);
    return out;
  }

 private:
  Device* device_;
  int position_;
  Buffer sums_;
};

/// Forward and backward passes of the learner's weights under any recipe.
class Bench {
 public:
  Bench(Learner& learner, Stream& stream, const std::vector<ProbeBatch>& batches)
      : learner_(learner),
        stream_(stream),
        batches_(batches),
        bf16_(stream.device(), learner.config().model, learner.params(), DType::BF16),
        fp32_(stream.device(), learner.config().model, learner.params(), DType::F32),
        arena_(stream.device()) {}

  /// Mean loss over every second batch from `first` on, in nats a token.
  double loss(const Recipe& recipe, std::size_t first) {
    double sum = 0;
    std::int64_t tokens = 0;
    for (std::size_t b = first; b < batches_.size(); b += 2) {
      sum += pass(bf16_, recipe, b, Pass::Forward, nullptr);
      tokens += static_cast<std::int64_t>(batches_[b].ids.size());
    }
    return sum / static_cast<double>(tokens);
  }

  /// Gradient of the mean loss over every second batch from `first` on.
  std::vector<float> gradient(const Recipe& recipe, std::size_t first, QuantObserver* observer) {
    backward(bf16_, recipe, first, observer);
    return learner_.params().read(learner_.params().all_grads());
  }

  void observe_in_fp32(const Recipe& recipe, std::size_t first, QuantObserver& observer) {
    backward(fp32_, recipe, first, &observer);
  }

 private:
  enum class Pass { Forward, FirstBackward, Backward };

  void backward(Decoder& model, const Recipe& recipe, std::size_t first, QuantObserver* observer) {
    learner_.params().begin_grads();
    for (std::size_t b = first; b < batches_.size(); b += 2)
      pass(model, recipe, b, b == first ? Pass::FirstBackward : Pass::Backward, observer);
  }

  double pass(Decoder& model, const Recipe& recipe, std::size_t index, Pass kind, QuantObserver* observer) {
    const ProbeBatch& batch = batches_[index];
    const auto tokens = static_cast<std::int64_t>(batch.ids.size());
    Device& device = stream_.device();
    const ArenaScope scope(arena_);
    const View<std::int32_t> ids = arena_.take<std::int32_t>(tokens),
                             targets = arena_.take<std::int32_t>(tokens);
    const View<float> loss_T = arena_.take<float>(tokens);
    const std::size_t bytes = batch.ids.size() * sizeof(std::int32_t);
    device.copy_from_host(ids.data(), batch.ids.data(), bytes);
    device.copy_from_host(targets.data(), batch.targets.data(), bytes);
    const bool fp32 = recipe.base == Format::Fp32;
    Context ctx{.stream = stream_,
                .arena = arena_,
                .recipe = recipe,
                .activation = storage_of(recipe.base),
                .residual = fp32 ? DType::F32 : storage_of(recipe.residual),
                .residual_gradient = storage_of(recipe.residual_gradient),
                .seq_len = learner_.config().sequence,
                .step = learner_.steps_done(),
                .first_token = static_cast<std::int64_t>(index) * tokens,
                .sr_seed = learner_.config().sr_seed,
                .weights_version = 1,
                .training = kind != Pass::Forward,
                .first_wgrad = kind == Pass::FirstBackward,
                .observer = observer};
    if (kind != Pass::Forward)
      model.train(ctx, ids, targets, loss_T, 1.0f / static_cast<float>(tokens));
    else
      model.evaluate(ctx, ids, targets, loss_T);
    double sum = 0;
    for (const float l : on_host(device, loss_T)) sum += l;
    return sum;
  }

  Learner& learner_;
  Stream& stream_;
  const std::vector<ProbeBatch>& batches_;
  Decoder bf16_, fp32_;
  Arena arena_;
};

double relative_error(const std::vector<float>& a, const std::vector<float>& exact) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double e = static_cast<double>(a[i]) - exact[i];
    error += e * e;
    norm += static_cast<double>(exact[i]) * exact[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : 0;
}

void take_gemms(LayerProbe& layer, const OneLinear& seen, const OneLinear* exact) {
  const OneLinear::Sums sums = seen.read();
  const OneLinear::Sums in_fp32 = exact != nullptr ? exact->read() : OneLinear::Sums{};
  for (std::size_t g = 0; g < 3; ++g) {
    GemmProbe& gemm = layer.gemms[g];
    gemm.quantized = sums.products[g].count > 0;
    gemm.error = sums.products[g].relative_error();
    if (exact != nullptr) gemm.exact_error = in_fp32.products[g].relative_error();
    for (std::size_t o = 0; o < 2; ++o) {
      const QuantStats& s = sums.operands[g][o].quantised;
      if (s.count == 0) continue;
      gemm.flushed[o] = s.flushed_share();
      gemm.cosine[o] = s.cosine();
    }
  }
}

/// The formats need a recipe that this model can run at all, with every linear quantised.
void check_inputs(const Learner& learner, const Recipe& recipe, const std::vector<LinearInfo>& linears,
                  const std::vector<ProbeBatch>& batches, const ProbeOptions& options) {
  check_usage(options.budget >= 0 && options.budget <= 1, "--budget {} is a share of the FLOPs, from 0 to 1",
              options.budget);
  check_usage(quantizes_before_switches(recipe),
              "recipe {} quantises nothing, so there is nothing to probe; name another", recipe.name);
  check_usage(recipe.base == Format::Bf16, "recipe {} is based on FP32; probe measures against BF16",
              recipe.name);
  check_usage(
      !needs_amax_state(recipe),
      "recipe {} scales by amaxes of earlier steps, and a probe makes no steps; name one that scales by the "
      "operand's own amax",
      recipe.name);
  check_usage(batches.size() >= 2, "a probe needs at least two batches, one of them held out; got {}",
              batches.size());
  const LearnerConfig& c = learner.config();
  check_recipe(with_kept(recipe, linears, std::vector<bool>(linears.size(), false)), linears,
               c.micro_batch * c.sequence);
  for (const ProbeBatch& b : batches) {
    check_usage(static_cast<std::int64_t>(b.ids.size()) == c.micro_batch * c.sequence &&
                    b.ids.size() == b.targets.size(),
                "a batch of {} tokens; a micro-batch of this run has {}", b.ids.size(),
                c.micro_batch * c.sequence);
    check_ids(View<const std::int32_t>(b.ids.data(), static_cast<std::int64_t>(b.ids.size())), c.model.vocab);
    check_targets(View<const std::int32_t>(b.targets.data(), static_cast<std::int64_t>(b.targets.size())),
                  c.model.vocab);
  }
}

MapProbe measure_map(Bench& bench, const Recipe& recipe, const std::vector<LinearInfo>& linears,
                     const std::vector<bool>& kept, double loss_bf16,
                     const std::vector<float>& gradient_bf16) {
  MapProbe map;
  double total = 0, share = 0;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    total += flops_of(linears[i]);
    if (!kept[i]) continue;
    share += flops_of(linears[i]);
    map.kept.push_back(linears[i].name);
  }
  const Recipe mapped = with_kept(recipe, linears, kept);
  map.flops_share = share / total;
  map.loss = bench.loss(mapped, 1);
  map.gap = map.loss - loss_bf16;
  map.gradient_error = relative_error(bench.gradient(mapped, 1, nullptr), gradient_bf16);
  return map;
}

}  // namespace

bool Probe::better() const {
  if (options.worth == Worth::Gradient) return proposed.gradient_error < by_position.gradient_error;
  return std::abs(proposed.gap) < std::abs(by_position.gap);
}

std::vector<bool> choose_kept(const std::vector<LayerProbe>& layers, double budget) {
  std::vector<std::size_t> order(layers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return layers[a].worth * layers[b].flops_share > layers[b].worth * layers[a].flops_share;
  });
  // A sum of shares that is the budget but for rounding is the budget.
  double left = budget + 1e-9;
  std::vector<bool> kept(layers.size(), false);
  for (const std::size_t i : order) {
    if (layers[i].worth <= 0 || layers[i].flops_share > left) continue;
    kept[i] = true;
    left -= layers[i].flops_share;
  }
  return kept;
}

std::vector<bool> kept_by_position(const Recipe& recipe, const std::vector<LinearInfo>& linears,
                                   double budget) {
  int first = recipe.first_blocks.value_or(recipe.first), last = recipe.last_blocks.value_or(recipe.last);
  if (first + last == 0) first = 2, last = 8;
  const double share_first = static_cast<double>(first) / (first + last);
  const double total = std::accumulate(linears.begin(), linears.end(), 0.0,
                                       [](double s, const LinearInfo& l) { return s + flops_of(l); });
  std::vector<bool> best(linears.size(), false);
  const int blocks = linears.empty() ? 0 : linears.front().blocks;
  for (int count = 1; count <= blocks; ++count) {
    const int at_start = static_cast<int>(std::lround(count * share_first));
    std::vector<bool> kept(linears.size(), false);
    double flops = 0;
    for (std::size_t i = 0; i < linears.size(); ++i) {
      kept[i] = linears[i].block < at_start || linears[i].block >= blocks - (count - at_start);
      if (kept[i]) flops += flops_of(linears[i]);
    }
    if (flops > (budget + 1e-9) * total) break;
    best = kept;
  }
  return best;
}

Probe probe(Learner& learner, Stream& stream, const Recipe& recipe, const std::vector<ProbeBatch>& batches,
            const ProbeOptions& options) {
  const std::vector<LinearInfo> all = linears(learner.config().model);
  check_inputs(learner, recipe, all, batches, options);
  const Recipe bf16 = find_recipe("bf16");
  Bench bench(learner, stream, batches);
  const std::vector<bool> none(all.size(), false);
  const Recipe everything = with_kept(recipe, all, none);
  Probe p{.recipe = recipe.name, .options = options, .step = learner.steps_done()};
  p.tokens = static_cast<std::int64_t>((batches.size() + 1) / 2 * batches.front().ids.size());
  p.loss_bf16 = bench.loss(bf16, 0);
  p.loss_quantized = bench.loss(everything, 0);
  const std::vector<float> gradient = bench.gradient(bf16, 0, nullptr);
  const double total = std::accumulate(all.begin(), all.end(), 0.0,
                                       [](double s, const LinearInfo& l) { return s + flops_of(l); });
  for (std::size_t i = 0; i < all.size(); ++i) {
    LayerProbe layer{.linear = all[i], .flops_share = flops_of(all[i]) / total};
    const Recipe alone = with_kept(recipe, all, all_but(all.size(), i));
    layer.loss_only = bench.loss(alone, 0) - p.loss_bf16;
    layer.loss_kept = p.loss_quantized - bench.loss(with_kept(recipe, all, only(all.size(), i)), 0);
    OneLinear seen(stream.device(), all[i]), exact(stream.device(), all[i]);
    layer.gradient_error = relative_error(bench.gradient(alone, 0, &seen), gradient);
    if (options.exact) bench.observe_in_fp32(in_fp32(alone), 0, exact);
    take_gemms(layer, seen, options.exact ? &exact : nullptr);
    layer.worth = options.worth == Worth::Loss ? (layer.loss_only + layer.loss_kept) / 2
                                               : layer.gradient_error * layer.gradient_error;
    p.layers.push_back(std::move(layer));
  }
  const std::vector<bool> proposed = choose_kept(p.layers, options.budget);
  for (std::size_t i = 0; i < all.size(); ++i) p.layers[i].kept = proposed[i];
  p.held_out_bf16 = bench.loss(bf16, 1);
  const std::vector<float> held_out = bench.gradient(bf16, 1, nullptr);
  const auto measured = [&](const std::vector<bool>& kept) {
    return measure_map(bench, recipe, all, kept, p.held_out_bf16, held_out);
  };
  p.nothing = measured(none);
  p.by_position = measured(kept_by_position(recipe, all, options.budget));
  p.proposed = measured(proposed);
  return p;
}

}  // namespace nibble
