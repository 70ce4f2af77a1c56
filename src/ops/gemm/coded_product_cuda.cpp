// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/coded_forms.h"
#include "ops/gemm/gemm_kernels_cuda.h"
#include "ops/gemm/lt_plans_cuda.h"
#include "ops/gemm/native.h"

namespace nibble::cuda {
namespace {

bool native(const NativeGemm& card, Format format) {
  return format == Format::Nvfp4 ? card.fp4 : info(format).block != 0 ? card.mxfp8 : card.fp8;
}

}  // namespace

void run(Stream& stream, const CodedProduct& g) {
  if (g.c_MN.size(0) == 0 || g.c_MN.size(1) == 0) return;
  CudaDevice& device = cuda_device(stream);
  check(native(native_gemm(device), g.a.format),
        "{}: the tensor cores of this card (compute capability {}) do not multiply {}; multiply exact BF16 "
        "operands with matmul",
        g.op, device.compute_capability(), info(g.a.format).name);
  const ArenaScope scope(stream.scratch());
  const LtProduct product = lt_product(g);
  LtPointers at{.a = g.b.codes.data(), .b = g.a.codes.data(), .d = g.c_MN.data(), .alpha = g.inverse_range};
  if (product.scale == LtScale::Tensor) {
    for (const float* scale : {g.a.scale, g.b.scale})
      check(reinterpret_cast<std::uintptr_t>(scale) % 16 == 0,
            "{}: an operand's scale lies at {}, but cuBLASLt reads scales from multiples of 16 bytes alone",
            g.op, static_cast<const void*>(scale));
    at.a_scale = g.b.scale;
    at.b_scale = g.a.scale;
  } else {
    at.a_scale = g.b.scales.data();
    at.b_scale = g.a.scales.data();
  }
  View<float> sums;
  if (finished_by_us(g)) {
    sums = stream.scratch().take<float>(g.c_MN.size(0), g.c_MN.size(1));
    at.d = sums.data();
  }
  if (product.alpha_on_device) {
    float* alpha = stream.scratch().take<float>(1).data();
    write_alpha(stream, g.a.scale, g.b.scale, g.inverse_range, alpha);
    at.device_alpha = alpha;
  }
  check(
      device.attached<LtPlans>().run(product, at),
      "{}: cuBLASLt {} has no algorithm for [{}, {}] by [{}, {}] on this card; multiply exact BF16 operands "
      "with matmul",
      g.op, cublasLtGetVersion(), g.a.rows(), g.a.summed(), g.b.rows(), g.b.summed());
  // The sums have alpha already.
  if (!sums.empty()) finish_product(stream, {.c_MN = g.c_MN, .beta = g.beta, .bias_N = g.bias_N}, sums);
}

void run(Stream& stream, const MatMulFp8& g) { run(stream, coded(g)); }
void run(Stream& stream, const MatMulFp4& g) { run(stream, coded(g)); }
void run(Stream& stream, const MatMulMxfp8& g) { run(stream, coded(g)); }

}  // namespace nibble::cuda
