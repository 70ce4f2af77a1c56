// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/coded_decode.h"
#include "ops/gemm/coded_forms.h"

namespace nibble::ref {

/// In FP32 every decoded number is exact, and matmul's reference sums in double.
void run(Stream& stream, const CodedProduct& g) {
  const ArenaScope scope(stream.scratch());
  run(stream, decoded_product(g, decoded<float>(stream, g.a), decoded<float>(stream, g.b)));
}

void run(Stream& stream, const MatMulFp8& g) { run(stream, coded(g)); }
void run(Stream& stream, const MatMulFp4& g) { run(stream, coded(g)); }
void run(Stream& stream, const MatMulMxfp8& g) { run(stream, coded(g)); }

}  // namespace nibble::ref
