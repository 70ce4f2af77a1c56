// SPDX-License-Identifier: Apache-2.0
// What a decoder keeps between forward and backward, as the memory that its arena has needed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/decoder.h"
#include "models/param_store.h"
#include "models/registry.h"

namespace nibble {
namespace {

constexpr std::int64_t kTokens = 1024, kSequence = 128, kHidden = 128, kFfn = 512, kBlocks = 2;

/// Wants no number, but has the step be one that is observed.
struct Watcher final : QuantObserver {
  OperandSums* operand(const LinearInfo&, Gemm, Operand, const QuantSpec&) override { return nullptr; }
  DifferenceSums* product(const LinearInfo&, Gemm) override { return nullptr; }
};

/// A model whose micro-batch takes several of an arena's chunks.
class Bench {
 public:
  explicit Bench(const std::string& recipe, const std::string& activation = "swiglu", std::int64_t ffn = kFfn)
      : recipe_(find_recipe(recipe)),
        spec_(make_spec({.blocks = kBlocks,
                         .vocab_size = 64,
                         .hidden = kHidden,
                         .ffn = ffn,
                         .heads = 4,
                         .kv_heads = 4,
                         .head_dim = kHidden / 4,
                         .max_sequence = kSequence,
                         .activation = activation,
                         .rope_theta = 10000})),
        stream_(BackendKind::Cpu, host_, 2),
        arena_(host_),
        params_(host_, parameters(spec_)),
        model_(host_, spec_, params_, DType::BF16) {
    recipe_.first_blocks = recipe_.last_blocks = 0;
    params_.initialise(5);
    params_.refresh_copies(stream_);
  }

  /// The gradients of one micro-batch.
  std::vector<float> train(QuantObserver* observer = nullptr, Recomputation recompute = Recomputation::None) {
    std::vector<std::int32_t> ids(kTokens + 1);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 61);
    std::vector<float> loss(kTokens);
    Context ctx{.stream = stream_,
                .arena = arena_,
                .recipe = recipe_,
                .seq_len = kSequence,
                .sr_seed = 3,
                .first_wgrad = true,
                .recompute = recompute,
                .native = {.fp8 = true}};
    ctx.observer = observer;
    params_.begin_grads();
    model_.train(ctx, View<const std::int32_t>(ids.data(), kTokens),
                 View<const std::int32_t>(ids.data() + 1, kTokens), View<float>(loss.data(), kTokens),
                 1.0f / kTokens);
    return params_.read(params_.all_grads());
  }

  /// Bytes taken at most, in whole allocations; addresses change.
  std::size_t settled() {
    arena_.settle();
    return arena_.reserved();
  }
  const Arena& arena() const { return arena_; }
  const void* first_address() {
    const ArenaScope scope(arena_);
    return arena_.take_bytes(1);
  }

 private:
  Recipe recipe_;
  DecoderSpec spec_;
  HostDevice host_;
  Stream stream_;
  Arena arena_;
  ParamStore params_;
  Decoder model_;
};

/// Of a token in a block the inputs of qkv, up and down go, two bytes an element, and their codes come, and
/// those of attention's output: that one stays, since attention's backward reads it.
TEST(DecoderMemory, AnFp8StepKeepsCodesInPlaceOfTheInputsOfLinears) {
  Bench plain("fp8-current"), observed("fp8-current"), bf16_plain("bf16"), bf16_observed("bf16");
  Watcher watcher;
  EXPECT_EQ(plain.train(), observed.train(&watcher));
  const double with = static_cast<double>(plain.settled()), without = static_cast<double>(observed.settled());
  constexpr double kGone = 2 * (2 * kHidden + kFfn), kCome = 3 * kHidden + kFfn, kFewNumbers = 16384;
  EXPECT_NEAR(without - with, kTokens * kBlocks * (kGone - kCome), kFewNumbers);

  bf16_plain.train();
  bf16_observed.train(&watcher);
  EXPECT_EQ(bf16_plain.settled(), bf16_observed.settled());
}

/// Of a hidden feature of squared ReLU two bytes a block stay, what down multiplies: its backward reads no
/// other. The last block's backward needs two more, in which first its gradient lies and then up's.
TEST(DecoderMemory, SquaredReluKeepsItsOutputAlone) {
  Bench narrow("bf16", "relu2", kFfn), wide("bf16", "relu2", 2 * kFfn);
  narrow.train();
  wide.train();
  const double more = static_cast<double>(wide.settled()) - static_cast<double>(narrow.settled());
  EXPECT_NEAR(more, kTokens * kFfn * (2 * kBlocks + 2), 4096);
}

/// A recorded step holds addresses: those of the first chunk stay when a later step needs more than it.
TEST(DecoderMemory, AnObservedStepTakesWhatItNeedsBesideTheMemoryOfOtherSteps) {
  Bench b("fp8-current");
  Watcher watcher;
  const std::vector<float> expected = b.train();
  const std::size_t before = b.settled();
  const void* const address = b.first_address();
  EXPECT_EQ(b.train(&watcher), expected);
  const std::size_t grown = b.arena().reserved();
  EXPECT_GT(grown, before);
  EXPECT_EQ(b.train(&watcher, Recomputation::Block), expected);
  EXPECT_EQ(b.train(), expected);
  EXPECT_EQ(b.train(&watcher), expected);
  EXPECT_EQ(b.arena().reserved(), grown) << "nothing is allocated once every kind of step was there";
  EXPECT_EQ(b.first_address(), address);
}

}  // namespace
}  // namespace nibble
