// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "ops/op.h"

/// Sums about tensors that telemetry takes during a step. Each op MERGES what it finds into *out, which lies
/// in the backend's memory, so that nobody waits for it; memory of zeros is an empty sum. Counts and extremes
/// are the same on every backend, sums in double agree to the rounding of their order and do not depend on
/// the number of threads. No op draws a random number or writes to its input.
namespace nibble {

/// The smaller of two magnitudes, where 0 stands for none.
NIBBLE_HD float smaller_magnitude(float a, float b) { return a == 0 || (b != 0 && b < a) ? b : a; }
NIBBLE_HD float larger_magnitude(float a, float b) { return b > a ? b : a; }

/// Of one tensor.
struct TensorSums {
  std::int64_t count = 0;    ///< elements
  std::int64_t nonzero = 0;  ///< of them not zero
  double sum = 0, sum_abs = 0, sum_x2 = 0;
  float amax = 0;
  float amin = 0;  ///< smallest magnitude that is not zero; 0: none

  NIBBLE_HD void add(float x) {
    const float size = x < 0 ? -x : x;
    const double wide = x;
    count += 1;
    nonzero += x != 0 ? 1 : 0;
    sum += wide;
    sum_abs += size;
    sum_x2 += wide * wide;
    amax = larger_magnitude(amax, size);
    amin = smaller_magnitude(amin, size);
  }
  NIBBLE_HD void merge(const TensorSums& o) {
    count += o.count;
    nonzero += o.nonzero;
    sum += o.sum;
    sum_abs += o.sum_abs;
    sum_x2 += o.sum_x2;
    amax = larger_magnitude(amax, o.amax);
    amin = smaller_magnitude(amin, o.amin);
  }
  double zero_share() const;  ///< exact zeros / count; 0 of nothing
  double rms() const;         ///< sqrt(sum_x2 / count)
  double deviation() const;   ///< sqrt(E x^2 - (E x)^2)
  double crest() const;       ///< amax / rms; 0 of nothing
};

/// Of a tensor a against a reference b of the same shape.
struct DifferenceSums {
  std::int64_t count = 0, changed = 0;  ///< elements; of them a != b
  double sum_e2 = 0, sum_abs_e = 0;     ///< of (a - b)^2, |a - b|
  double sum_b2 = 0;

  NIBBLE_HD void add(float a, float b) {
    const double wide = b, e = static_cast<double>(a) - wide;
    count += 1;
    changed += a != b ? 1 : 0;
    sum_e2 += e * e;
    sum_abs_e += e < 0 ? -e : e;
    sum_b2 += wide * wide;
  }
  NIBBLE_HD void merge(const DifferenceSums& o) {
    count += o.count;
    changed += o.changed;
    sum_e2 += o.sum_e2;
    sum_abs_e += o.sum_abs_e;
    sum_b2 += o.sum_b2;
  }
  double relative_error() const;  ///< ||a - b|| / ||b||, Frobenius; 0 where b is zero
  double changed_share() const;
};

/// Of attention logits.
struct LogitSums {
  std::int64_t queries = 0;  ///< query x head that were looked at; 0: `largest` says nothing
  float largest = 0;

  NIBBLE_HD void add(float logit) {
    largest = queries == 0 || logit > largest ? logit : largest;
    queries += 1;
  }
  NIBBLE_HD void merge(const LogitSums& o) {
    if (o.queries == 0) return;
    largest = queries == 0 || o.largest > largest ? o.largest : largest;
    queries += o.queries;
  }
};

/// Which of `stretches` equal stretches of a tensor an observed step looks at: the golden ratio's fractions,
/// which spread over all of them whatever the interval between observed steps.
constexpr std::int64_t observed_stretch(std::int64_t step, std::int64_t stretches) {
  if (stretches <= 1) return 0;
  const std::uint32_t fraction = static_cast<std::uint32_t>(step) * 2654435769u;
  return static_cast<std::int64_t>((std::uint64_t{fraction} * static_cast<std::uint64_t>(stretches)) >> 32);
}

/// Any matrix view, transposed ones too.
struct MeasureTensor {
  ConstRealView x_RC;
  TensorSums* out = nullptr;
};

/// Two FP32 matrices of one shape, rows contiguous.
struct MeasureDifference {
  View<const float> a_RC, b_RC;
  DifferenceSums* out = nullptr;
};

/// The largest causal logit  scale q[t,h] . k[s,g],  s <= t of the same sequence,  g = h / (H / G),  over the
/// queries whose position p in their sequence has (p + 1) % every == 0, in every head. The products are added
/// in FP32 in an order of the backend's: within 1e-5 of the sum of their magnitudes.
struct MeasureLogits {
  ConstRealView q_THD, k_TGD;  ///< only the last axis is contiguous
  std::int64_t seq_len = 0;
  std::int64_t every = 1;  ///< at most seq_len
  float scale = 1;
  LogitSums* out = nullptr;
};

NIBBLE_OP(MeasureTensor, measure_tensor)
NIBBLE_OP(MeasureDifference, measure_difference)
NIBBLE_OP(MeasureLogits, measure_logits)

}  // namespace nibble
