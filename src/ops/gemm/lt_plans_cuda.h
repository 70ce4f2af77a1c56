// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_device.h"
#include "ops/gemm/gemm_tuning.h"
#include "ops/gemm/lt_description_cuda.h"

namespace nibble::cuda {

/// The library's handle, its workspace and the algorithm of every product so far: attached to a device.
///
/// An algorithm is the library's first proposal for the product, or what a tuning file says: the same in
/// every run on the same kind of card. Sums that the library splits are added in FP32 in a fixed order.
class LtPlans {
 public:
  explicit LtPlans(CudaDevice& device);

  /// Issues the product and returns true; false when the library has no algorithm for it. The first call of a
  /// product asks the library, which touches no memory of the device.
  bool run(const LtProduct& p, const LtPointers& at);

  /// Seconds that each proposal takes, in the library's order, on operands of our own; empty when there is
  /// none. Waits for the device.
  std::vector<double> measure(const LtProduct& p, double seconds);

  void use(const GemmTuning& tuning);
  GemmTuning tune(double seconds);

 private:
  struct Plan {
    LtDescription description;
    std::vector<cublasLtMatmulAlgo_t> proposals;
    std::size_t chosen = 0;
  };
  Plan& plan(const LtProduct& p);
  std::vector<cublasLtMatmulAlgo_t> ask(const LtProduct& p, const LtDescription& description) const;
  cublasStatus_t issue(const LtProduct& p, Plan& plan, std::size_t proposal, const LtPointers& at);
  std::string machine() const;

  CudaDevice* device_;
  std::unique_ptr<cublasLtContext, LtDestroy<cublasLtDestroy>> handle_;
  Buffer workspace_;
  Buffer beta_;  ///< FP32 0 and 1, for products whose alpha is on the device
  std::map<LtProduct, Plan> plans_;
  std::map<LtProduct, int> tuning_;
};

}  // namespace nibble::cuda
