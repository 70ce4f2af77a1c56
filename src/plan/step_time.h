// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "plan/hardware.h"
#include "plan/layout.h"
#include "plan/workload.h"

namespace nibble {

/// What is the same on every card: how far kernels other than large products get, and how much of the traffic
/// between GPUs the products hide. Stated once, not fitted.
struct StepConstants {
  double attention_fraction = 0.55;  ///< of the dense BF16 peak, forward and backward [FLASH]
  double scan_fraction = 0.12;       ///< the same, for the chunked scan's small products
  double tp_exposed = 0.35;          ///< share of tensor-parallel traffic that products do not hide
  double dp_exposed = 0.15;    ///< share of gradient and weight traffic that the backward pass does not hide
  double link_fraction = 0.8;  ///< of the link's rate that collectives reach
  double gap_s = 2e-6;         ///< between two kernels
  int kernels = 14;            ///< of a sublayer, forward and backward
};

struct TimeItem {
  std::string name, note;
  double seconds = 0;  ///< of one step on one GPU
};

struct StepTime {
  std::vector<TimeItem> items;
  double seconds = 0;
  double tokens_per_gpu_s = 0;
  double model_tflops = 0;  ///< model FLOP/s a GPU, recomputation not counted
  double mix_peak = 0;      ///< TFLOP/s: the dense peak of the mix of products actually used
  double mfu_bf16 = 0;      ///< against the dense BF16 peak
  double mfu_mix = 0;       ///< against mix_peak
  double of(const std::string& name) const;
};

/// Seconds of one step by what they go to:
///   products    2 x rows x columns x depth over peak x achieved share, or their bytes over the bandwidth if
///   longer attention   7/6 of the model's count (backward recomputes the scores) over the BF16 peak quantise
///   bytes over the bandwidth: an amax pass where the format has a tensor scale, a read, both copies out rest
///   norms, residual, activations, rotary, convolution, softmax of the head: bytes over the bandwidth
///   optimizer, exposed communication, pipeline bubble (pp - 1) / (vp m), gaps between kernels
StepTime step_time(const Workload& work, const ParallelLayout& layout, const Hardware& hardware,
                   const StepConstants& constants = {});

/// Bytes moved to quantise one element into its copies along the two axes (a format that is BF16 costs
/// nothing). `emulated`: the copies are written as BF16 values, not as codes.
double quantise_bytes(const QuantSpec& row, const QuantSpec& column, bool emulated);

}  // namespace nibble
