// SPDX-License-Identifier: Apache-2.0
#include "plan/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/error.h"

namespace nibble {
namespace {

/// Why it does not divide; empty when it does.
std::string fault(const Workload& w, const ParallelLayout& l) {
  if (l.gpus < 1 || l.tp < 1 || l.pp < 1 || l.cp < 1 || l.vp < 1 || l.micro_batch < 1 || l.global_batch < 1)
    return "every size must be positive";
  if (l.gpus % (l.tp * l.pp * l.cp) != 0)
    return fmt::format("{} GPUs are not a multiple of tp {} x pp {} x cp {}", l.gpus, l.tp, l.pp, l.cp);
  if (w.heads > 0 && w.heads % l.tp != 0)
    return fmt::format("{} heads do not divide by tp = {}", w.heads, l.tp);
  if (w.ffn_quantum > 0 && w.ffn_quantum % l.tp != 0)
    return fmt::format("the MLP's width {} does not divide by tp = {}", w.ffn_quantum, l.tp);
  if (l.pp > w.blocks) return fmt::format("{} blocks cannot make {} pipeline stages", w.blocks, l.pp);
  if (l.sequence % (2 * l.cp) != 0 && l.cp > 1)
    return fmt::format("a sequence of {} does not divide by 2 x cp = {}", l.sequence, 2 * l.cp);
  if (l.global_batch % (l.dp() * l.micro_batch) != 0)
    return fmt::format("a global batch of {} sequences does not divide by dp {} x micro-batch {}",
                       l.global_batch, l.dp(), l.micro_batch);
  return "";
}

std::optional<ParallelLayout> nearest(const Workload& w, const ParallelLayout& wanted) {
  std::optional<ParallelLayout> best;
  const auto offer = [&](ParallelLayout l) {
    const std::int64_t group = l.tp * l.pp * l.cp;
    for (const std::int64_t gpus : {l.gpus / group * group, (l.gpus / group + 1) * group}) {
      l.gpus = gpus;
      if (gpus == 0) continue;
      const std::int64_t quantum = l.dp() * l.micro_batch;
      l.global_batch = std::max<std::int64_t>(1, (wanted.global_batch + quantum / 2) / quantum) * quantum;
      if (fault(w, l).empty() && (!best || layout_distance(l, wanted) < layout_distance(*best, wanted)))
        best = l;
    }
  };
  for (const std::int64_t tp :
       {wanted.tp, std::int64_t{1}, std::int64_t{2}, std::int64_t{4}, std::int64_t{8}}) {
    for (const std::int64_t pp : {wanted.pp, w.blocks, std::int64_t{1}, std::int64_t{2}, std::int64_t{4},
                                  std::int64_t{8}, std::int64_t{16}}) {
      for (const std::int64_t cp : {wanted.cp, std::int64_t{1}}) {
        ParallelLayout l = wanted;
        l.tp = std::max<std::int64_t>(1, tp);
        l.pp = std::max<std::int64_t>(1, pp);
        l.cp = std::max<std::int64_t>(1, cp);
        l.vp = l.pp == 1 ? 1 : std::max<std::int64_t>(1, l.vp);
        l.micro_batch = std::max<std::int64_t>(1, l.micro_batch);
        l.gpus = std::max<std::int64_t>(1, l.gpus);
        offer(l);
      }
    }
  }
  return best;
}

}  // namespace

std::string_view name(Recompute r) {
  constexpr std::string_view kNames[] = {"none", "selective", "full"};
  return kNames[static_cast<int>(r)];
}

Recompute recompute_from_name(std::string_view wanted) {
  for (const Recompute r : {Recompute::None, Recompute::Selective, Recompute::Full})
    if (name(r) == wanted) return r;
  fail_usage("there is no recomputation level \"{}\"; it is none, selective or full", wanted);
}

std::string ParallelLayout::text() const {
  std::string out = fmt::format("{} GPUs = dp {} x tp {} x pp {} x cp {}{}, ", gpus, dp(), tp, pp, cp,
                                fsdp ? ", weights sharded over dp" : "");
  out += fmt::format("micro-batch {} x {}, global batch {} ({} micro-batches a step), recomputation {}",
                     micro_batch, sequence, global_batch, micro_batches(), name(recompute));
  return out;
}

double layout_distance(const ParallelLayout& a, const ParallelLayout& b) {
  const auto ratio = [](std::int64_t x, std::int64_t y) {
    return std::abs(std::log2(static_cast<double>(x) / static_cast<double>(y)));
  };
  const int recompute = std::abs(static_cast<int>(a.recompute) - static_cast<int>(b.recompute));
  return 3 * ratio(a.gpus, b.gpus) + 2 * ratio(a.tp, b.tp) + 2 * ratio(a.pp, b.pp) + 2 * ratio(a.cp, b.cp) +
         ratio(a.micro_batch, b.micro_batch) + ratio(a.global_batch, b.global_batch) +
         (a.fsdp == b.fsdp ? 0 : 2) + 1.5 * recompute;
}

bool layout_divides(const Workload& work, const ParallelLayout& layout) {
  return fault(work, layout).empty();
}

void check_layout(const Workload& work, const ParallelLayout& layout) {
  const std::string why = fault(work, layout);
  if (why.empty()) return;
  const auto near = nearest(work, layout);
  check_usage(near.has_value(), "{}: {}", work.model, why);
  fail_usage("{}: {}; the nearest layout that divides is {}", work.model, why, near->text());
}

}  // namespace nibble
