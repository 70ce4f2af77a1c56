// SPDX-License-Identifier: Apache-2.0
// The amax beside every BF16 copy is at all times the one that a quantiser of the copy would find: after the
// start, after each step, after a halted one, and after weights came from elsewhere. That a step that takes
// it has the bytes of one that does not is the law of HandedAmaxConformance.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "base/error.h"
#include "models/parameters.h"
#include "ops/quantize/quantize.h"
#include "quant/amax.h"
#include "train/learner.h"
#include "train/tiny_model.h"

namespace nibble {
namespace {

constexpr std::int64_t kSequence = 32, kVocab = 96;

Recipe in_all_blocks(Recipe recipe) {
  recipe.first_blocks = recipe.last_blocks = 0;
  return recipe;
}

class Bench {
 public:
  Bench(BackendKind backend, Device& device, const char* recipe, std::int64_t inject_nan_step = -1)
      : stream(backend, device, 2),
        learner(stream, {.model = tiny_model(2, kVocab, kSequence),
                         .recipe = in_all_blocks(find_recipe(recipe)),
                         .optimizer = {},
                         .schedule = {.peak = 0.1, .steps = 10},
                         .sequence = kSequence,
                         .batch = 2,
                         .micro_batch = 1,
                         .seed = 5,
                         .sr_seed = 6,
                         .inject_nan_step = inject_nan_step}) {}

  void step() {
    std::vector<std::int32_t> ids(2 * kSequence + 1);
    for (auto& id : ids) id = static_cast<std::int32_t>(random_() % kVocab);
    learner.step(View<const std::int32_t>(ids.data(), 2 * kSequence),
                 View<const std::int32_t>(ids.data() + 1, 2 * kSequence), nullptr);
  }

  /// Of every entry with a copy; each is held to its copy first.
  std::vector<float> amaxes() {
    const ParamStore& params = learner.params();
    const std::vector<float> all = on_host(learner.device(), params.all_amaxes());
    std::vector<float> kept;
    for (std::size_t i = 0; i < params.entries().size(); ++i) {
      const ParamStore::Entry& e = params.entries()[i];
      EXPECT_EQ(params.param(e.info.name, DType::BF16).amax,
                e.has_copy ? params.all_amaxes().data() + i : nullptr);
      EXPECT_EQ(params.param(e.info.name, DType::F32).amax, nullptr) << "that of another matrix";
      if (!e.has_copy) continue;
      float largest = 0;
      for (const bf16 w : on_host(learner.device(), params.copy(e)))
        largest = amax_keeping_nan(largest, w.value());
      EXPECT_EQ(float_bits(all[i]), float_bits(largest)) << e.info.name;
      kept.push_back(all[i]);
    }
    expect_what_quantisers_find();
    return kept;
  }

  Stream stream;
  Learner learner;

 private:
  void expect_what_quantisers_find() {
    const LearnerConfig& config = learner.config();
    for (const LinearInfo& linear : linears(config.model)) {
      const Param weight = learner.params().param(linear.name + ".weight", DType::BF16);
      const ResolvedLinear plan = resolve(config.recipe, linear, learner.steps_done());
      for (const Gemm gemm : {Gemm::Fprop, Gemm::Dgrad}) {
        const ArenaScope scope(stream.scratch());
        float* const numbers = stream.scratch().take<float>(2).data();
        quantize(stream, {.x_RC = weight.compute,
                          .spec = plan.gemm(gemm).b,
                          .transpose = gemm == Gemm::Dgrad,
                          .amax = numbers,
                          .scale = numbers + 1});
        EXPECT_EQ(read(learner.device(), numbers), read(learner.device(), weight.amax)) << linear.name;
      }
    }
  }

  std::mt19937 random_{1};
};

template <class F>
void on_every_backend_and_recipe(F&& f) {
  for (const BackendKind backend : {BackendKind::Ref, BackendKind::Cpu, BackendKind::Cuda}) {
    std::unique_ptr<Device> device;
    try {
      device = open_device(backend);
    } catch (const Error&) {
      continue;  // no GPU here: the test of label "gpu" that asks for one fails instead
    }
    for (const char* recipe : {"nvfp4", "fp8-current"}) {
      SCOPED_TRACE(fmt::format("{} on {}", recipe, name_of(backend)));
      f(backend, *device, recipe);
    }
  }
}

/// On a GPU the second step is recorded, and the third and fourth issue the record.
TEST(WeightAmaxConformance, IsThatOfTheCopyFromTheStartAndAfterEveryStep) {
  on_every_backend_and_recipe([](BackendKind backend, Device& device, const char* recipe) {
    Bench b(backend, device, recipe);
    std::vector<float> before = b.amaxes();
    for (int step = 0; step < 4; ++step) {
      b.step();
      const std::vector<float> after = b.amaxes();
      EXPECT_NE(after, before) << "the step moved no weight far enough to show";
      before = after;
    }
  });
}

TEST(WeightAmaxConformance, IsThatOfWeightsThatCameFromElsewhere) {
  on_every_backend_and_recipe([](BackendKind backend, Device& device, const char* recipe) {
    Bench b(backend, device, recipe);
    b.step();
    const std::vector<float> before = b.amaxes();
    const ParamStore& params = b.learner.params();
    for (const ParamStore::Entry& e : params.entries()) {
      std::vector<float> w = params.read(params.master(e));
      for (float& x : w) x *= 0.5f;
      params.write(params.master(e), w);
    }
    b.learner.restored(1);
    const std::vector<float> after = b.amaxes();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], 0.5f * before[i]);
    b.step();
    b.amaxes();
  });
}

TEST(WeightAmaxConformance, ThereIsNoneWhereNothingIsQuantised) {
  HostDevice device;
  Bench b(BackendKind::Cpu, device, "bf16");
  const ParamStore& params = b.learner.params();
  EXPECT_TRUE(params.all_amaxes().empty() && params.starts().empty());
  for (const ParamStore::Entry& e : params.entries())
    EXPECT_EQ(params.param(e.info.name, DType::BF16).amax, nullptr) << e.info.name;
  b.step();
}

TEST(WeightAmaxConformance, IsThatOfTheWeightsThatAHaltedStepLeft) {
  on_every_backend_and_recipe([](BackendKind backend, Device& device, const char* recipe) {
    Bench b(backend, device, recipe, 2);
    b.step();
    b.step();
    const std::vector<float> before = b.amaxes();
    EXPECT_THROW(b.step(), NonFiniteStep);
    EXPECT_EQ(b.amaxes(), before);
  });
}

}  // namespace
}  // namespace nibble
