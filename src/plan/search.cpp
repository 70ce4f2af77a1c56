// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/planner.h"

namespace nibble {
namespace {

constexpr std::int64_t kTp[] = {1, 2, 4, 8};
constexpr std::int64_t kPp[] = {1, 2, 4, 8, 16};
constexpr std::int64_t kMicro[] = {1, 2, 4, 8, 16, 32, 64};

/// Chunks a stage is cut into: as many as four blocks a chunk allow, up to 5 (what published layouts use).
std::int64_t chunks(std::int64_t blocks, std::int64_t pp) {
  return pp == 1 ? 1 : std::clamp<std::int64_t>(blocks / pp / 4, 1, 5);
}

}  // namespace

std::vector<ParallelLayout> fitting_layouts(const Workload& work, const Hardware& hardware,
                                            const ParallelLayout& base) {
  std::vector<ParallelLayout> found;
  for (const std::int64_t tp : kTp) {
    if (tp > 1 && tp > hardware.nvlink_domain) continue;  // tensor parallelism outside NVLink is no choice
    for (const std::int64_t pp : kPp) {
      for (const bool fsdp : {false, true}) {
        if (fsdp && (pp > 1 || base.gpus == tp)) continue;
        for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
          for (const std::int64_t micro : kMicro) {
            ParallelLayout l = base;
            l.tp = tp;
            l.pp = pp;
            l.vp = chunks(work.blocks, pp);
            l.fsdp = fsdp;
            l.recompute = recompute;
            l.micro_batch = micro;
            if (layout_divides(work, l) && memory_of(work, l, hardware).fits()) found.push_back(l);
          }
        }
      }
    }
  }
  return found;
}

std::optional<ParallelLayout> fastest_layout(const Workload& work, const Hardware& hardware,
                                             const ParallelLayout& base) {
  std::optional<ParallelLayout> best;
  double best_seconds = 0;
  for (const ParallelLayout& l : fitting_layouts(work, hardware, base)) {
    const double seconds = step_time(work, l, hardware).seconds;
    if (best && seconds >= best_seconds) continue;
    best = l;
    best_seconds = seconds;
  }
  return best;
}

std::optional<ParallelLayout> nearest_fitting_layout(const Workload& work, const Hardware& hardware,
                                                     const ParallelLayout& wanted) {
  const std::int64_t most = 64 * wanted.gpus;
  for (ParallelLayout base = wanted; base.gpus <= most; base.gpus *= 2) {
    const std::vector<ParallelLayout> fitting = fitting_layouts(work, hardware, base);
    if (fitting.empty()) continue;
    return *std::min_element(fitting.begin(), fitting.end(),
                             [&](const ParallelLayout& a, const ParallelLayout& b) {
                               return layout_distance(a, wanted) < layout_distance(b, wanted);
                             });
  }
  return std::nullopt;
}

}  // namespace nibble
