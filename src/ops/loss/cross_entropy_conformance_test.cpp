// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/cross_entropy.h"

#include <algorithm>

#include "ops/conformance.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

// Hopper has a row in a block's shared memory (up to 28000 columns in FP32, 56000 in BF16) or in that of a
// cluster of two, four or eight blocks; older cards read what is beyond one block's twice. With 300 rows a
// GPU comes to a second row while the next one's logits are on their way.
constexpr std::int64_t kShapes[][3] = {
    {1, 1, 1},       {40, 5, 7},      {3, 16, 16},       {70, 300, 320},    {5, 1031, 1031},
    {7, 5000, 5120}, {300, 250, 256}, {1, 32000, 32100}, {3, 51300, 51304}, {1, 61500, 61504}};

CrossEntropy with_gradient(Case& c, std::int64_t T, std::int64_t vocab, std::int64_t V) {
  return {.logits_TV = ConstRealView(c.input_f32(3, 0, T, V)),
          .targets_T = c.ids(-1, static_cast<std::int32_t>(vocab), T),
          .loss_T = c.output_f32("loss", Bound::of(1e-6), T),
          .dlogits_TV = c.output("dlogits", Bound::of(2e-6), T, V),
          .grad_scale = 0.25f,
          .vocab = vocab};
}

TEST(Conformance, cross_entropy) {
  for (auto [T, vocab, V] : kShapes)
    compare<CrossEntropy>(cross_entropy, fmt::format("T={} vocab={} V={}", T, vocab, V),
                          [&](Case& c) { return with_gradient(c, T, vocab, V); });
}

TEST(CrossEntropyConformance, LargeLogitsAndOneThatWins) {
  compare<CrossEntropy>(cross_entropy, "logits of size 1000", [&](Case& c) {
    CrossEntropy op = with_gradient(c, 6, 500, 512);
    op.logits_TV = ConstRealView(c.input_f32(300, -1000, 6, 512));
    return op;
  });
}

TEST(CrossEntropyConformance, LogitsInTheActivationsType) {
  for (auto [T, vocab, V] : kShapes)
    compare<CrossEntropy>(cross_entropy, fmt::format("T={} vocab={} V={}", T, vocab, V), [&](Case& c) {
      CrossEntropy op = with_gradient(c, T, vocab, V);
      op.logits_TV = c.input(T, V);
      return op;
    });
}

TEST(CrossEntropyConformance, InPlaceAndWithoutGradient) {
  for (auto [T, vocab, V] : kShapes) {
    const std::string shape = fmt::format("T={} vocab={} V={}", T, vocab, V);
    compare<CrossEntropy>(cross_entropy, shape + " in place", [&](Case& c) {
      CrossEntropy op = with_gradient(c, T, vocab, V);
      const RealView logits = c.output("logits", Bound::of(2e-6), T, V);
      op.logits_TV = logits;
      op.dlogits_TV = logits;
      return op;
    });
    compare<CrossEntropy>(cross_entropy, shape + " without gradient",
                          [&](Case& c) {
                            CrossEntropy op = with_gradient(c, T, vocab, V);
                            op.dlogits_TV = {};
                            return op;
                          },
                          {.bf16 = false});
  }
}

/// Targets in the first or in the last column of what each of four blocks has of a row; the last one ignored.
void put_at_edges(View<const std::int32_t> targets_T, std::int64_t vocab, std::int64_t V, bool last) {
  constexpr std::int64_t kBlocks = 4, kPack = 8;
  const std::int64_t part = (V / kPack + kBlocks - 1) / kBlocks * kPack;
  for (std::int64_t t = 0; t < targets_T.size(0); ++t) {
    const std::int64_t column = last ? std::min(vocab, part * (t + 1)) - 1 : part * t;
    const_cast<std::int32_t*>(targets_T.data())[t] = t < kBlocks ? static_cast<std::int32_t>(column) : -1;
  }
}

