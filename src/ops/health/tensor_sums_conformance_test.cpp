// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "ops/conformance.h"
#include "ops/health/tensor_sums.h"

/// Counts and extremes as `ref` has them, sums to the rounding of their order, twice the same bits, merged
/// into what was there; on `cpu` with one and two threads and, where there is one, on the GPU.
namespace nibble {
namespace {

template <class Sums>
bool same_bits(const Sums& a, const Sums& b) {
  // Bits are what is meant, and these structs have no padding.
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
  return std::memcmp(&a, &b, sizeof(Sums)) == 0;
}
/// Its last four bytes are nobody's.
template <>
bool same_bits(const LogitSums& a, const LogitSums& b) {
  return a.queries == b.queries && a.largest == b.largest;
}

/// Runs an op on a backend, whose `out` starts with `before`; `make` gets memory that the backend reads.
template <class Sums, class Args>
Sums result(Stream& stream, const Op<Args>& op, const std::function<Args(conformance::Case&)>& make,
            DType storage, std::int64_t padding, const Sums& before) {
  conformance::Case c(stream.device(), 7, storage, padding);
  Args args = make(c);
  HostBuffer out(stream.device(), sizeof(Sums));
  *out.as<Sums>() = before;
  args.out = out.as<Sums>();
  op(stream, args);
  stream.device().synchronize();
  return *out.as<Sums>();
}

template <class Sums, class Args>
void compare(const Op<Args>& op, const std::function<Args(conformance::Case&)>& make, const Sums& before,
             const std::function<void(const Sums&, const Sums&)>& expect_close) {
  HostDevice host;
  Stream ref(BackendKind::Ref, host, 1), one(BackendKind::Cpu, host, 1), two(BackendKind::Cpu, host, 2);
  for (const DType storage : {DType::F32, DType::BF16})
    for (const std::int64_t padding : {0, 5}) {
      const auto run = [&](Stream& s) { return result<Sums, Args>(s, op, make, storage, padding, before); };
      const Sums expected = run(ref), got = run(one), again = run(two);
      expect_close(expected, got);
      EXPECT_TRUE(same_bits(got, again)) << op.name << ": threads";
      if (conformance::gpu() == nullptr) continue;
      Stream gpu(BackendKind::Cuda, *conformance::gpu(), 1);
      const Sums first = run(gpu), second = run(gpu);
      expect_close(expected, first);
      EXPECT_TRUE(same_bits(first, second)) << op.name << ": cuda, twice";
    }
}

constexpr double kSum = 1e-12;
const std::pair<std::int64_t, std::int64_t> kShapes[] = {{1, 1}, {33, 48}, {200, 177}};

TEST(Conformance, measure_tensor) {
  TensorSums before;
  before.add(0.0f);
  before.add(-0.001f);
  for (const auto& [rows, cols] : kShapes)
    for (const bool transposed : {false, true})
      compare<TensorSums, MeasureTensor>(
          measure_tensor,
          [&, r = rows, k = cols](conformance::Case& c) {
            const ConstRealView x = c.input(r, k);
            return MeasureTensor{transposed ? x.transposed() : x, nullptr};
          },
          before,
          [](const TensorSums& a, const TensorSums& b) {
            EXPECT_EQ(a.count, b.count);
            EXPECT_EQ(a.nonzero, b.nonzero);
            EXPECT_EQ(a.amax, b.amax);
            EXPECT_EQ(a.amin, b.amin);
            EXPECT_NEAR(a.sum, b.sum, kSum * a.sum_abs);
            EXPECT_NEAR(a.sum_abs, b.sum_abs, kSum * a.sum_abs);
            EXPECT_NEAR(a.sum_x2, b.sum_x2, kSum * a.sum_x2);
          });
}

TEST(Conformance, measure_difference) {
  DifferenceSums before;
  before.add(1.0f, 2.0f);
  for (const auto& [rows, cols] : kShapes)
    compare<DifferenceSums, MeasureDifference>(
        measure_difference,
        [r = rows, k = cols](conformance::Case& c) {
          const View<const float> a = c.input_f32(1, 0, r, k), b = c.input_f32(1, 0, r, k);
          return MeasureDifference{a, b, nullptr};
        },
        before,
        [](const DifferenceSums& a, const DifferenceSums& b) {
          EXPECT_EQ(a.count, b.count);
          EXPECT_EQ(a.changed, b.changed);
          EXPECT_NEAR(a.sum_e2, b.sum_e2, kSum * a.sum_e2);
          EXPECT_NEAR(a.sum_abs_e, b.sum_abs_e, kSum * a.sum_abs_e);
          EXPECT_NEAR(a.sum_b2, b.sum_b2, kSum * a.sum_b2);
        });
}

TEST(Conformance, measure_logits) {
  struct Shape {
    std::int64_t sequences, seq_len, heads, groups, width, every;
  };
  for (const Shape& s : {Shape{1, 1, 1, 1, 8, 1}, {2, 33, 4, 2, 16, 1}, {3, 40, 6, 2, 37, 8}})
    compare<LogitSums, MeasureLogits>(
        measure_logits,
        [&](conformance::Case& c) {
          const ConstRealView q = c.input(s.sequences * s.seq_len, s.heads, s.width),
                              k = c.input(s.sequences * s.seq_len, s.groups, s.width);
          return MeasureLogits{q, k, s.seq_len, s.every, 0.25f, nullptr};
        },
        {},
        [](const LogitSums& a, const LogitSums& b) {
          EXPECT_EQ(a.queries, b.queries);
          EXPECT_NEAR(a.largest, b.largest, 1e-4);
        });
}

TEST(ObservedStretch, ReachesAllOfThemWhateverTheInterval) {
  for (const std::int64_t every : {1, 7, 10, 64, 100}) {
    std::vector<int> met(8);
    for (std::int64_t i = 1; i <= 64; ++i)
      ++met[static_cast<std::size_t>(observed_stretch(i * every - 1, 8))];
    for (const int n : met) EXPECT_GE(n, 4) << every;
  }
  EXPECT_EQ(observed_stretch(5, 1), 0);
  EXPECT_EQ(observed_stretch(5, 0), 0);
}

TEST(TensorSums, RatiosAreTakenLast) {
  TensorSums s;
  for (const float x : {0.0f, 3.0f, -4.0f, 0.0f}) s.add(x);
  EXPECT_EQ(s.zero_share(), 0.5);
  EXPECT_DOUBLE_EQ(s.rms(), 2.5);
  EXPECT_DOUBLE_EQ(s.crest(), 1.6);
  EXPECT_EQ(s.amin, 3.0f);
  DifferenceSums d;
  d.add(1.0f, 1.0f);
  d.add(2.0f, 4.0f);
  EXPECT_DOUBLE_EQ(d.relative_error(), std::sqrt(4.0 / 17.0));
  EXPECT_EQ(d.changed_share(), 0.5);
  LogitSums l;
  l.add(-3.0f);
  EXPECT_EQ(l.largest, -3.0f) << "the largest may be negative";
}

}  // namespace
}  // namespace nibble
