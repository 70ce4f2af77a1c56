// SPDX-License-Identifier: Apache-2.0
#include "validate/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "models/parameters.h"
#include "train/run_config.h"
#include "train/tiny_model.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kVocab = 64, kSequence = 32, kMicro = 4;

/// Tokens that follow one another by a rule, with some noise: something to learn.
ProbeBatch batch(std::uint64_t number) {
  ProbeBatch out;
  std::uint32_t state = static_cast<std::uint32_t>(17 + 131 * number);
  const auto draw = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
  for (std::int64_t s = 0; s < kMicro; ++s) {
    auto token = static_cast<std::int32_t>(draw() % kVocab);
    for (std::int64_t t = 0; t < kSequence; ++t) {
      out.ids.push_back(token);
      token = draw() % 8 == 0 ? static_cast<std::int32_t>(draw() % kVocab)
                              : static_cast<std::int32_t>((5 * token + 3) % kVocab);
      out.targets.push_back(token);
    }
  }
  return out;
}

LearnerConfig config() {
  return {.model = tiny_model(3, kVocab, kSequence),
          .recipe = find_recipe("bf16"),
          .optimizer = {},
          .schedule = {.kind = ScheduleKind::Constant, .peak = 5e-3, .steps = 200, .warmup_steps = 5},
          .sequence = kSequence,
          .batch = kMicro,
          .micro_batch = kMicro,
          .seed = 3,
          .sr_seed = 4};
}

View<const std::int32_t> view(const std::vector<std::int32_t>& v) {
  return View<const std::int32_t>(v.data(), static_cast<std::int64_t>(v.size()));
}

/// A trained model that lives on the MLP of its first block, whose outgoing weights cannot bear four bits:
/// every sixteenth channel inside is silent and its outgoing weights are huge. In BF16 they multiply zeros;
/// in four bits they flush the other weights of their blocks.
class Planted {
 public:
  Planted() : stream_(BackendKind::Cpu, host_, 1), learner_(stream_, config()) {
    // Start values that outweigh the embedding, so that what the next blocks read comes from here.
    change("blocks.0.mlp.up.weight",
           [](float w, std::int64_t n, std::int64_t) { return n % 16 == 0 ? 0 : 10 * w; });
    change("blocks.0.mlp.down.weight",
           [](float w, std::int64_t, std::int64_t k) { return k % 16 == 0 ? 300 : 10 * w; });
    learner_.restored(0);
    // A silent channel has no gradient: it stays as it is.
    for (std::uint64_t i = 0; i < 150; ++i) {
      const ProbeBatch b = batch(100 + i);
      learner_.step(view(b.ids), view(b.targets), nullptr);
    }
  }

  Probe probe_it(ProbeOptions options, const char* recipe = "nvfp4") {
    std::vector<ProbeBatch> batches;
    for (std::uint64_t i = 0; i < 4; ++i) batches.push_back(batch(i));
    return probe(learner_, stream_, find_recipe(recipe), batches, options);
  }

 private:
  template <class Edit>
  void change(const std::string& name, Edit edit) {
    ParamStore& params = learner_.params();
    const ParamStore::Entry& e = params.at(name);
    std::vector<float> w = params.read(params.master(e));
    const std::int64_t columns = e.info.shape[1];
    for (std::size_t i = 0; i < w.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      w[i] = edit(w[i], at / columns, at % columns);
    }
    params.write(params.master(e), w);
  }

  HostDevice host_;
  Stream stream_;
  Learner learner_;
};

const LayerProbe& layer(const Probe& p, const std::string& name) {
  const auto it = std::find_if(p.layers.begin(), p.layers.end(),
                               [&](const LayerProbe& l) { return l.linear.name == name; });
  EXPECT_NE(it, p.layers.end()) << name;
  return *it;
}

