// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm_bench_cuda.h"

#include <algorithm>

#include "backend/cuda/stopwatch.h"
#include "ops/gemm/lt_plans_cuda.h"

namespace nibble::cuda {

double seconds_of(Stream& stream, int runs, const std::function<void()>& f) {
  Stopwatch watch(cuda_device(stream));
  watch.start();
  for (int i = 0; i < runs; ++i) f();
  return watch.stop() / runs;
}

void measure_proposals(Stream& stream, const LtProduct& product, double seconds, GemmRate& rate) {
  const std::vector<double> times = cuda_device(stream).attached<LtPlans>().measure(product, seconds);
  if (times.empty()) return;
  const auto best = std::min_element(times.begin(), times.end());
  rate.best_seconds = *best;
  rate.best = static_cast<int>(best - times.begin());
}

}  // namespace nibble::cuda
