// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/hardware.h"
#include "plan/layout.h"
#include "plan/workload.h"

namespace nibble {

struct MemoryItem {
  std::string name;
  double bytes = 0;
};

/// Bytes of the GPU that holds most, by kind.
struct Memory {
  std::vector<MemoryItem> items;
  double total = 0, usable = 0;
  bool fits() const { return total <= usable; }
  double of(const std::string& name) const;  ///< 0 when there is no such item
};

/// A parameter costs 2 bytes (BF16; none where it is kept in 8 bits) + its quantised copies, 4 (FP32
/// gradient) and, divided by dp x cp, 12 (FP32 master and both moments). Activations are what backward reads:
/// a linear keeps its input as the wgrad operand it will be (0.5625 bytes an element in NVFP4 instead of 2,
/// where the card multiplies NVFP4; emulated it is 2), beside the residual stream and what attention,
/// activations and scan need. The gradient of the residual stream is one buffer a model.
Memory memory_of(const Workload& work, const ParallelLayout& layout, const Hardware& hardware);

/// Bytes that backward needs of one token, over all blocks, before division by tp.
double activation_bytes_per_token(const Workload& work, Recompute recompute, const Hardware& hardware);

/// Largest micro-batch, up to global_batch / dp and dividing it, that fits; empty when not even 1 does.
std::optional<std::int64_t> largest_micro_batch(const Workload& work, ParallelLayout layout,
                                                const Hardware& hardware);

}  // namespace nibble
