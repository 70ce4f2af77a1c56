// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/coded_decode.h"
#include "ops/gemm/coded_forms.h"

namespace nibble::cpu {

/// BF16 holds code times block scale exactly (quant/operand.h).
void run(Stream& stream, const CodedProduct& g) {
  const ArenaScope scope(stream.scratch());
  run(stream, decoded_product(g, decoded<bf16>(stream, g.a), decoded<bf16>(stream, g.b)));
}

void run(Stream& stream, const MatMulFp8& g) { run(stream, coded(g)); }
void run(Stream& stream, const MatMulFp4& g) { run(stream, coded(g)); }
void run(Stream& stream, const MatMulMxfp8& g) { run(stream, coded(g)); }

}  // namespace nibble::cpu
