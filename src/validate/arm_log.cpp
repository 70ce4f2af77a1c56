// SPDX-License-Identifier: Apache-2.0
#include "validate/arm_log.h"

#include <map>

#include "base/error.h"

namespace nibble {

std::vector<EvalPoint> points(const std::vector<EvalEvent>& events) {
  std::vector<EvalPoint> out;
  for (const EvalEvent& e : events)
    if (e.step > 0) out.push_back({e.step, e.tokens, e.loss});
  return out;
}

BaselineLosses losses_of(const RunLog& log) {
  BaselineLosses out;
  for (const EvalEvent& e : log.evaluations) out.val[e.step] = e.loss;
  for (const TrainEvent& e : log.train) out.train[e.step] = e.loss;
  return out;
}

void require_paired(const RunLog& reference, const std::string& reference_name, const RunLog& log,
                    const std::string& name) {
  check(reference.header.init == log.header.init,
        "{} and {} did not start from the same bytes ({} and {}): not a paired comparison", reference_name,
        name, reference.header.init, log.header.init);
  std::map<std::int64_t, std::uint64_t> batches;
  for (const TrainEvent& e : reference.train) batches[e.step] = e.batch_hash;
  for (const TrainEvent& e : log.train) {
    const auto it = batches.find(e.step);
    check(it == batches.end() || it->second == e.batch_hash,
          "{} and {} saw different batches in step {}: not a paired comparison. Were data files changed "
          "between the arms?",
          reference_name, name, e.step);
  }
}

}  // namespace nibble
