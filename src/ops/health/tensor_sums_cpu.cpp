// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "ops/health/tensor_sums.h"
#include "ops/rows.h"

/// Tiles of rows in parallel, their parts merged in the order of the tiles. The sums are doubles and stay
/// scalar: this runs on a few sampled steps.
namespace nibble::cpu {
namespace {

/// Calls part(sums, begin, end) for every tile of rows and merges the parts into *out.
template <class Sums, class Part>
void merge_tiles(Stream& stream, std::int64_t rows, Sums* out, Part&& part) {
  std::vector<Sums> parts(static_cast<std::size_t>(tiles_of(rows, kTileRows)));
  for_tiles(stream, rows, kTileRows, [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
    part(parts[static_cast<std::size_t>(tile)], begin, end);
  });
  for (const Sums& p : parts) out->merge(p);
}

/// a . b in eight partial sums, which a compiler may keep in one register.
template <class T>
float dot(const float* a, const T* b, std::int64_t width) {
  constexpr std::int64_t kLanes = 8;
  float parts[kLanes] = {};
  std::int64_t d = 0;
  for (; d + kLanes <= width; d += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) parts[l] += a[d + l] * to_float(b[d + l]);
  for (; d < width; ++d) parts[0] += a[d] * to_float(b[d]);
  return ((parts[0] + parts[4]) + (parts[1] + parts[5])) + ((parts[2] + parts[6]) + (parts[3] + parts[7]));
}

/// The largest logit of one query of one head.
template <class T>
float largest_logit(const MeasureLogits& m, View<const T> q_THD, View<const T> k_TGD, std::int64_t t,
                    std::int64_t h, std::vector<float>& query) {
  const std::int64_t width = q_THD.size(2), g = h / (q_THD.size(1) / k_TGD.size(1));
  for (std::int64_t d = 0; d < width; ++d) query[static_cast<std::size_t>(d)] = to_float(q_THD(t, h, d));
  float largest = 0;
  for (std::int64_t s = t - t % m.seq_len; s <= t; ++s) {
    const float logit = m.scale * dot(query.data(), &k_TGD(s, g, 0), width);
    if (s == t - t % m.seq_len || logit > largest) largest = logit;
  }
  return largest;
}

}  // namespace

void run(Stream& stream, const MeasureTensor& m) {
  merge_tiles(stream, m.x_RC.size(0), m.out, [&](TensorSums& sums, std::int64_t begin, std::int64_t end) {
    with_type(m.x_RC, [&](auto x_RC) {
      for (std::int64_t i = begin; i < end; ++i)
        for (std::int64_t j = 0; j < m.x_RC.size(1); ++j) sums.add(to_float(x_RC(i, j)));
    });
  });
}

void run(Stream& stream, const MeasureDifference& m) {
  merge_tiles(stream, m.a_RC.size(0), m.out, [&](DifferenceSums& sums, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t j = 0; j < m.a_RC.size(1); ++j) sums.add(m.a_RC(i, j), m.b_RC(i, j));
  });
}

void run(Stream& stream, const MeasureLogits& m) {
  const std::int64_t queries_a_sequence = m.seq_len / m.every;
  const std::int64_t queries = m.q_THD.size(0) / m.seq_len * queries_a_sequence;
  with_type(m.q_THD, [&](auto q_THD) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(q_THD.data())>>;
    const View<const T> k_TGD = m.k_TGD.as<T>();
    merge_tiles(stream, queries, m.out, [&](LogitSums& sums, std::int64_t begin, std::int64_t end) {
      std::vector<float> query(static_cast<std::size_t>(m.q_THD.size(2)));
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t t =
            i / queries_a_sequence * m.seq_len + (i % queries_a_sequence + 1) * m.every - 1;
        for (std::int64_t h = 0; h < m.q_THD.size(1); ++h)
          sums.add(largest_logit<T>(m, q_THD, k_TGD, t, h, query));
      }
    });
  });
}

}  // namespace nibble::cpu