TEST(Probe, FindsTheLayerThatWasMadeSensitive) {
  Planted model;
  for (const Worth worth : {Worth::Loss, Worth::Gradient}) {
    const Probe p = model.probe_it({.budget = 0.15, .worth = worth, .exact = worth == Worth::Loss});
    const LayerProbe& planted = layer(p, "blocks.0.mlp.down");
    for (const LayerProbe& l : p.layers) {
      if (l.linear.name == planted.linear.name) continue;
      EXPECT_GT(planted.worth, 3 * l.worth) << l.linear.name;
      EXPECT_GT(planted.gemms[0].error, 3 * l.gemms[0].error) << l.linear.name;
      EXPECT_LT(l.gemms[0].flushed[1], 0.5) << l.linear.name;
    }
    EXPECT_GT(planted.gemms[0].flushed[1], 0.9) << "weights beside the huge ones";
    if (p.options.exact) {
      EXPECT_NEAR(planted.gemms[0].exact_error, planted.gemms[0].error, 0.1 * planted.gemms[0].error);
    }
    EXPECT_THAT(p.proposed.kept, ::testing::Contains("blocks.0.mlp.down"));
    EXPECT_LE(p.proposed.flops_share, 0.15 + 1e-9);
    EXPECT_GT(p.nothing.gap, 0.05) << "the plant does not hurt";
    EXPECT_TRUE(p.better()) << probe_text(p);
    EXPECT_LT(std::abs(p.proposed.gap), 0.5 * std::abs(p.by_position.gap)) << probe_text(p);
  }
}

TEST(Probe, ItsLinesAreAConfigurationThatKeepsWhatItProposed) {
  Planted model;
  const Probe p = model.probe_it({.budget = 0.3, .exact = false});
  const RunConfig c = parse_run_config(probe_toml(p), "probe");
  EXPECT_EQ(c.precision.keep_bf16, p.proposed.kept);
  const Recipe r = candidate_recipe(c);
  const auto all = linears(tiny_model(3, kVocab, kSequence));
  EXPECT_NEAR(base_share(r, all, 0).by_flops, p.proposed.flops_share, 1e-12);
  const Json j = probe_json(p);
  EXPECT_EQ(j.at("layers").size(), all.size());
  EXPECT_TRUE(j.at("layers").at(0).at("gemms").at(0).at("exact_error").is_null());
  EXPECT_EQ(j.at("held_out").at("better").get<bool>(), p.better());
  // The same again: nothing of the learner changed.
  EXPECT_EQ(probe_json(model.probe_it({.budget = 0.3, .exact = false})).dump(), j.dump());
}

TEST(Probe, RefusesWhatItCannotMeasure) {
  Planted model;
  const auto refused = [&](const ProbeOptions& o, const char* recipe) -> std::string {
    try {
      model.probe_it(o, recipe);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2) << e.what();
      return e.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused({}, "bf16"), HasSubstr("quantises nothing"));
  EXPECT_THAT(refused({}, "fp8-delayed"), HasSubstr("amaxes of earlier steps"));
  EXPECT_THAT(refused({.budget = 1.5}, "nvfp4"), HasSubstr("budget"));
}

TEST(ChooseKept, TakesTheDearestForTheirFlopsThatFit) {
  std::vector<LayerProbe> layers(4);
  const double shares[] = {0.4, 0.3, 0.2, 0.1}, worths[] = {4, 6, 1, -1};
  for (std::size_t i = 0; i < 4; ++i) layers[i].flops_share = shares[i], layers[i].worth = worths[i];
  EXPECT_THAT(choose_kept(layers, 0.5), ElementsAre(false, true, true, false)) << "20, 10 do not fit, 5 does";
  EXPECT_THAT(choose_kept(layers, 1), ElementsAre(true, true, true, false)) << "what hurts is not kept";
  EXPECT_THAT(choose_kept(layers, 0), ElementsAre(false, false, false, false));
}

TEST(KeptByPosition, FillsTheTwoEndsInTheRecipesProportion) {
  std::vector<LinearInfo> linears;
  for (int b = 0; b < 10; ++b)
    linears.push_back({.name = "l", .kind = "l", .block = b, .blocks = 10, .n = 16, .k = 16, .position = b});
  const auto count = [](const std::vector<bool>& v) { return std::count(v.begin(), v.end(), true); };
  EXPECT_EQ(count(kept_by_position(find_recipe("nvfp4"), linears, 0.2)), 2);
  const std::vector<bool> half = kept_by_position(find_recipe("nvfp4"), linears, 0.5);
  EXPECT_EQ(count(half), 5);
  EXPECT_TRUE(half[0] && half[9] && half[6]) << "one first, four last";
  EXPECT_FALSE(half[1]);
  EXPECT_EQ(count(kept_by_position(find_recipe("nvfp4"), linears, 0.05)), 0);
}

}  // namespace
}  // namespace nibble