/// Without gaps between rows, which lead to another kernel: 8 elements of either type are whole packs.
TEST(CrossEntropyConformance, LongRowsThatSeveralBlocksShare) {
  struct Shape {
    std::int64_t T, vocab, V;
    bool last;
  };
  for (const Shape& s : {Shape{3, 50257, 50304, false},
                         {5, 58006, 58008, true},
                         {5, 151665, 151936, false},
                         {5, 128253, 128256, true}})
    for (const bool f32 : {false, true}) {
      if (f32 && s.V > 100000) continue;  // takes seconds on the host, and shows nothing more
      compare<CrossEntropy>(cross_entropy,
                            fmt::format("T={} vocab={} V={} FP32 logits={}", s.T, s.vocab, s.V, f32),
                            [&](Case& c) {
                              CrossEntropy op = with_gradient(c, s.T, s.vocab, s.V);
                              if (!f32) op.logits_TV = c.input(s.T, s.V);
                              put_at_edges(op.targets_T, s.vocab, s.V, s.last);
                              return op;
                            },
                            {.strided = false});
    }
}

/// T rows in one call, in place, and each of them in a call of its own: the same bytes.
void expect_same_alone(BackendKind kind, Device& device, DType dtype, std::int64_t T, std::int64_t V) {
  const std::string what = fmt::format("{} {} T={} V={}", name_of(kind), name_of(dtype), T, V);
  Stream stream(kind, device, 1);
  const Layout layout = Layout::contiguous(T, V);
  const std::size_t row_bytes = static_cast<std::size_t>(V) * size_of(dtype);
  const auto rows = static_cast<std::size_t>(T);
  const HostBuffer logits(device, rows * row_bytes), all(device, rows * row_bytes), one(device, row_bytes),
      ids(device, rows * sizeof(std::int32_t)), losses(device, (rows + 1) * sizeof(float));
  Case::fill(RealView(logits.as<void>(), dtype, layout), [](std::int64_t t, std::int64_t v) {
    const auto hash = static_cast<std::uint32_t>(v * 40503 + t * 7919) * 2654435761u;
    return static_cast<float>(1 + t % 7) * (static_cast<float>(hash >> 20) / 2048 - 1);
  });
  std::memcpy(all.as<void>(), logits.as<void>(), rows * row_bytes);
  for (std::int64_t t = 0; t < T; ++t)
    ids.as<std::int32_t>()[t] = t % 5 == 4 ? -1 : static_cast<std::int32_t>(t * 7919 % (V - 3));

  const auto call = [&](void* x, std::int64_t first, std::int64_t count, void* d, float* loss) {
    cross_entropy(stream, {.logits_TV = RealView(x, dtype, Layout::contiguous(count, V)),
                           .targets_T = View<const std::int32_t>(ids.as<std::int32_t>() + first, count),
                           .loss_T = View<float>(loss, count),
                           .dlogits_TV = RealView(d, dtype, Layout::contiguous(count, V)),
                           .vocab = V - 3});
    device.synchronize();
  };
  float* const loss = losses.as<float>();
  call(all.as<void>(), 0, T, all.as<void>(), loss);
  for (std::int64_t t = 0; t < T; ++t) {
    const std::size_t at = static_cast<std::size_t>(t) * row_bytes;
    call(logits.as<char>() + at, t, 1, one.as<void>(), loss + T);
    ASSERT_EQ(loss[t], loss[T]) << what << " row " << t;
    ASSERT_EQ(std::memcmp(all.as<char>() + at, one.as<char>(), row_bytes), 0) << what << " row " << t;
  }
}

/// On a GPU with more rows than clusters: blocks that come to their next rows disturb none that are behind.
TEST(CrossEntropyConformance, ARowIsTheSameAloneAndAmongOthers) {
  HostDevice host;
  for (const BackendKind kind : {BackendKind::Ref, BackendKind::Cpu})
    for (const DType dtype : {DType::F32, DType::BF16}) expect_same_alone(kind, host, dtype, 12, 4000);
  Device* const gpu = conformance::gpu();
  if (gpu == nullptr) return;
  expect_same_alone(BackendKind::Cuda, *gpu, DType::BF16, 600, 32000);
  expect_same_alone(BackendKind::Cuda, *gpu, DType::F32, 500, 50304);
  expect_same_alone(BackendKind::Cuda, *gpu, DType::BF16, 250, 151936);
  expect_same_alone(BackendKind::Cuda, *gpu, DType::BF16, 250, 128256);
  expect_same_alone(BackendKind::Cuda, *gpu, DType::F32, 120, 151936);
}

}  // namespace
}  // namespace nibble
