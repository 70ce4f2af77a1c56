// SPDX-License-Identifier: Apache-2.0
#include "eval/score.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace nibble {
namespace {

constexpr std::int64_t kLengthStep = 32;

std::int64_t inputs(const Request& r) { return static_cast<std::int64_t>(r.ids.size()) - 1; }

std::int64_t padded_length(const Request& r, const Batching& batching) {
  if (batching.alone) return inputs(r);
  return std::min(batching.max_length, (inputs(r) + kLengthStep - 1) / kLengthStep * kLengthStep);
}

View<const std::int32_t> view_of(const std::vector<std::int32_t>& values) {
  return View<const std::int32_t>(values.data(), static_cast<std::int64_t>(values.size()));
}

Score score_of(const Request& r, const TokenScores& tokens, std::int64_t row_begin) {
  Score score{0, true};
  for (std::int64_t i = inputs(r) - r.scored; i < inputs(r); ++i) {
    const auto at = static_cast<std::size_t>(row_begin + i);
    score.log_likelihood -= tokens.loss[at];
    score.greedy = score.greedy && tokens.greedy[at] == 1.0f;
  }
  if (!std::isfinite(score.log_likelihood))
    throw Error(
        ErrorKind::NonFinite,
        "a log-likelihood is not finite: the model's weights or its logits hold a NaN or an infinity");
  return score;
}

}  // namespace

std::vector<Score> score(const std::vector<Request>& requests, const Forward& forward,
                         const Batching& batching) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return inputs(requests[a]) > inputs(requests[b]); });
  std::vector<Score> out(requests.size());
  for (std::size_t begin = 0; begin < order.size();) {
    const std::int64_t length = padded_length(requests[order[begin]], batching);
    check(length >= inputs(requests[order[begin]]), "a request has {} tokens, the model takes {}",
          inputs(requests[order[begin]]), batching.max_length);
    const std::int64_t rows = batching.alone ? 1 : std::max<std::int64_t>(1, batching.tokens / length);
    std::size_t end = begin;
    while (end < order.size() && end - begin < static_cast<std::size_t>(rows) &&
           padded_length(requests[order[end]], batching) == length)
      ++end;
    const auto cells = static_cast<std::size_t>(length) * (end - begin);
    std::vector<std::int32_t> ids(cells, 0), targets(cells, -1);
    for (std::size_t i = begin; i < end; ++i) {
      const Request& r = requests[order[i]];
      const std::size_t row = (i - begin) * static_cast<std::size_t>(length);
      std::copy(r.ids.begin(), r.ids.end() - 1, ids.begin() + static_cast<std::ptrdiff_t>(row));
      for (std::int64_t t = inputs(r) - r.scored; t < inputs(r); ++t)
        targets[row + static_cast<std::size_t>(t)] = r.ids[static_cast<std::size_t>(t) + 1];
    }
    const TokenScores tokens = forward(view_of(ids), view_of(targets), length);
    for (std::size_t i = begin; i < end; ++i)
      out[order[i]] = score_of(requests[order[i]], tokens, static_cast<std::int64_t>(i - begin) * length);
    begin = end;
  }
  return out;
}

}  // namespace nibble
